// Comparisons of source and target: the running one, the last result of each table, earlier ones with rows that differ.

import { ago, compact, count, moment, seconds } from "./format.js";
import { h, prose } from "./dom.js";

const WORDS = { waiting: "waits to start", running: "runs", equal: "equal", different: "different", failed: "ended early" };
const COUNTS = [["missing", "Missing"], ["extra", "Extra"], ["different", "Different"], ["changing", "Changing"], ["repaired", "Repaired"]];

const sample = (one) => (one.sample === null ? "" : `, sample of ${Number((100 * one.sample).toFixed(2))} %`);
const differs = (one) => one.missing + one.extra + one.different;
const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
const heads = (names) => h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name))));

export function verifications({ job, verifications: found }) {
  const current = job.status.verify.current;
  const ended = found.verifications;
  return [
    current && running(current),
    h("h2", null, "Last result of each table", h("span", { class: "number" }, count(found.tables.length))),
    found.tables.length ? results(found.tables) : h("p", { class: "card empty" }, prose("No table was verified yet. `Verify` compares source and target while the job runs.")),
    ended.length > 0 && [h("h2", null, "History"), h("ol", { class: "card plain", id: "verifications" }, ended.map(entry))],
  ];
}

function running(one) {
  const share = Math.min(99, Math.floor((100 * one.rows) / Math.max(1, one.estimated_rows, one.rows)));
  const left = one.tables.filter((table) => !["done", "skipped"].includes(table.state));
  const text = `${WORDS[one.state]}: ${compact(one.rows)} of about ${compact(one.estimated_rows)} rows compared, ${count(differs(one))} differ${left.length ? `, compares ${left[0].source}` : ""}`;
  return h("div", { class: "card snapshot", id: "verification" }, h("b", null, `Verification ${one.number}${sample(one)}`), h("progress", { max: 100, value: share, "aria-label": `verification ${share} %` }), h("span", { class: "small" }, `${share} % · ${text}`));
}

function results(tables) {
  return h(
    "table",
    { class: "card data", id: "verified-tables" },
    h("caption", { class: "hidden" }, "Last result of each table"),
    heads(["Table", "Verified", "Rows", ...COUNTS.map(([, label]) => label)]),
    h(
      "tbody",
      null,
      tables.map((one) =>
        h(
          "tr",
          { "data-key": one.source },
          h("th", { scope: "row" }, h("b", { class: "wrap" }, one.source), one.note && h("div", { class: "small late wrap" }, one.note)),
          cell("Verified", one.state === "skipped" ? "skipped" : `${ago(one.ended_at)}${sample(one)}`),
          cell("Rows", count(one.rows)),
          COUNTS.map(([name, label]) => h("td", { "data-label": label, class: one[name] && name !== "repaired" ? "late" : "" }, count(one[name]))),
        ),
      ),
    ),
  );
}

function entry(one) {
  const head = `${WORDS[one.state]}: ${count(one.rows)} rows compared, ${count(differs(one))} differ${one.repaired ? `, ${count(one.repaired)} repaired` : ""}${sample(one)}, ${seconds(one.seconds)}`;
  return h(
    "li",
    { "data-key": one.number },
    h("b", null, `Verification ${one.number}`),
    ` ${moment(one.ended_at)}${one.scheduled ? ", scheduled" : ""}: `,
    h("span", { class: one.state === "equal" ? "" : "late" }, head),
    one.error && h("div", { class: "hint" }, prose(one.error)),
    one.differences.length > 0 && h("details", { "data-key": `rows ${one.number}` }, h("summary", null, `${count(one.differences.length)} rows`), rows(one.differences)),
  );
}

function rows(differences) {
  const key = (one) => Object.entries(one.key).map(([name, value]) => `${name}=${value}`).join(", ");
  const value = (text) => (text === null ? "NULL" : text);
  return h(
    "table",
    { class: "data" },
    h("caption", { class: "hidden" }, "Rows that differ"),
    heads(["Row", "Key", "Source and target"]),
    h(
      "tbody",
      null,
      differences.map((one) =>
        h(
          "tr",
          null,
          h("th", { scope: "row" }, `${one.table} ${one.kind}`),
          cell("Key", h("span", { class: "wrap" }, key(one))),
          cell("Source and target", (one.values ?? []).map((each) => h("div", { class: "wrap" }, h("b", null, each.column), ` ${value(each.source)} → ${value(each.target)}`))),
        ),
      ),
    ),
  );
}
