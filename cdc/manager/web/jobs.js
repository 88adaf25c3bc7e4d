// The list of jobs by urgency, and the list of hosts.

import { ago, compact, count, rate, seconds, size } from "./format.js";
import { h, prose } from "./dom.js";
import { sparkline } from "./plot.js";

const LATE_S = 60;

// 0: a person must act; 1: it retries or has no driver; 2: it runs, but is late; 3: it runs; 4: it has ended
export function urgency(job) {
  if (job.state === "PAUSED" && job.resume === "manual") return job.is_paused_by_user || job.desired_state === "PAUSED" ? 1 : 0;
  if (job.state === "PAUSED") return 1;
  if (job.state === "PENDING") return job.desired_state === "PAUSED" ? 3 : 1;
  if (job.state === "RUNNING") return (job.lag_seconds ?? 0) > LATE_S ? 2 : 3;
  return 4;
}

const FILTERS = [
  ["all", "All", () => true],
  ["action", "Need attention", (job) => urgency(job) <= 2],
  ["running", "Running", (job) => job.state === "RUNNING"],
  ["ended", "Ended", (job) => urgency(job) === 4],
];

export function pill(state, resume) {
  const words = { RUNNING: "running", PENDING: "pending", PAUSED: resume === "automatic" ? "retrying" : "paused", CANCELLED: "cancelled", DONE: "done" };
  return h("span", { class: `pill ${state.toLowerCase()} ${resume ?? ""}` }, words[state] ?? state);
}

export function flow(job) {
  const source = [job.source.type, job.source.server, job.source.destination].filter(Boolean).join(" ");
  return `${source} → ${job.sink.type} ${job.sink.target}`;
}

function row(job) {
  const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
  const isLate = job.state === "RUNNING" && (job.lag_seconds ?? 0) > LATE_S;
  const left = job.snapshot.tables - job.snapshot.tables_done;
  return h(
    "tr",
    { "data-key": job.job, class: `urgency${urgency(job)}` },
    h(
      "th",
      { scope: "row" },
      h("div", { class: "name" }, h("a", { href: `#/jobs/${job.job}`, "data-row": true }, job.job), pill(job.state, job.resume)),
      h("div", { class: "flow quiet" }, flow(job)),
      job.reason && h("p", { class: "reason" }, prose(job.reason)),
      job.hint && h("p", { class: "hint" }, prose(job.hint)),
      left > 0 && h("p", { class: "quiet small" }, `Loading existing rows: ${job.snapshot.tables_done} of ${job.snapshot.tables} tables done.`),
    ),
    cell("Lag", h("span", { class: isLate ? "late" : "" }, seconds(job.lag_seconds))),
    cell("Rows/s", h("span", { class: "rate" }, job.rates.length > 1 && sparkline(job.rates), h("span", null, rate(job.rows_per_second)))),
    cell("Tables", count(job.tables)),
    cell("Last commit", ago(job.last_committed_at)),
    cell("Host", job.host ?? "none"),
  );
}

export function jobsView({ jobs, hosts }, { filter, search }) {
  const matches = FILTERS.find(([name]) => name === filter)[2];
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = jobs
    .filter((job) => matches(job) && words.every((word) => `${job.job} ${flow(job)} ${job.host} ${job.reason}`.toLowerCase().includes(word)))
    .sort((a, b) => urgency(a) - urgency(b) || (b.lag_seconds ?? 0) - (a.lag_seconds ?? 0) || a.job.localeCompare(b.job));
  const total = jobs.reduce((sum, job) => sum + (job.rows_per_second ?? 0), 0);
  const urgent = jobs.filter((job) => urgency(job) === 0).length;
  const summary = !jobs.length
    ? "There are no jobs."
    : `${urgent ? `${urgent} ${urgent === 1 ? "job needs" : "jobs need"} an action. ` : "No job needs an action. "}${compact(total)} rows/s in total.`;
  return h(
    "div",
    { class: "view", "data-key": "jobs" },
    h("div", { class: "heading" }, h("h1", null, "Jobs"), h("p", { class: "quiet", id: "summary" }, summary)),
    jobs.length
      ? h(
          "div",
          { class: "tools" },
          h(
            "div",
            { class: "chips", role: "group", "aria-label": "Show jobs" },
            FILTERS.map(([name, label, test]) =>
              h("button", { type: "button", "data-do": "filter", "data-value": name, "aria-pressed": String(name === filter) }, label, h("span", { class: "number" }, count(jobs.filter(test).length))),
            ),
          ),
          h("label", { class: "search" }, h("span", { class: "hidden" }, "Filter by name, server, host or reason"), h("input", { type: "search", id: "search", value: search, placeholder: "Filter ( / )", autocomplete: "off", spellcheck: "false" })),
        )
      : h("p", { class: "card empty" }, prose("Start one with `cdc start JOB.yaml`, or PUT a specification to `/v1/jobs/NAME`.")),
    found.length > 0 &&
      h(
        "table",
        { class: "jobs card" },
        h("caption", { class: "hidden" }, "Jobs, the most urgent first"),
        h("thead", null, h("tr", null, ["Job", "Lag", "Rows/s", "Tables", "Last commit", "Host"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, found.map(row)),
      ),
    jobs.length > 0 && !found.length && h("p", { class: "card empty" }, "No job matches."),
    hosts.length > 0 && [h("h2", null, "Hosts"), hostCards(hosts, null)],
  );
}

export function hostsView({ hosts, session }) {
  return h(
    "div",
    { class: "view", "data-key": "hosts" },
    h("div", { class: "heading" }, h("h1", null, "Hosts"), h("p", { class: "quiet" }, `${count(hosts.filter((host) => host.is_alive).length)} of ${count(hosts.length)} alive.`)),
    hosts.length ? hostCards(hosts, session) : h("p", { class: "card empty" }, prose("No host has joined. `cdc serve` on a host joins it.")),
  );
}

function hostCards(hosts, session) {
  return h(
    "ul",
    { class: "hosts" },
    hosts.map((host) => {
      const [kind, word] = !host.is_alive ? ["paused", "gone"] : host.is_drained ? ["pending", "drained"] : ["running", "alive"];
      const verb = host.is_drained ? "undrain" : "drain";
      return h(
        "li",
        { class: "card host", "data-key": host.name },
        h("div", { class: "name" }, h("b", null, host.name), h("span", { class: `pill ${kind}` }, word), host.is_this && h("span", { class: "quiet small" }, "this host")),
        h("p", { class: "quiet small" }, `${count(host.jobs.length)} ${host.jobs.length === 1 ? "job" : "jobs"} · ${size(host.memory_bytes)} for jobs`),
        h("p", { class: "quiet small" }, `Heartbeat ${host.seen_seconds_ago < 1 ? "now" : `${seconds(host.seen_seconds_ago)} ago`}`),
        Object.keys(host.labels).length > 0 && h("p", { class: "quiet small" }, Object.entries(host.labels).map(([name, value]) => `${name}=${value}`).join(", ")),
        session && host.jobs.length > 0 && h("p", { class: "links" }, host.jobs.slice(0, 50).map((name) => h("a", { href: `#/jobs/${name}` }, name))),
        session?.role === "admin" && h("button", { type: "button", "data-do": "host", "data-verb": verb, "data-host": host.name }, verb === "drain" ? "Drain" : "Accept jobs again"),
      );
    }),
  );
}
