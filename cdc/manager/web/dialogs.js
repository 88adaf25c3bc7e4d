// Dialogs: one confirmation for each action, and signing in.

import { h, prose } from "./dom.js";

const FLAGS = [
  ["past_ddl", "--past-ddl", "Continue after a statement that changes rows. The targets keep their rows."],
  ["apply_ddl", "--apply-ddl", "Apply the statement at which the job is paused to the targets."],
  ["accept_server", "--accept-server", "Continue from another server at the same address."],
  ["accept_gap", "--accept-gap", "Continue without changes that the source no longer has."],
  ["reload_missing", "--reload-missing", "Load targets again that are missing or were replaced."],
];

const field = (name, label, help, attributes = {}) => h("label", { class: "field" }, h("span", null, label), h("input", { name, autocomplete: "off", spellcheck: "false", ...attributes }), help && h("small", { class: "quiet" }, help));
const box = (name, label, help) => h("label", { class: "box" }, h("input", { type: "checkbox", name }), h("span", null, h("b", null, label), h("small", { class: "quiet" }, help)));

function tableField(job, required) {
  return [
    field("table", "Table", null, { list: "tables", required, placeholder: required ? "database.table" : "all tables" }),
    h("datalist", { id: "tables" }, job.status.channels.map((one) => h("option", { value: one.source }))),
  ];
}

// By verb: title, text, fields, label of the button, body of the request.
const ACTIONS = {
  pause: (job) => ({ title: `Pause ${job.job}?`, text: "Its position is kept. Changes wait in the source.", label: "Pause" }),
  stop: (job) => ({ title: `Stop ${job.job} for ever?`, text: "It cannot be started again. `Pause` keeps its position instead. The rows in its targets stay.", label: "Stop for ever", danger: true }),
  resume: (job) => {
    const why = `${job.reason} ${job.hint}`;
    const named = FLAGS.filter(([, flag]) => why.includes(flag));
    const others = FLAGS.filter(([, flag]) => !why.includes(flag));
    return {
      title: `Resume ${job.job}?`,
      text: job.reason ? `It is paused: ${job.reason}` : "It continues at its position.",
      fields: [named.map((one) => box(...one)), h("details", null, h("summary", null, named.length ? "More options" : "Options"), others.map((one) => box(...one)))],
      label: "Resume",
      // with the pause that the dialog shows: the job may be paused at another statement meanwhile
      body: (form) => ({ ...Object.fromEntries(FLAGS.filter(([name]) => form.get(name)).map(([name]) => [name, true])), ...(job.pause ? { pause: job.pause } : {}) }),
    };
  },
  move: (job, hosts) => ({
    title: `Move ${job.job}?`,
    text: "It continues on another host, at its position.",
    fields: h("label", { class: "field" }, h("span", null, "Host"), h("select", { name: "host" }, h("option", { value: "" }, "the best other host"), hosts.map((host) => h("option", { value: host.name }, host.name)))),
    label: "Move",
    body: (form) => (form.get("host") ? { host: form.get("host") } : {}),
  }),
  snapshot: (job) => ({
    title: "Load a table again?",
    text: "The rows are read while changes continue to arrive.",
    fields: [tableField(job, true), field("where", "Only rows with", "A condition in the source's SQL, such as id > 1000. Empty: all rows.")],
    label: "Load",
    body: (form) => ({ table: form.get("table"), ...(form.get("where") ? { where: form.get("where") } : {}) }),
  }),
  verify: (job) => ({
    title: "Compare source and target?",
    text: "Rows are compared by key ranges, without locks. The job continues.",
    fields: [tableField(job, false), box("repair", "Repair", "Load rows that differ again, and delete rows that only the target has.")],
    label: "Verify",
    body: (form) => ({ ...(form.get("table") ? { tables: [form.get("table")] } : {}), ...(form.get("repair") ? { repair: true } : {}) }),
  }),
};

// Show a dialog. Resolve with the body of the request, or with null if the user cancels.
function show({ title, text, fields, label, danger, body }) {
  const dialog = document.getElementById("dialog");
  const form = h(
    "form",
    null,
    h("h2", { id: "dialog-title" }, title),
    h("p", null, prose(text)),
    fields,
    h("div", { class: "actions" }, h("button", { type: "button", value: "cancel" }, "Cancel"), h("button", { type: "submit", class: danger ? "danger solid" : "primary", autofocus: !fields }, label)),
  );
  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    let answer = null;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = body ? body(new FormData(form)) : {};
      dialog.close();
    });
    form.querySelector("[value=cancel]").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => resolve(answer), { once: true });
    dialog.showModal();
  });
}

export const confirmAction = (verb, job, hosts) => show(ACTIONS[verb](job, hosts));

export const confirmHost = (verb, host) =>
  show(
    verb === "drain"
      ? { title: `Drain ${host}?`, text: "Its jobs move to other hosts, and it gets no more.", label: "Drain" }
      : { title: `Let ${host} accept jobs again?`, text: "Jobs that run on other hosts stay there.", label: "Accept jobs" },
  );

export const showKeys = () =>
  show({
    title: "Keyboard",
    text: "",
    fields: h("dl", { class: "keys" }, [["/", "filter jobs"], ["j k", "next, previous job"], ["Enter", "open it"], ["Esc", "back to all jobs"], ["?", "this help"]].map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])),
    label: "Close",
  });

export function loginView(message) {
  return h(
    "form",
    { class: "card login", id: "login", "data-key": "login" },
    h("h1", null, "Sign in"),
    h("p", { class: "quiet" }, prose("With the token of an admin or a viewer, as `serve.yaml` has it.")),
    field("token", "Token", null, { type: "password", required: true, autocomplete: "current-password", id: "token" }),
    message && h("p", { class: "late", role: "alert" }, prose(message)),
    h("button", { type: "submit", class: "primary" }, "Sign in"),
  );
}
