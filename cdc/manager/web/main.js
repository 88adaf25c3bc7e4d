// The page: routes in the fragment of the address, refresh every 2 s, actions, keyboard.

import { act, call, read } from "./api.js";
import { confirmAction, confirmHost, loginView, showKeys } from "./dialogs.js";
import { h, morphChildren, prose } from "./dom.js";
import { jobView } from "./job.js";
import { hostsView, jobsView, urgency } from "./jobs.js";
import { followPointer } from "./plot.js";

const EVERY_MS = 2000;
const SLOW_MS = 15000; // a driver on another host that does not answer delays an answer by 6 s
const NAME = /^[a-z0-9_-]+$/; // of a job
const MESSAGE_MS = 12000;
const content = document.getElementById("content");
const state = { filter: "all", search: "", minutes: 10, busy: false, session: null, tables: { match: "", offset: 0 } };
let shown = { route: "", data: null };
let asked = 0;
let began = 0; // time of the refresh that has no answer yet

function route() {
  const [page, name, section] = location.hash.replace(/^#\/?/, "").split("/");
  if (page === "jobs" && NAME.test(name)) return { key: location.hash, page: "job", name, section: section ?? "" };
  return { key: location.hash, page: page === "hosts" ? "hosts" : "jobs" };
}

async function load({ page, name, section }) {
  if (page === "jobs") {
    const [jobs, hosts] = await Promise.all([read.jobs(), read.hosts()]);
    return { jobs, hosts };
  }
  if (page === "hosts") return { hosts: await read.hosts() };
  const extra = {
    "": () => read.history(name, state.minutes).then((history) => ({ history })),
    timeline: () => read.events(name).then((events) => ({ events })),
    checkpoints: () => read.checkpoints(name).then((checkpoints) => ({ checkpoints })),
    verifications: () => read.verifications(name).then((verifications) => ({ verifications })),
    log: () => read.log(name).then((log) => ({ log }), (error) => ({ log: { error: `${error.message} ${error.hint ?? ""}` } })),
  }[section];
  const [job, more] = await Promise.all([read.job(name, state.tables), extra?.() ?? {}]);
  return { job, ...more };
}

function draw() {
  const { route: at, data } = shown;
  if (!data) return;
  const all = { ...data, session: state.session };
  const styles = getComputedStyle(content);
  const inner = content.clientWidth - parseFloat(styles.paddingLeft) - parseFloat(styles.paddingRight);
  const width = Math.max(260, Math.floor(matchMedia("(min-width: 761px)").matches ? (inner - 16) / 2 : inner) - 34);
  const view = at.page === "jobs" ? jobsView(all, state) : at.page === "hosts" ? hostsView(all) : jobView(all, { ...state, section: at.section, width });
  const log = content.querySelector(".log");
  const isAtEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  morphChildren(content, h("div", null, view));
  if (isAtEnd) content.querySelector(".log")?.scrollTo(0, 1e9);
  const urgent = (data.jobs ?? []).filter((job) => urgency(job) === 0).length;
  document.title = data.job ? `${data.job.job} ${data.job.state.toLowerCase()} – cdc` : urgent ? `${urgent} paused – cdc` : "cdc";
  document.getElementById("pages").replaceChildren(
    ...[["jobs", "Jobs", "#/"], ["hosts", "Hosts", "#/hosts"]].map(([page, label, href]) => h("a", { href, "aria-current": at.page === page ? "page" : at.page === "job" && page === "jobs" ? "true" : null }, label)),
  );
}

function drawSession() {
  const { role, host, has_tokens: hasTokens } = state.session;
  document.getElementById("session").replaceChildren(
    h("span", { class: "quiet" }, `${host} · ${role}`),
    hasTokens ? h("button", { type: "button", class: "plain", "data-do": "logout" }, "Sign out") : "",
  );
}

function banner(...text) {
  const place = document.getElementById("banner");
  place.hidden = !text.length;
  if (place.textContent !== text.join("")) place.replaceChildren(...text.flatMap((one) => prose(one)));
}

async function refresh() {
  const number = ++asked;
  const at = route();
  began = Date.now();
  try {
    if (!state.session) {
      state.session = await read.session();
      drawSession();
    }
    const data = await load(at);
    if (number !== asked) return; // the user has gone to another page meanwhile
    const isNew = shown.data && shown.route.key !== at.key;
    shown = { route: at, data };
    banner();
    draw();
    if (isNew) {
      window.scrollTo(0, 0);
      content.focus({ preventScroll: true });
    }
  } catch (error) {
    if (number !== asked) return;
    if (error.status === 401) showLogin("");
    else if (error.status === 404 && at.page === "job") {
      banner(error.message);
      location.hash = "#/";
    } else banner(error.status ? `${error.message} ${error.where} ${error.hint}` : "The host does not answer. The page tries again every 2 s.");
  } finally {
    if (number === asked) began = 0;
  }
}

function showLogin(message) {
  state.session = null;
  shown = { route: "", data: null };
  document.getElementById("session").replaceChildren();
  document.getElementById("pages").replaceChildren();
  if (!message && document.getElementById("login")) return;
  content.replaceChildren(loginView(message));
  document.getElementById("token").focus();
}

function message(kind, ...text) {
  const shownText = h("p", { class: `card message ${kind}` }, text.flatMap((one) => prose(one)));
  const place = document.getElementById("messages");
  place.append(shownText);
  while (place.children.length > 3) place.firstChild.remove();
  setTimeout(() => shownText.remove(), MESSAGE_MS);
}

async function perform(words, work) {
  state.busy = true;
  draw();
  try {
    const result = await work();
    message("good", result === null ? `${words}: sent, and not carried out yet. The time line shows the result.` : `${words}: done.`);
  } catch (error) {
    message("bad", `${words}: ${error.message} `, error.hint ?? "");
  } finally {
    state.busy = false;
    await refresh();
  }
}

const ACTIONS = {
  filter: ({ value }) => { state.filter = value; draw(); },
  tables: ({ value }) => { state.tables.offset = Number(value); refresh(); },
  minutes: ({ value }) => { state.minutes = Number(value); refresh(); },
  logout: () => call("POST", "/v1/logout").then(() => showLogin("")),
  act: async ({ verb }) => {
    const { job } = shown.data;
    const hosts = verb === "move" ? (await read.hosts()).filter((host) => host.is_schedulable && host.is_alive && host.name !== job.host) : [];
    const body = await confirmAction(verb, job, hosts);
    if (body) await perform(`${verb[0].toUpperCase()}${verb.slice(1)} ${job.job}`, () => act(job.job, verb, body));
  },
  host: async ({ verb, host }) => {
    if (await confirmHost(verb, host)) await perform(`${verb[0].toUpperCase()}${verb.slice(1)} ${host}`, () => call("POST", `/v1/hosts/${encodeURIComponent(host)}/${verb}`));
  },
};

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do]");
  if (target) ACTIONS[target.dataset.do](target.dataset);
  else if (event.target.closest("a.skip")) {
    event.preventDefault();
    content.focus();
  } else if (!event.target.closest("a, button, input") && !String(getSelection())) {
    event.target.closest("table.jobs tbody tr")?.querySelector("a")?.click();
  }
});

document.addEventListener("input", (event) => {
  if (event.target.id === "search") {
    state.search = event.target.value;
    draw();
  } else if (event.target.id === "tables-search") {
    state.tables = { match: event.target.value.slice(0, 200), offset: 0 };
    refresh();
  }
});

document.addEventListener("submit", async (event) => {
  if (event.target.id !== "login") return;
  event.preventDefault();
  try {
    await call("POST", "/v1/login", { token: new FormData(event.target).get("token") });
    await refresh();
  } catch (error) {
    showLogin(`${error.message} ${error.hint ?? ""}`);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else if (route().page !== "jobs") location.hash = "#/";
    return;
  }
  if (isTyping) return;
  const links = [...document.querySelectorAll("[data-row]")];
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (step && links.length && (event.key.length === 1 || document.activeElement.matches("[data-row]"))) {
    event.preventDefault();
    const next = links.indexOf(document.activeElement) + step;
    links[Math.min(links.length - 1, Math.max(0, next))].focus();
  } else if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  } else if (event.key === "?") {
    showKeys();
  }
});

window.addEventListener("hashchange", () => {
  state.tables = { match: "", offset: 0 };
  refresh();
});
window.addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
followPointer(draw);
await refresh();
// another refresh would discard a slow answer, and then none would ever be shown
const isWaiting = () => Date.now() - began < SLOW_MS;
setInterval(() => document.hidden || document.getElementById("login") || isWaiting() || refresh(), EVERY_MS);
