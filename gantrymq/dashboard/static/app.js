// The pages of the dashboard. Each page is a function that returns an element; the newest sample of the
// cluster (server-sent events) lets the page that is open load again. Text reaches the page as text nodes only.
import { compact, lineChart } from "./charts.js";

const API = "/api/v1";
// name, label, icon, section that begins with it
const PAGES = [
  ["overview", "Overview", "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z"],
  ["brokers", "Brokers", "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01", "Cluster"],
  ["topics", "Topics", "M4 6h16M4 12h16M4 18h10"],
  ["groups", "Groups", "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM3 20c0-3.5 2.5-6 6-6s6 2.5 6 6M16 5.5a3 3 0 0 1 0 5M18 14.5c2 .8 3 3 3 5.5"],
  ["clients", "Clients", "M4 5h16v11H4zM9 20h6M12 16v4"],
  ["messages", "Messages", "M4 5h16v14H4zM4 7l8 6 8-6", "Messages"],
  ["dead-letters", "Dead letters", "M4 5h16v14H4zM9.5 9.5l5 5M14.5 9.5l-5 5"],
  ["delayed", "Delayed", "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3 2"],
  ["transactions", "Transactions", "M4 8h13l-3-3M20 16H7l3 3"],
  ["plugins", "Plugins", "M9 3v5M15 3v5M6 8h12v4a6 6 0 0 1-12 0zM12 18v3", "System"],
  ["log", "Log", "M6 3h9l4 4v14H6zM9 12h7M9 16h7M9 8h3"],
  ["api", "API", "M8 6l-5 6 5 6M16 6l5 6-5 6"],
];
const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
let samples = [];
let session = { role: null, tokens: false, version: "" };
let turn = 0;
let loading = 0; // pages that are being loaded

// ------------------------------------------------------------------------------------------------------------ elements

function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  svg.firstChild.setAttribute("d", path);
  return svg;
}

const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const clock = (ms) => {
  if (!ms) return "–";
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return `${ms} ms`; // clients may record any number
  return h("time", { class: "nowrap", datetime: time.toISOString() }, time.toLocaleString("sv"));
};
const mono = (text, more = "") => h("span", { class: `mono ${more}` }, text);
const short = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
function duration(ms) {
  const units = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];
  for (const [size, unit] of units) if (ms >= size * 1.5) return `${Math.round(ms / size)} ${unit}`;
  return `${(ms / 1000).toFixed(ms < 1000 ? 1 : 0)} s`;
}
const link = (page, name, label = name) => h("a", { href: `#/${page}/${encodeURIComponent(name)}` }, label);
const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
const share = (value, max, label, marks = {}) => (max > 0 ? h("meter", { min: 0, max, value, "aria-label": label, ...marks }) : null);

// `columns`: [label, cell of a row, numeric]. On a phone each row is a card: a style sheet that makes no table of the
// elements takes the roles that they have by themselves, so that these are given.
function table(columns, rows, empty) {
  if (!rows.length) return emptyState(empty);
  const head = columns.map(([label, , numeric]) => h("th", { class: numeric && "n", scope: "col", role: "columnheader" }, label || h("span", { class: "unseen" }, "Actions")));
  const body = rows.map((row) => h("tr", { role: "row" }, columns.map(([label, cell, numeric], index) => (
    h("td", { class: [numeric && "n", !index && "first"].filter(Boolean).join(" ") || null, role: "cell", "data-label": label }, cell(row) ?? "–")))));
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, body)));
}

const emptyState = (text) => h("div", { class: "empty" }, icon("M3 13h5l1.5 3h5L16 13h5M3 13l3-8h12l3 8v6H3z"), h("p", {}, text));

const panel = (title, ...content) => h("section", { class: "panel" }, h("div", { class: "title" }, ...[title].flat().map((part) => (typeof part === "string" ? h("h2", {}, part) : part))), content);
const head = (title, ...more) => h("div", { class: "head" }, h("h1", {}, title), h("span", { class: "space" }), more);
// The head of one thing, with a link to the list it is of.
const headOf = (page, title, ...more) => h("div", { class: "head" },
  h("div", {}, h("a", { class: "crumb", href: `#/${page}` }, PAGES.find(([each]) => each === page)[1]), h("h1", {}, title)), h("span", { class: "space" }), more);

// ----------------------------------------------------------------------------------------------------------------- API

async function api(path, method = "GET", body = undefined) {
  const options = { method, headers: {} };
  if (method !== "GET") {
    options.headers = { "Content-Type": "application/json", "X-GantryMQ-Change": "1" };
    options.body = JSON.stringify(body ?? {});
  }
  const response = await fetch(API + path, options);
  const found = await response.json();
  if (response.ok) return found;
  if (response.status === 401 && path !== "/session") askToken();
  throw new Error(found.error?.message ?? `status ${response.status}`);
}

function toast(text) {
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.add("on");
  setTimeout(() => element.classList.remove("on"), 4000);
}

// ------------------------------------------------------------------------------------------------------------- dialogs

// A form in a dialog. `fields`: [name, label, attributes]; `confirm`: a text that the user must type.
// `preview`: what the form would do, as an element, from its values.
function ask({ title, text, fields = [], confirm = "", button, danger = false, preview = null, work }) {
  const error = h("p", { class: "error", hidden: true, role: "alert" });
  const submit = h("button", { class: `primary ${danger ? "danger" : ""}`, type: "submit" }, button);
  const inputs = Object.fromEntries(fields.map(([name, , attributes = {}]) => [name, h(attributes.tag ?? "input", { name, ...attributes, tag: null, options: null }, (attributes.options ?? []).map((each) => h("option", { value: each[0] }, each[1])))]));
  const typed = confirm && h("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const valuesOf = () => Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
  const form = h("form", { method: "dialog" }, h("h2", {}, title), text && h("p", {}, text), error,
    fields.map(([name, label]) => h("label", {}, label, inputs[name])),
    preview && h("div", { role: "status" }, h("button", { type: "button", class: "small", onclick: async (event) => {
      const place = event.currentTarget.parentElement, again = event.currentTarget;
      try { place.replaceChildren(again, await preview(valuesOf())); error.hidden = true; }
      catch (problem) { error.textContent = problem.message; error.hidden = false; }
    } }, "Preview")),
    confirm && h("label", {}, h("span", {}, "Type ", h("b", {}, confirm), " to confirm"), typed),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (confirm && typed.value !== confirm) { error.textContent = `Type ${confirm} to confirm.`; error.hidden = false; return; }
    submit.disabled = true;
    try {
      const done = await work(valuesOf());
      dialog.close();
      if (done) toast(done);
      show();
    } catch (problem) { error.textContent = problem.message; error.hidden = false; submit.disabled = false; }
  });
  dialog.className = "";
  dialog.setAttribute("aria-label", title);
  dialog.replaceChildren(form);
  dialog.showModal();
  (Object.values(inputs)[0] ?? typed ?? submit)?.focus?.();
}

function askToken() {
  if (dialog.open) return;
  ask({
    title: "Sign in", text: "This dashboard needs a token.", button: "Sign in",
    fields: [["token", "Token", { type: "password", autocomplete: "current-password" }]],
    work: async ({ token }) => { session.role = (await api("/session", "POST", { token })).role; listen(); foot(); },
  });
}

const action = (label, run, more = {}) => (session.role === "admin" ? h("button", { type: "button", onclick: run, ...more }, label) : null);

function showMessage(message) {
  const bytes = Uint8Array.from(atob(message.body_base64), (letter) => letter.charCodeAt(0));
  const views = {};
  if (message.body_text !== null) {
    try { views.JSON = JSON.stringify(JSON.parse(message.body_text), null, 2); } catch { /* no JSON */ }
    views.Text = message.body_text;
  }
  views.Hex = hex(bytes);
  const body = h("pre", { tabindex: "0", "aria-label": "Body" });
  const found = h("div", { role: "status" });
  const load = async (work) => {
    try { found.replaceChildren(await work()); found.scrollIntoView({ block: "nearest" }); }
    catch (problem) { found.replaceChildren(h("p", { class: "error", role: "alert" }, problem.message)); }
  };
  const group = h("input", { type: "text", placeholder: "Group", "aria-label": "Group that did not get the message", required: true });
  const why = h("form", { class: "row" }, group, h("button", {}, "Why not delivered"));
  why.addEventListener("submit", (event) => {
    event.preventDefault();
    load(async () => {
      const path = `/topics/${encodeURIComponent(message.topic)}/messages/${encodeURIComponent(message.id)}/why`;
      const { reasons } = await api(`${path}?${new URLSearchParams({ group: group.value })}`);
      return table([["Reason", (row) => row.code], ["Explanation", (row) => row.text]], reasons, "No reason was found.");
    });
  });
  const tabs = h("div", { class: "tabs" });
  for (const [name, text] of Object.entries(views))
    tabs.append(h("button", { class: "small", type: "button", onclick: (event) => {
      body.textContent = text;
      body.className = name === "Hex" ? "hex" : "";
      for (const each of tabs.children) each.setAttribute("aria-pressed", each === event.currentTarget);
    } }, name));
  const { KEYS, TAGS, UNIQ_KEY, ...properties } = message.properties; // shown as id, keys and tags
  const fields = { Id: message.id, Topic: link("topics", message.topic), Place: `${message.broker}, queue ${message.queue}, offset ${message.offset}`, Stored: clock(message.stored), Sent: clock(message.born),
    Tags: message.tags ?? "–", Keys: message.keys.join(" ") || "–", Size: `${number(message.body_bytes)} bytes`, Attempts: message.attempts || null, ...properties };
  dialog.className = "wide";
  dialog.setAttribute("aria-label", "Message");
  dialog.replaceChildren(h("div", { class: "content" },
    h("div", { class: "title" }, h("h2", {}, "Message"), h("button", { class: "icon", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("M6 6l12 12M18 6L6 18"))),
    h("dl", {}, Object.entries(fields).filter(([, value]) => value !== null).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, value)])),
    tabs, body, message.body_bytes > bytes.length && h("p", { class: "hint" }, `The first ${number(bytes.length)} bytes are shown.`), found,
    h("div", { class: "buttons" }, why,
      h("button", { type: "button", onclick: () => load(async () => traceTable((await api(`/messages/${encodeURIComponent(message.id)}/trace`)).events)) }, "Trace"))));
  dialog.showModal();
  tabs.firstChild.click();
}

const traceTable = (events) => table([
  ["Time", (row) => clock(row.time_ms)], ["Event", (row) => row.event], ["Group", (row) => row.group],
  ["Client", (row) => mono(row.client)], ["Took", (row) => (row.duration_ms === null ? "–" : `${row.duration_ms} ms`), true],
  ["Retries", (row) => number(row.retries), true], ["Result", (row) => badge(row.result, row.result === "success" ? "good" : "warn")],
], events, "No client has recorded a trace of this message.");

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const text = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48)} ${text}`);
  }
  return lines.join("\n");
}

// --------------------------------------------------------------------------------------------------------------- pages

const roleBadge = (row) => badge(row.role, { master: "good", async_master: "good", sync_master: "good", slave: "", unreachable: "bad", refusing: "bad", fenced: "bad", missing: "bad" }[row.role] ?? "good");

function brokerTable(rows) {
  return table([
    ["Broker", (row) => [link("brokers", row.address, row.broker), ` · ${row.id}`]],
    ["Role", (row) => [roleBadge(row), row.not_ready && [" ", badge("not ready", "warn")]].flat()],
    ["Address", (row) => mono(row.address, "nowrap")],
    ["Version", (row) => row.version || "–"],
    ["Stored", (row) => number(row.stored_total), true],
    ["Delivered", (row) => number(row.delivered_total), true],
    ["Lag", (row) => (row.lag_seconds === null ? "–" : `${row.lag_seconds} s`), true],
    ["Disk", (row) => row.disk_ratio === null ? "–" : h("span", { class: "nowrap" }, `${Math.round(row.disk_ratio * 100)} %`, share(row.disk_ratio, 1, "Disk used", { low: 0.75, high: 0.9, optimum: 0 })), true],
  ], rows, "No broker is registered.");
}

// A counter of each broker in the sample, by address: another process that becomes the master has counters of its own.
// Slaves store the messages of their masters, which do not count twice.
function counters(sample, name) {
  const rows = (sample.brokers ?? []).filter((row) => row[name] !== null && row.role !== "missing" && (name !== "stored_total" || row.id === 0));
  return new Map(rows.map((row) => [row.address, row[name]]));
}

// Messages per second between two samples, of the brokers that are in both: one that missed a sample would add its
// whole counter. null: no broker is.
function rates(name) {
  return samples.slice(1).map((sample, index) => {
    const before = counters(samples[index], name);
    const both = [...counters(sample, name)].filter(([address]) => before.has(address));
    if (!both.length) return null;
    const more = both.reduce((sum, [address, value]) => sum + Math.max(0, value - before.get(address)), 0);
    return (more * 1000) / (sample.time - samples[index].time);
  });
}

async function overview() {
  const now = samples.findLast((sample) => !sample.problem) ?? (await api("/overview"));
  const times = samples.slice(1).map((sample) => sample.time);
  const stored = rates("stored_total"), delivered = rates("delivered_total");
  const masters = now.brokers.filter((row) => !["unreachable", "refusing", "missing"].includes(row.role)).length;
  return [
    head("Overview"),
    h("div", { class: "cards" },
      card("Brokers", masters === now.brokers.length ? number(masters) : `${masters} of ${now.brokers.length}`, "brokers"), card("Topics", compact(now.topics), "topics"),
      card("Groups", compact(now.groups), "groups"), card("Lag", compact(now.lag), "groups"),
      card("Messages/s in", compact(stored.at(-1) ?? null), "topics"), card("Messages/s out", compact(delivered.at(-1) ?? null), "groups")),
    h("div", { class: "charts" },
      panel(["Messages per second", h("span", { class: "legend" }, h("span", {}, h("i", {}), "in"), h("span", {}, h("i", { class: "second" }), "out"))],
        h("div", { class: "chart" }, lineChart("Messages per second, in and out", times, [stored, delivered], ["in", "out"]))),
      panel("Lag of all groups", h("div", { class: "chart" }, lineChart("Messages that wait for their groups", times, [samples.slice(1).map((sample) => sample.lag ?? null)], ["waiting"])))),
    panel("Brokers", brokerTable(now.brokers)),
    panel("Groups that lag most", groupTable(now.slowest, now.lag === null ? "A broker did not answer." : "No group has committed an offset yet.")),
    h("p", { class: "hint" }, `Nameservers: ${now.nameservers.join(", ")}. GantryMQ ${session.version}. `, h("a", { href: `${API}/openapi.json` }, "API")),
  ];
}

async function brokers(address, params) {
  if (!address) return [head("Brokers"), panel("All brokers", brokerTable((await api("/brokers")).brokers))];
  const { runtime } = await api(`/brokers/${encodeURIComponent(address)}`);
  const wanted = (params.get("search") ?? "").toLowerCase();
  const rows = Object.entries(runtime).filter(([name, value]) => value.trim() && name.toLowerCase().includes(wanted));
  const search = searchField(params, (changes) => { location.hash = `#/brokers/${encodeURIComponent(address)}?${new URLSearchParams(changes)}`; });
  return [headOf("brokers", address), h("div", { class: "head search" }, search),
    panel("What the broker reports", table([["Name", (row) => row[0]], ["Value", (row) => mono(row[1])]], rows, "The broker reports nothing of this name."))];
}

// One timer for all fields, because the page is replaced while somebody types. Whoever leaves the page is not sent back.
let searching;
function searchField(params, go) {
  return h("input", { type: "search", id: "search", placeholder: "Search (press /)", "aria-label": "Search", value: params.get("search") ?? "", oninput: (event) => {
    const at = location.hash;
    clearTimeout(searching);
    searching = setTimeout(() => { if (location.hash === at) go({ search: event.target.value }); }, 200);
  } });
}

function card(label, value, page, id = null) {
  const content = [h("div", { class: "label" }, label), h("div", { class: "value", id }, value)];
  return page ? h("a", { class: "card", href: `#/${page}` }, content) : h("div", { class: "card" }, content);
}

// A list with search and pages, whose state is in the address.
function listing(page, params, found, content, title = null, counted = "") {
  const go = (changes) => { location.hash = `#/${page}?${new URLSearchParams({ ...Object.fromEntries(params), ...changes })}`; };
  const search = searchField(params, (changes) => go({ ...changes, page: 1 }));
  const pages = h("div", { class: "pages" }, `${number(found.total)} ${counted}`.trim(), h("span", { class: "space" }),
    h("button", { class: "small", type: "button", disabled: found.page <= 1, onclick: () => go({ page: found.page - 1 }) }, "Previous"),
    `Page ${found.page} of ${found.pages}`,
    h("button", { class: "small", type: "button", disabled: found.page >= found.pages, onclick: () => go({ page: found.page + 1 }) }, "Next"));
  return [h("div", { class: "head search" }, search), title ? panel(title, content, pages) : h("section", { class: "panel" }, content, pages)];
}

async function topics(name, params) {
  if (name) return topic(name);
  const found = await api(`/topics?${params}`);
  const create = action("Create topic", () => ask({
    title: "Create a topic", button: "Create", text: "It is created on every master.",
    fields: [["topic", "Name", { required: true, autocomplete: "off" }], ["queues", "Queues on each broker", { type: "number", min: 1, max: 1024, value: 8 }]],
    work: async ({ topic, queues }) => { await api("/topics", "POST", { topic, queues: Number(queues) }); return `Topic ${topic} is created.`; },
  }), { class: "primary" });
  return [head("Topics", create), listing("topics", params, found, table([
    ["Topic", (row) => link("topics", row.topic)],
    ["Queues", (row) => number(row.queues), true],
    ["Messages", (row) => number(row.messages), true],
    ["Last stored", (row) => clock(row.last_stored), true],
  ], found.topics, "No topic has such a name."))];
}

function sendDialog(name) {
  ask({
    title: `Send a message to ${name}`, button: "Send",
    fields: [["body", "Body", { tag: "textarea", required: true }], ["tags", "Tag"], ["keys", "Keys, separated by spaces"]],
    work: async (values) => {
      const done = await api(`/topics/${encodeURIComponent(name)}/messages`, "POST", values);
      return `Stored in queue ${done.queue} at offset ${done.offset}.`;
    },
  });
}

// What the page of one thing has shown since it was opened: for its chart.
let seen = { key: "", times: [], values: [] };
function history(key, value) {
  if (seen.key !== key) seen = { key, times: [], values: [] };
  seen.times = [...seen.times, Date.now()].slice(-150);
  seen.values = [...seen.values, value].slice(-150);
  return seen;
}

async function topic(name) {
  const found = await api(`/topics/${encodeURIComponent(name)}`);
  const stored = found.queues.reduce((sum, row) => sum + row.max, 0);
  const { times, values } = history(`topic ${name}`, stored);
  const rate = values.map((value, index) => (index ? Math.max(0, ((value - values[index - 1]) * 1000) / Math.max(1, times[index] - times[index - 1])) : null));
  const most = Math.max(...found.queues.map((row) => row.messages));
  return [
    headOf("topics", name, h("a", { href: `#/messages?topic=${encodeURIComponent(name)}`, class: "button" }, "Messages"), action("Send", () => sendDialog(name)),
      action("Delete", () => ask({
        title: "Delete the topic", text: `Topic ${name} and its ${number(found.messages)} messages are deleted on every master.`, confirm: name, button: "Delete", danger: true,
        work: async () => { await api(`/topics/${encodeURIComponent(name)}`, "DELETE", { confirm: name }); location.hash = "#/topics"; return `Topic ${name} is deleted.`; },
      }), { class: "danger" })),
    h("div", { class: "cards" }, card("Messages", number(found.messages)), card("Queues", number(found.queues.length)), card("Groups", number(found.groups.length)), card("Messages/s in", compact(rate.at(-1)))),
    panel("Messages per second", h("div", { class: "chart" }, lineChart("Messages per second that are stored", times.slice(1), [rate.slice(1)], ["in"], 900))),
    panel("Queues", table([
      ["Broker", (row) => row.broker], ["Queue", (row) => number(row.queue), true], ["First offset", (row) => number(row.min), true],
      ["Next offset", (row) => number(row.max), true], ["Messages", (row) => [number(row.messages), share(row.messages, most, "Share of the fullest queue")], true], ["Last stored", (row) => clock(row.last_stored), true],
    ], found.queues, "No broker has queues of this topic.")),
    panel("Groups", table([["Group", (row) => link("groups", row)]], found.groups, "No group has consumed this topic.")),
  ];
}

function groupTable(rows, empty) {
  const most = Math.max(...rows.map((row) => row.lag));
  return table([
    ["Group", (row) => link("groups", row.group)], ["Members", (row) => (row.members || !row.lag ? number(row.members) : badge("none", "warn")), true],
    ["Topics", (row) => number(row.topics), true], ["Lag", (row) => [number(row.lag), share(row.lag, most, "Share of the largest lag")], true],
  ], rows, empty);
}

async function groups(name, params) {
  if (name) return group(name);
  const found = await api(`/groups?${params}`);
  return [head("Groups"), listing("groups", params, found, groupTable(found.groups, "No group has such a name."))];
}

async function group(name) {
  const found = await api(`/groups/${encodeURIComponent(name)}`);
  const { times, values } = history(`group ${name}`, found.lag);
  const most = Math.max(...found.queues.map((row) => row.lag));
  const behind = found.queues.map((row) => row.behind_ms).filter((each) => each !== null);
  const target = ({ to, time, topic }) => {
    const where = to === "time" ? Date.parse(time) : to;
    if (Number.isNaN(where)) throw new Error("Give a time.");
    return { to: where, topic };
  };
  const topicsOf = [...new Set(found.queues.map((row) => row.topic))];
  const send = (values, more) => api(`/groups/${encodeURIComponent(name)}/reset`, "POST", { ...target(values), ...more });
  const leftOut = (unread) => (unread.length ? `Without a master: ${unread.join(", ")}. Offsets that only they have are left out.` : "");
  const reset = () => {
    ask({
      title: "Reset offsets", confirm: name, button: "Reset", danger: true,
      text: "The group continues from another place; running members move there at once.",
      fields: [
        ["to", "To", { tag: "select", options: [["first", "the first message"], ["last", "the end: skip all that waits"], ["time", "a time"]] }],
        ["time", "Time", { type: "datetime-local", step: 1 }],
        ["topic", "Topic", { tag: "select", options: [["", "all topics"], ...topicsOf.map((each) => [each, each])] }],
      ],
      preview: async (values) => {
        const { queues, unread } = await send(values, { dry_run: true });
        return h("div", {}, unread.length > 0 && h("p", { class: "hint" }, leftOut(unread)), table([["Topic", (row) => row.topic], ["Queue", (row) => `${row.broker} ${row.queue}`], ["Now", (row) => number(row.before), true], ["Then", (row) => number(row.after), true]],
          queues, "No queue changes."));
      },
      work: async (values) => {
        const { queues, unread } = await send(values, { confirm: name });
        return `${queues.length} queues are reset. ${leftOut(unread)}`;
      },
    });
    const [to, time] = ["to", "time"].map((each) => dialog.querySelector(`[name=${each}]`));
    const arrange = () => { time.parentElement.hidden = to.value !== "time"; };
    to.addEventListener("change", arrange);
    arrange();
  };
  const remove = () => ask({
    title: "Delete the group", text: "Its offsets, retry topic and dead letters are deleted too.", confirm: name, button: "Delete", danger: true,
    work: async () => { await api(`/groups/${encodeURIComponent(name)}`, "DELETE", { confirm: name }); location.hash = "#/groups"; return `Group ${name} is deleted.`; },
  });
  return [
    headOf("groups", name, action("Reset offsets", reset), action("Delete", remove, { class: "danger" })),
    found.subscriptions_differ && h("p", { class: "error", role: "alert" }, "Members subscribe to different topics or expressions: each misses messages."),
    h("div", { class: "cards" }, card("Lag", number(found.lag), null, "group-lag"),
      card("Behind", behind.length ? duration(Math.max(...behind)) : "–"), card("Members", number(found.members.length)), card("Queues", number(found.queues.length))),
    panel("Lag", h("div", { class: "chart" }, lineChart("Messages that wait for the group", times, [values], ["waiting"], 900))),
    panel("Queues", table([
      ["Topic", (row) => link("topics", row.topic)], ["Broker", (row) => row.broker], ["Queue", (row) => number(row.queue), true],
      ["Offset", (row) => number(row.committed), true], ["End", (row) => number(row.end), true],
      ["Lag", (row) => [number(row.lag), share(row.lag, most, "Share of the largest lag")], true],
      ["Behind", (row) => (row.behind_ms === null ? "–" : duration(row.behind_ms)), true],
    ], found.queues, "The group has committed no offset.")),
    panel("Members", memberTable(found.members, false)),
  ];
}

const disconnectAction = (row) => action("Disconnect", () => ask({
  title: "Disconnect the client", confirm: row.client_id, button: "Disconnect", danger: true,
  text: "All of its connections are closed, and its queues go to other members. A client that works connects again.",
  work: async () => `${(await api(`/clients/${encodeURIComponent(row.client_id)}/disconnect`, "POST", { confirm: row.client_id })).closed} connections are closed.`,
}), { class: "small" });

const memberTable = (rows, withGroup) => table([
  ...(withGroup ? [["Group", (row) => link("groups", row.group)]] : []),
  ["Client", (row) => mono(row.client_id)], ["Address", (row) => mono(row.address, "nowrap")],
  ["Language", (row) => row.language],
  ...(withGroup ? [] : [["Subscriptions", (row) => Object.entries(row.subscriptions ?? {}).map(([topic, text]) => `${topic}: ${text}`).join(", ") || "–"]]),
  ["", disconnectAction, true],
], rows, "No member is connected.");

async function clients(_, params) {
  const found = await api(`/clients?${params}`);
  const producers = await api(`/producers?${new URLSearchParams({ search: params.get("search") ?? "", size: 200 })}`);
  return [
    head("Clients"), listing("clients", params, found, memberTable(found.clients, true), "Consumers", "groups"),
    panel("Producers", table([
      ["Group", (row) => row.group], ["Client", (row) => mono(row.client_id)],
      ["Address", (row) => mono(row.address, "nowrap")], ["Language", (row) => h("span", { class: "nowrap" }, `${row.language} ${row.version}`)],
      ["Heartbeat", (row) => clock(row.last_heartbeat_ms)], ["", disconnectAction, true],
    ], producers.producers, "No producer is connected.")),
  ];
}

const messageTable = (rows, empty) => table([
  ["Stored", (row) => clock(row.stored)], ["Queue", (row) => h("span", { class: "nowrap" }, `${row.broker} · ${row.queue}`)], ["Offset", (row) => number(row.offset), true],
  ["Keys", (row) => row.keys.join(" ") || "–"],
  ["Body", (row) => mono(row.body_text === null ? `${number(row.body_bytes)} bytes, binary` : short(row.body_text, 90))],
  ["", (row) => h("button", { class: "small", type: "button", onclick: () => showMessage(row) }, "Show"), true],
], rows, empty);

async function messages(_, params) {
  const field = (name, label, more = {}) => h("label", {}, label, h("input", { name, value: params.get(name) ?? "", autocomplete: "off", ...more }));
  const ways = { newest: "Newest", oldest: "Oldest", time: "From a time", key: "By key", id: "By message id", offset: "By queue and offset" };
  const way = h("select", { name: "way" }, Object.entries(ways).map(([value, text]) => h("option", { value, selected: (params.get("way") ?? "newest") === value }, text)));
  const known = h("datalist", { id: "known-topics" });
  const fields = {
    time: [field("time", "Time", { type: "datetime-local", step: 1 })], key: [field("key", "Key")], id: [field("id", "Message id", { size: 34 })],
    offset: [field("queue", "Queue", { type: "number", min: 0, size: 5 }), field("offset", "Offset", { type: "number", min: 0 })],
  };
  const named = field("topic", "Topic", { required: true, list: "known-topics", oninput: async (event) => {
    const found = await api(`/topics?${new URLSearchParams({ search: event.target.value, size: 20 })}`);
    known.replaceChildren(...found.topics.map((row) => h("option", { value: row.topic })));
  } });
  const arrange = () => { for (const [name, labels] of Object.entries(fields)) for (const each of labels) each.hidden = name !== way.value; };
  way.addEventListener("change", arrange);
  arrange();
  const form = h("form", { class: "row" }, named, known, h("label", {}, "Find", way), Object.values(fields), h("button", { class: "primary", type: "submit" }, "Find"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const names = ["topic", "way", ...(fields[way.value] ?? []).map((label) => label.lastChild.name)];
    const given = [...new FormData(form)].filter(([name, value]) => names.includes(name) && value);
    const next = `#/messages?${new URLSearchParams(given)}`;
    if (next === location.hash) show(); else location.hash = next;
  });
  const parts = [head("Messages"), panel("Find messages", form)];
  const name = params.get("topic");
  if (!name) return [...parts, h("section", { class: "panel" }, emptyState("Choose a topic to see its messages."))];
  const query = new URLSearchParams([...params].filter(([key, value]) => value && ["key", "id", "queue", "offset"].includes(key)));
  if (params.get("way") === "oldest") query.set("from", "first");
  if (params.get("time")) query.set("from", Date.parse(params.get("time")) || 0);
  const found = await api(`/topics/${encodeURIComponent(name)}/messages?${query}`);
  return [...parts, panel([`${found.messages.length} messages of`, link("topics", name)], messageTable(found.messages, "No such message."))];
}

async function deadLetters(name) {
  if (!name) {
    const found = (await api("/dead-letters")).groups;
    return [head("Dead letters"), panel("Groups", table([
      ["Group", (row) => link("dead-letters", row.group)], ["Messages", (row) => number(row.messages), true],
      ["Not replayed", (row) => number(row.unreplayed), true],
      ["", (row) => action("Replay", () => replay(row.group, row.unreplayed), { class: "small", disabled: !row.unreplayed }), true],
    ], found, "No group has dead letters."))];
  }
  const found = await api(`/dead-letters/${encodeURIComponent(name)}`);
  return [headOf("dead-letters", name, action("Replay", () => replay(name))), panel("Oldest messages", messageTable(found.messages, "There are none."))];
}

function replay(name, count) {
  ask({
    title: "Replay dead letters", confirm: name, button: "Replay",
    text: `${count === undefined ? "All that were not replayed" : number(count)} dead letters go to the group's retry topic; only this group gets them.`,
    work: async () => {
      const { sent } = await api(`/dead-letters/${encodeURIComponent(name)}/replay`, "POST", { confirm: name });
      const found = await api("/dead-letters").catch(() => null); // a request sends a limited number in a limited time
      const left = found?.groups.find((row) => row.group === name)?.unreplayed;
      return `${number(sent)} messages are sent again.${left ? ` ${number(left)} are left: replay again.` : ""}`;
    },
  });
}

async function delayed() {
  const found = await api("/delayed");
  return [head("Delayed messages"), panel(`${found.complete ? "" : "At least "}${number(found.total)} timed messages wait`,
    !found.complete && h("p", { class: "hint" }, "More wait than one request reads: those that were stored last are not shown, and a recalled one may be."),
    found.unread.length > 0 && h("p", { class: "hint" }, `Without a master that can be read: ${found.unread.join(", ")}. What waits there is missing.`), table([
    ["Due", (row) => clock(row.due)], ["Topic", (row) => link("topics", row.topic)], ["Broker", (row) => row.broker],
    ["Queue", (row) => number(row.queue_id), true], ["Id", (row) => mono(row.message_id)],
    ["", (row) => row.handle && action("Recall", () => ask({
      title: "Recall the message", confirm: row.topic, button: "Recall", danger: true, text: `Message ${row.message_id} is not delivered.`,
      work: async () => `Message ${(await api("/delayed/recall", "POST", { topic: row.topic, handle: row.handle, confirm: row.topic })).id} is recalled.`,
    }), { class: "small" }), true],
  ], found.messages, "No timed message waits.")),
  panel("Messages with a delay level", table([
    ["Broker", (row) => row.broker], ["Level", (row) => number(row.level), true], ["Delay", (row) => row.delay, true], ["Waiting", (row) => number(row.waiting), true],
  ], found.levels, "No message waits in a delay level."))];
}

async function plugins() {
  const found = (await api("/plugins")).plugins.sort((one, other) => other.seconds - one.seconds);
  const most = Math.max(...found.map((row) => row.seconds));
  return [head("Plugins"), panel("Cost of the plugins", h("p", { class: "hint" }, "Calls are timed while this page is open, and for a minute after. The costly ones are first."), table([
    ["Plugin", (row) => row.plugin], ["Broker", (row) => row.broker], ["Version", (row) => row.version],
    ["Calls", (row) => number(row.calls), true], ["Time", (row) => h("span", { class: "nowrap" }, `${(row.seconds * 1000).toFixed(1)} ms`, share(row.seconds, most, "Share of the costliest plugin")), true],
    ["Each call", (row) => (row.calls ? `${((row.seconds * 1e6) / row.calls).toFixed(1)} µs` : "–"), true],
    ["Errors", (row) => (row.errors ? badge(number(row.errors), "bad") : "0"), true],
    ["Tasks", (row) => Object.entries(row.tasks).map(([name, state]) => badge(state === "running" ? name : `${name}: ${state}`, { running: "good", failed: "bad" }[state] ?? "")) ],
  ], found, "No broker of GantryMQ is registered."))];
}

async function transactions() {
  const found = await api("/transactions");
  return [
    head("Transactions"),
    panel("Open transactions", table([
      ["Broker", (row) => row.broker], ["Open", (row) => number(row.open), true], ["Strategy", (row) => row.strategy],
    ], found.brokers, "No broker is registered."), h("p", { class: "hint" }, "Brokers of RocketMQ do not report their open transactions.")),
    panel("Discarded transactions", table([
      ["Discarded", (row) => clock(row.stored)], ["Topic", (row) => row.properties.REAL_TOPIC], ["Producer group", (row) => row.properties.PGROUP],
      ["Keys", (row) => row.keys.join(" ") || "–"], ["Body", (row) => mono(row.body_text === null ? `${number(row.body_bytes)} bytes, binary` : short(row.body_text, 60))],
      ["", (row) => h("span", {}, h("button", { class: "small", type: "button", onclick: () => showMessage(row) }, "Show"), " ",
        action("Resume", () => ask({
          title: "Resume the transaction", button: "Resume", text: "The broker asks the producers of the group again how the transaction ended.",
          work: async () => { await api(`/transactions/${encodeURIComponent(row.offset_id)}/resume`, "POST"); return "The check-backs resume."; },
        }), { class: "small" })), true],
    ], found.discarded, "No transaction was discarded: producers have answered all check-backs.")),
  ];
}

async function log(_, params) {
  const found = await api(`/log-events?${params}`);
  const go = (changes) => { location.hash = `#/log?${new URLSearchParams({ ...Object.fromEntries(params), ...changes })}`; };
  const level = h("select", { "aria-label": "Lowest level", onchange: (event) => go({ level: event.target.value }) },
    ["info", "warning", "error"].map((each) => h("option", { value: each, selected: (params.get("level") ?? "info") === each }, each)));
  const search = searchField(params, go);
  return [head("Log events", level), h("div", { class: "head search" }, search), h("section", { class: "panel" }, table([
    ["Time", (row) => clock(row.time)], ["Level", (row) => badge(row.level, { error: "bad", critical: "bad", warning: "warn" }[row.level] ?? "")],
    ["Component", (row) => row.component || "–"], ["Event", (row) => row.event],
    ["Fields", (row) => mono(Object.entries(row.fields).map(([name, value]) => `${name}=${value}`).join(" "))],
  ], found.events, "No such event."), h("p", { class: "hint" }, "The newest events of the process that serves this dashboard."))];
}

async function apiPage() {
  const found = await api("/openapi.json");
  const rows = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })));
  return [head("API", h("a", { class: "button", href: `${API}/openapi.json` }, "OpenAPI document")), panel(`${found.info.title} ${found.info.version}`, table([
    ["Request", (row) => [badge(row.method, row.method === "GET" ? "good" : "warn"), mono(row.path)]],
    ["Meaning", (row) => row.operation.summary],
    ["Parameters", (row) => parametersOf(row.operation).map(([name, text]) => h("div", {}, h("span", { class: "mono" }, name), text && `: ${text}`))],
  ], rows, "The document has no requests."))];
}

function parametersOf(operation) {
  const body = operation.requestBody?.content?.["application/json"]?.schema?.properties ?? {};
  return [...(operation.parameters ?? []).map((each) => [each.name, each.description ?? ""]),
    ...Object.entries(body).map(([name, schema]) => [name, schema.description ?? ""])];
}

const VIEWS = { overview, brokers, topics, groups, clients, messages, "dead-letters": deadLetters, delayed, transactions, plugins, log, api: apiPage };
const STILL = ["messages", "delayed", "api"]; // pages that do not load again by themselves

// -------------------------------------------------------------------------------------------------------------- router

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "overview", name = ""] = path.split("/");
  return { page: page in VIEWS ? page : "overview", name: decodeURIComponent(name), params: new URLSearchParams(query) };
}

// `quietly`: load the page again; not while it is loading, which may take longer than the time between two samples.
async function show({ quietly = false } = {}) {
  if (quietly && loading) return;
  const mine = ++turn;
  loading++;
  const { page, name, params } = place();
  for (const each of document.querySelectorAll("nav a")) {
    if (each.dataset.page === page) {
      each.setAttribute("aria-current", "page");
      if (!quietly) each.scrollIntoView({ block: "nearest", inline: "center" });
    }
    else each.removeAttribute("aria-current");
  }
  document.title = `${name || PAGES.find(([each]) => each === page)[1]} · GantryMQ`;
  let content;
  try { content = await VIEWS[page](name, params); } catch (problem) {
    content = [head(name || PAGES.find(([each]) => each === page)[1]), h("p", { class: "error", role: "alert" }, problem.message)];
  }
  loading--;
  if (mine !== turn) return;
  const focused = document.activeElement;
  const keep = focused?.id === "search" ? [focused.value, focused.selectionStart] : null;
  if (quietly && !keep && main.contains(focused) && focused !== main) return; // do not move what somebody uses
  const scroll = window.scrollY;
  main.replaceChildren(...content.flat(3).filter(Boolean));
  const search = document.getElementById("search");
  if (keep && search) { search.focus(); search.value = keep[0]; search.setSelectionRange(keep[1], keep[1]); }
  if (quietly) window.scrollTo(0, scroll);
}

function state(good, text) {
  document.querySelector("#state .dot").className = `dot ${good ? "good" : "bad"}`;
  document.getElementById("state-text").textContent = text;
}

const LISTEN_AGAIN_MS = 5000;
let events, listening;
function listen() {
  events?.close();
  clearTimeout(listening);
  events = new EventSource(`${API}/stream`);
  events.addEventListener("history", (event) => { samples = JSON.parse(event.data); update(); });
  events.addEventListener("sample", (event) => { samples = [...samples, JSON.parse(event.data)].slice(-150); update(); });
  events.onerror = () => {
    state(false, "no connection to the dashboard");
    if (events.readyState === EventSource.CLOSED) listening = setTimeout(listenAgain, LISTEN_AGAIN_MS);
  };
}

// A browser reconnects after a broken connection, but not after a refusal: a session that has ended, or a busy server.
async function listenAgain() {
  const found = await api("/session").catch(() => null); // null: nobody answers
  if (found) { session = found; foot(); }
  if (found?.role) listen();
  else if (found && !dialog.open) askToken();
  else listening = setTimeout(listenAgain, LISTEN_AGAIN_MS);
}

function update() {
  const last = samples.at(-1);
  if (last?.problem) state(false, last.problem);
  else if (last) {
    const lost = last.brokers.filter((row) => ["unreachable", "refusing", "fenced", "missing"].includes(row.role)).length;
    state(!lost && last.brokers.length > 0, lost ? `${lost} of ${last.brokers.length} brokers lost` : "live");
  }
  if (!dialog.open && !document.hidden && !STILL.includes(place().page)) show({ quietly: true });
}

const THEMES = {
  "": ["Colors: as the system", "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 3v18M12 7h6M12 11h8M12 15h7"],
  light: ["Colors: light", "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5"],
  dark: ["Colors: dark", "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z"],
};
// The buttons below the pages: colors, and the end of a session.
function foot() {
  const theme = document.getElementById("theme"), leave = document.getElementById("sign-out");
  const chosen = localStorage.getItem("theme") ?? "";
  const [label, path] = THEMES[chosen] ?? THEMES[""];
  theme.replaceChildren(icon(path));
  theme.title = label;
  theme.setAttribute("aria-label", label);
  theme.onclick = () => {
    const names = Object.keys(THEMES), next = names[(names.indexOf(chosen) + 1) % names.length];
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
    foot();
  };
  leave.hidden = !session.tokens || !session.role;
  leave.replaceChildren(icon("M10 4H5v16h5M14 8l4 4-4 4M18 12H9"));
  leave.title = `Sign out (${session.role})`;
  leave.setAttribute("aria-label", leave.title);
  leave.onclick = async () => { await api("/session", "DELETE"); events?.close(); location.reload(); };
}

document.getElementById("nav").append(...PAGES.flatMap(([page, label, path, section]) => [
  section && h("div", { class: "section", "aria-hidden": "true" }, section), h("a", { href: `#/${page}`, "data-page": page }, icon(path), label)].filter(Boolean)));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !dialog.open && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName)) {
    document.getElementById("search")?.focus();
    event.preventDefault();
  }
});
let before = place();
window.addEventListener("hashchange", () => {
  const now = place();
  if (dialog.open) dialog.close(); // a link in it was followed
  if (now.page !== before.page || now.name !== before.name) { // not while somebody types a search
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  before = now;
  show();
});
session = await api("/session");
foot();
if (session.role) listen();
await show();
