// One job: flow, state, actions, plots, tables, time line, checkpoints, log, specification.

import { TABLES } from "./api.js";
import { ago, compact, count, moment, rate, seconds, size } from "./format.js";
import { h, prose } from "./dom.js";
import { pill } from "./jobs.js";
import { plot } from "./plot.js";
import { verifications } from "./verifications.js";

const PARTS = ["buffer", "prepare", "commit", "save"];
const SECTIONS = [["", "Overview"], ["timeline", "Time line"], ["checkpoints", "Checkpoints"], ["verifications", "Verifications"], ["log", "Log"], ["specification", "Specification"]];

export function jobView(data, state) {
  const { job } = data;
  const body = { "": overview, timeline, checkpoints, verifications, log, specification }[state.section] ?? overview;
  return h("div", { class: "view", "data-key": `job ${job.job} ${state.section}` }, head(data, state), sections(job.job, state.section), body(data, state));
}

function head({ job, session }, { busy }) {
  const ended = ["CANCELLED", "DONE"].includes(job.state);
  const paused = job.state === "PAUSED" || job.desired_state === "PAUSED";
  const button = (verb, label, kind = "") => h("button", { type: "button", "data-do": "act", "data-verb": verb, class: kind, disabled: busy }, label);
  return [
    h("p", { class: "back" }, h("a", { href: "#/" }, "← All jobs")),
    h(
      "div",
      { class: "heading" },
      h("h1", null, job.job, pill(job.state, job.resume)),
      session.role === "admin" &&
        !ended &&
        h(
          "div",
          { class: "actions", role: "group", "aria-label": "Actions" },
          paused ? button("resume", "Resume", "primary") : button("pause", "Pause"),
          paused && job.resume === "automatic" && button("pause", "Pause"),
          button("snapshot", "Load a table"),
          button("verify", "Verify"),
          job.is_managed && job.host && button("move", "Move"),
          button("stop", "Stop", "danger"),
        ),
    ),
    (job.reason || job.hint) &&
      h("div", { class: `card why ${job.state.toLowerCase()} ${job.resume ?? ""}` }, job.reason && h("p", { class: "reason" }, prose(job.reason)), job.hint && h("p", { class: "hint" }, prose(job.hint))),
    flowLine(job),
  ];
}

function flowLine(job) {
  const { status } = job;
  const part = (label, name, ...lines) => h("li", null, h("span", { class: "label" }, label), h("b", null, name), lines.filter(Boolean).map((text) => h("span", { class: "quiet small wrap" }, text)));
  const position = status.position ?? {};
  const at = position.file ? `${position.file} : ${count(position.offset)}` : (position.gtid_set ?? position.journal ?? "");
  const used = status.window_limit_bytes ? `${size(status.window_bytes)} of ${size(status.window_limit_bytes)} in memory` : "";
  return h(
    "ol",
    { class: "card line-of-flow", "aria-label": "Flow" },
    part("Source", `${job.source.type} ${job.source.server ?? ""}`, job.source.destination, at && `committed up to ${String(at).slice(0, 80)}`),
    part("Job", job.lag_seconds === null ? "not running" : `lag ${seconds(job.lag_seconds)}`, job.host && `on host ${job.host}`, used),
    part("Sink", job.sink.type === job.sink.target ? job.sink.type : `${job.sink.type} ${job.sink.target}`, job.last_committed_at ? `last commit ${ago(job.last_committed_at)}` : "no commit yet", status.checkpoint && `checkpoint ${count(status.checkpoint.id)} with ${count(status.checkpoint.rows)} rows`),
  );
}

function sections(name, current) {
  return h(
    "nav",
    { class: "sections", "aria-label": "Parts of the job" },
    SECTIONS.map(([key, label]) => h("a", { href: `#/jobs/${name}${key && `/${key}`}`, "aria-current": key === current ? "page" : null }, label)),
  );
}

function overview({ job, history }, { minutes, width, tables: page }) {
  const common = { times: history.times, minutes, width };
  const one = (name) => [{ name: "now", values: history.series[name] }];
  const parts = PARTS.map((name) => ({ name, values: history.series[name] }));
  return [
    h(
      "div",
      { class: "tools" },
      h("h2", { id: "plots" }, "Activity"),
      h("div", { class: "chips", role: "group", "aria-label": "Time of the plots" }, [10, 60].map((value) => h("button", { type: "button", "data-do": "minutes", "data-value": value, "aria-pressed": String(value === minutes) }, value === 60 ? "1 hour" : "10 min"))),
    ),
    h(
      "div",
      { class: "plots" },
      plot({ ...common, id: "lag", title: "Lag", series: one("lag_seconds"), format: seconds }),
      plot({ ...common, id: "rows", title: "Rows per second", series: one("rows_per_second"), format: rate }),
      plot({ ...common, id: "parts", title: "Seconds of a checkpoint", series: parts, format: seconds, stacked: true }),
      plot({ ...common, id: "bytes", title: "Bytes per second", series: one("bytes_per_second"), format: size, isSize: true }),
    ),
    h("h2", null, `Tables`, h("span", { class: "number" }, count(job.tables))),
    job.tables > TABLES && tablesTools(job, page),
    job.status.channels.length ? tables(job.status) : h("p", { class: "card empty" }, job.tables ? "No table matches." : "No table is known yet: the job has not connected to its source."),
    job.status.left_out.length > 0 && [
      h("h2", null, "Tables that are left out", h("span", { class: "number" }, count(job.left_out))),
      h("ul", { class: "card plain" }, job.status.left_out.map((left) => h("li", null, h("b", null, left.table), " ", prose(left.reason), " ", prose(left.hint)))),
    ],
  ];
}

// The filter and the pages of a job with many tables. The host sorts and filters them.
function tablesTools(job, { offset }) {
  const last = Math.min(offset + TABLES, job.tables_matching);
  const turn = (label, to, isPossible) => h("button", { type: "button", "data-do": "tables", "data-value": to, disabled: !isPossible }, label);
  return h(
    "div",
    { class: "tools" },
    h("label", { class: "search" }, h("span", { class: "hidden" }, "Filter tables by name"), h("input", { type: "search", id: "tables-search", placeholder: "Filter tables", autocomplete: "off", spellcheck: "false" })),
    h("span", { class: "chips" }, h("span", { class: "quiet", id: "tables-page" }, last ? `${count(offset + 1)} to ${count(last)} of ${count(job.tables_matching)}` : "none"), turn("Previous", Math.max(0, offset - TABLES), offset > 0), turn("Next", offset + TABLES, last < job.tables_matching)),
  );
}

function tables({ channels }) {
  const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
  return h(
    "table",
    { class: "card data" },
    h("caption", { class: "hidden" }, "Tables of the job"),
    h("thead", null, h("tr", null, ["Table", "Upserts", "Deletes", "Waiting", "Last commit", "Existing rows"].map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      null,
      channels.map((one) =>
        h(
          "tr",
          { "data-key": one.source },
          h("th", { scope: "row" }, h("b", { class: "wrap" }, one.source), h("div", { class: "quiet small wrap" }, `→ ${one.target}`), one.differences.length > 0 && h("div", { class: "small late" }, `${one.differences.length} differences of columns`)),
          cell("Upserts", compact(one.upserts)),
          cell("Deletes", compact(one.deletes)),
          cell("Waiting", compact(one.buffered_rows)),
          cell("Last commit", ago(one.last_committed_at)),
          cell("Existing rows", snapshot(one.snapshot)),
        ),
      ),
    ),
  );
}

function snapshot(found) {
  if (!found) return h("span", { class: "quiet" }, "not loaded");
  if (found.consistent) return h("span", { class: "quiet" }, `${compact(found.rows)} rows, consistent since ${moment(found.since)}`);
  const words = { waiting: "waits to start", deleting_orphans: "finds rows that the source no longer has", catching_up: "catches up" };
  const isRead = ["deleting_orphans", "catching_up"].includes(found.state);
  const share = isRead ? 100 : Math.min(99, Math.floor((100 * found.rows) / Math.max(1, found.estimated_rows, found.rows)));
  const left = found.seconds_left === null ? "" : `, ${seconds(found.seconds_left)} left`;
  const text = words[found.state] ?? `${compact(found.rows)} of about ${compact(found.estimated_rows)} rows, ${rate(found.rows_per_second)} rows/s${left}`;
  return h("div", { class: "snapshot" }, h("progress", { max: 100, value: share, "aria-label": `snapshot ${share} %` }), h("span", { class: "small" }, `${share} % · ${text}`));
}

const KINDS = { state: "State", schema_change: "Schema change", take_over: "Take-over", assigned: "Host", request: "Request", spec: "Setting" };

function timeline({ events }) {
  if (!events.length) return h("p", { class: "card empty" }, "Nothing has happened yet.");
  return h(
    "ol",
    { class: "card timeline" },
    events.map((event) => {
      const result = event.kind !== "request" ? "" : !event.result ? "no answer yet" : event.result.ok ? "done" : `refused: ${event.result.error?.error ?? ""}`;
      return h(
        "li",
        { "data-key": event.id, class: `${event.kind} ${event.result && !event.result.ok ? "refused" : ""}` },
        h("time", { datetime: event.created_at }, moment(event.created_at)),
        h("div", null, h("b", null, KINDS[event.kind] ?? event.kind), " ", prose(event.message), result && h("span", { class: "quiet" }, ` – ${result}`), event.detail.hint && h("div", { class: "hint" }, prose(event.detail.hint))),
        h("span", { class: "quiet small" }, event.actor ?? ""),
      );
    }),
  );
}

function checkpoints({ checkpoints: found }) {
  if (!found.length) return h("p", { class: "card empty" }, "No checkpoint is committed yet.");
  const total = (one) => PARTS.reduce((sum, part) => sum + (one.seconds[part] ?? 0), 0);
  const longest = Math.max(1e-9, ...found.map(total));
  const bar = (one) =>
    h("span", { class: "parts", title: PARTS.map((part) => `${part} ${seconds(one.seconds[part] ?? 0)}`).join(", ") }, PARTS.map((part, index) => h("progress", { class: `c${index}`, max: longest, value: one.seconds[part] ?? 0, "aria-label": part })));
  return h(
    "table",
    { class: "card data" },
    h("caption", { class: "hidden" }, "Newest checkpoints"),
    h("thead", null, h("tr", null, ["Checkpoint", "Committed", "Rows", "Size", "Closed by", "Buffer, prepare, commit, save"].map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      null,
      found.map((one) =>
        h(
          "tr",
          { "data-key": one.id },
          h("th", { scope: "row" }, count(one.id)),
          h("td", { "data-label": "Committed" }, one.committed_at ? moment(one.committed_at) : "–"),
          h("td", { "data-label": "Rows" }, count(one.rows)),
          h("td", { "data-label": "Size" }, size(one.bytes)),
          h("td", { "data-label": "Closed by" }, (one.closed_by ?? "").replaceAll("_", " ")),
          h("td", { "data-label": "Seconds" }, h("span", { class: "rate" }, bar(one), h("span", null, seconds(total(one))))),
        ),
      ),
    ),
  );
}

function log({ log: found }) {
  if (found.error) return h("p", { class: "card empty" }, prose(found.error));
  const level = (line) => (/ (WARNING|ERROR|CRITICAL) /.exec(line)?.[1] ?? "").toLowerCase();
  return h("div", { class: "card log", tabindex: "0", role: "region", "aria-label": "End of the log" }, found.lines.map((line) => h("div", { class: level(line) }, line || " ")));
}

function specification({ job }) {
  if (!job.spec) return h("p", { class: "card empty" }, prose("The job was started with `cdc start` from a file of its host, so this store has no specification."));
  return [h("p", { class: "quiet" }, `Generation ${job.generation}, desired state ${job.desired_state ?? "none"}.`), h("pre", { class: "card", tabindex: "0" }, job.spec)];
}
