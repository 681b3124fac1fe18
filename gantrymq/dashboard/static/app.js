// The pages of the dashboard. Each page is a function that returns an element; the newest sample of the
// cluster (server-sent events) lets the page that is open load again. Text reaches the page as text nodes only.
import { compact, lineChart } from "./charts.js";

const API = "/api/v1";
const PAGES = [
  ["overview", "Overview"], ["brokers", "Brokers"], ["topics", "Topics"], ["groups", "Groups"], ["clients", "Clients"],
  ["messages", "Messages"], ["dead-letters", "Dead letters"], ["delayed", "Delayed"],
  ["transactions", "Transactions"], ["plugins", "Plugins"], ["log", "Log"], ["api", "API"],
];
const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
let samples = [];
let session = { role: null, tokens: false, version: "" };
let turn = 0;

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

const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const clock = (ms) => (ms ? new Date(ms).toLocaleString("sv") : "–");
const link = (page, name, label = name) => h("a", { href: `#/${page}/${encodeURIComponent(name)}` }, label);
const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);

function table(columns, rows, empty) {
  if (!rows.length) return h("p", { class: "hint" }, empty);
  const head = columns.map(([label, , numeric]) => h("th", { class: numeric && "n", scope: "col" }, label));
  const body = rows.map((row) => h("tr", {}, columns.map(([, cell, numeric]) => h("td", { class: numeric && "n" }, cell(row) ?? "–"))));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

const panel = (title, ...content) => h("section", { class: "panel" }, h("div", { class: "title" }, ...[title].flat().map((part) => (typeof part === "string" ? h("h2", {}, part) : part))), content);
const head = (title, ...more) => h("div", { class: "head" }, h("h1", {}, title), h("span", { class: "space" }), more);

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
function ask({ title, text, fields = [], confirm = "", button, danger = false, work }) {
  const error = h("p", { class: "error", hidden: true, role: "alert" });
  const submit = h("button", { class: `primary ${danger ? "danger" : ""}`, type: "submit" }, button);
  const inputs = Object.fromEntries(fields.map(([name, , attributes = {}]) => [name, h(attributes.tag ?? "input", { name, ...attributes, tag: null })]));
  const typed = confirm && h("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { method: "dialog" }, h("h2", {}, title), text && h("p", {}, text), error,
    fields.map(([name, label]) => h("label", {}, label, inputs[name])),
    confirm && h("label", {}, h("span", {}, "Type ", h("b", {}, confirm), " to confirm"), typed),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (confirm && typed.value !== confirm) { error.textContent = `Type ${confirm} to confirm.`; error.hidden = false; return; }
    submit.disabled = true;
    try {
      const values = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
      const done = await work(values);
      dialog.close();
      if (done) toast(done);
      show();
    } catch (problem) { error.textContent = problem.message; error.hidden = false; submit.disabled = false; }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  (Object.values(inputs)[0] ?? typed ?? submit)?.focus?.();
}

function askToken() {
  if (dialog.open) return;
  ask({
    title: "Sign in", text: "This dashboard needs a token.", button: "Sign in",
    fields: [["token", "Token", { type: "password", autocomplete: "current-password" }]],
    work: async ({ token }) => { session.role = (await api("/session", "POST", { token })).role; listen(); },
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
  const body = h("pre", { tabindex: "0" });
  const trace = h("div", { role: "status" });
  const group = h("input", { type: "text", placeholder: "Group", "aria-label": "Group that did not get the message" });
  const tabs = h("div", { class: "tabs" });
  for (const [name, text] of Object.entries(views))
    tabs.append(h("button", { class: "small", type: "button", onclick: (event) => {
      body.textContent = text;
      for (const each of tabs.children) each.setAttribute("aria-pressed", each === event.currentTarget);
    } }, name));
  const fields = { Id: message.id, Place: `${message.topic}, ${message.broker}, queue ${message.queue}, offset ${message.offset}`, Stored: clock(message.stored), Sent: clock(message.born), Tags: message.tags ?? "–", Keys: message.keys.join(" ") || "–", Size: `${number(message.body_bytes)} bytes`, ...message.properties };
  dialog.replaceChildren(h("div", { class: "content" }, h("h2", {}, "Message"),
    h("dl", {}, Object.entries(fields).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))])),
    tabs, body, trace, message.body_bytes > bytes.length && h("p", { class: "hint" }, `The first ${number(bytes.length)} bytes are shown.`),
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: async (event) => {
        event.currentTarget.disabled = true;
        try { trace.replaceChildren(traceTable((await api(`/messages/${encodeURIComponent(message.id)}/trace`)).events)); }
        catch (problem) { trace.replaceChildren(h("p", { class: "error", role: "alert" }, problem.message)); }
      } }, "Trace"),
      group, h("button", { type: "button", onclick: async () => {
        if (!group.value) { group.focus(); return; }
        try {
          const path = `/topics/${encodeURIComponent(message.topic)}/messages/${encodeURIComponent(message.id)}/why`;
          const found = await api(`${path}?${new URLSearchParams({ group: group.value })}`);
          trace.replaceChildren(table([["Reason", (row) => row.code], ["", (row) => row.text]], found.reasons, "No reason was found."));
        } catch (problem) { trace.replaceChildren(h("p", { class: "error", role: "alert" }, problem.message)); }
      } }, "Why not delivered"),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"))));
  dialog.showModal();
  tabs.firstChild.click();
}

const traceTable = (events) => table([
  ["Time", (row) => clock(row.time_ms)], ["Event", (row) => row.event], ["Group", (row) => row.group],
  ["Client", (row) => h("span", { class: "mono" }, row.client)], ["Took", (row) => (row.duration_ms === null ? "–" : `${row.duration_ms} ms`), true],
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

const roleBadge = (row) => badge(row.role, { master: "good", async_master: "good", sync_master: "good", slave: "", unreachable: "bad", fenced: "bad", missing: "bad" }[row.role] ?? "good");

function brokerTable(rows) {
  return table([
    ["Broker", (row) => [link("brokers", row.address, row.broker), ` · ${row.id}`]],
    ["Role", (row) => [roleBadge(row), row.not_ready && [" ", badge("not ready", "warn")]].flat()],
    ["Address", (row) => h("span", { class: "mono" }, row.address)],
    ["Version", (row) => row.version || "–"],
    ["Stored", (row) => number(row.stored_total), true],
    ["Delivered", (row) => number(row.delivered_total), true],
    ["Lag", (row) => (row.lag_seconds === null ? "–" : `${row.lag_seconds} s`), true],
    ["Disk", (row) => row.disk_ratio === null ? "–" : h("div", { title: `${Math.round(row.disk_ratio * 100)} % used` }, `${Math.round(row.disk_ratio * 100)} %`), true],
  ], rows, "No broker is registered.");
}

function rates(name) {
  return samples.map((sample, index) => {
    const before = samples[index - 1];
    if (!before || sample[name] === undefined || before[name] === undefined) return null;
    return Math.max(0, ((sample[name] - before[name]) * 1000) / (sample.time - before.time));
  }).slice(1);
}

async function overview() {
  const now = samples.findLast((sample) => !sample.problem) ?? (await api("/overview"));
  const times = samples.slice(1).map((sample) => sample.time);
  const stored = rates("stored_total"), delivered = rates("delivered_total");
  const card = (label, value, page) => h("a", { class: "card", href: `#/${page}` }, h("div", { class: "label" }, label), h("div", { class: "value" }, value));
  const masters = now.brokers.filter((row) => !["unreachable", "missing"].includes(row.role)).length;
  return [
    head("Overview"),
    h("div", { class: "cards" },
      card("Brokers", masters === now.brokers.length ? number(masters) : `${masters} of ${now.brokers.length}`, "brokers"), card("Topics", compact(now.topics), "topics"),
      card("Groups", compact(now.groups), "groups"), card("Lag", compact(now.lag), "groups"),
      card("Messages/s in", compact(stored.at(-1) ?? null), "topics"), card("Messages/s out", compact(delivered.at(-1) ?? null), "groups")),
    h("div", { class: "charts" },
      panel(["Messages per second", h("span", { class: "legend" }, h("span", {}, h("i", {}), "in"), h("span", {}, h("i", { class: "second" }), "out"))],
        h("div", { class: "chart" }, lineChart("Messages per second, in and out", times, [stored, delivered]))),
      panel("Lag of all groups", h("div", { class: "chart" }, lineChart("Messages that wait for their groups", times, [samples.slice(1).map((sample) => sample.lag ?? null)])))),
    panel("Brokers", brokerTable(now.brokers)),
    panel("Groups that lag most", groupTable(now.slowest, "No group has committed an offset yet.")),
    h("p", { class: "hint" }, `Nameservers: ${now.nameservers.join(", ")}. GantryMQ ${session.version}. `, h("a", { href: `${API}/openapi.json` }, "API")),
  ];
}

async function brokers(address) {
  if (!address) return [head("Brokers"), panel("All brokers", brokerTable((await api("/brokers")).brokers))];
  const { runtime } = await api(`/brokers/${encodeURIComponent(address)}`);
  const rows = Object.entries(runtime).filter(([, value]) => value.trim());
  return [head(address), panel("What the broker reports", table([["Name", (row) => row[0]], ["Value", (row) => h("span", { class: "mono" }, row[1])]], rows, "The broker does not answer."))];
}

// A list with search and pages, whose state is in the address.
function listing(page, params, found, content) {
  const go = (changes) => { location.hash = `#/${page}?${new URLSearchParams({ ...Object.fromEntries(params), ...changes })}`; };
  let timer;
  const search = h("input", { type: "search", id: "search", placeholder: "Search (press /)", "aria-label": "Search", value: params.get("search") ?? "", oninput: (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => go({ search: event.target.value, page: 1 }), 200);
  } });
  const pages = h("div", { class: "pages" }, `${number(found.total)} in all`, h("span", { class: "space" }),
    h("button", { class: "small", type: "button", disabled: found.page <= 1, onclick: () => go({ page: found.page - 1 }) }, "Previous"),
    `Page ${found.page} of ${found.pages}`,
    h("button", { class: "small", type: "button", disabled: found.page >= found.pages, onclick: () => go({ page: found.page + 1 }) }, "Next"));
  return [h("div", { class: "head search" }, search), h("section", { class: "panel" }, content, pages)];
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

async function topic(name) {
  const found = await api(`/topics/${encodeURIComponent(name)}`);
  return [
    head(name, h("a", { href: `#/messages?topic=${encodeURIComponent(name)}`, class: "button" }, "Messages"), action("Send", () => sendDialog(name)),
      action("Delete", () => ask({
        title: "Delete the topic", text: `Topic ${name} and its ${number(found.messages)} messages are deleted on every master.`, confirm: name, button: "Delete", danger: true,
        work: async () => { await api(`/topics/${encodeURIComponent(name)}`, "DELETE", { confirm: name }); location.hash = "#/topics"; return `Topic ${name} is deleted.`; },
      }), { class: "danger" })),
    panel("Queues", table([
      ["Broker", (row) => row.broker], ["Queue", (row) => number(row.queue), true], ["Oldest", (row) => number(row.min), true],
      ["Next", (row) => number(row.max), true], ["Messages", (row) => number(row.messages), true], ["Last stored", (row) => clock(row.last_stored), true],
    ], found.queues, "No broker has queues of this topic.")),
    panel("Groups", table([["Group", (row) => link("groups", row)]], found.groups, "No group has consumed this topic.")),
  ];
}

const groupTable = (rows, empty) => table([
  ["Group", (row) => link("groups", row.group)], ["Members", (row) => number(row.members), true],
  ["Topics", (row) => number(row.topics), true], ["Lag", (row) => h("span", { class: "lag" }, number(row.lag)), true],
], rows, empty);

async function groups(name, params) {
  if (name) return group(name);
  const found = await api(`/groups?${params}`);
  return [head("Groups"), listing("groups", params, found, groupTable(found.groups, "No group has such a name."))];
}

async function group(name) {
  const found = await api(`/groups/${encodeURIComponent(name)}`);
  const reset = () => ask({
    title: "Reset offsets", confirm: name, button: "Reset", danger: true,
    text: "The group consumes again from there; running members continue at once.",
    fields: [["to", "To: first, last, or a time like 2026-11-23T14:00", { value: "first" }], ["topic", "Topic (empty: all)"]],
    work: async ({ to, topic }) => {
      const where = ["first", "last"].includes(to) ? to : Date.parse(to);
      if (Number.isNaN(where)) throw new Error("The time is not valid.");
      const done = await api(`/groups/${encodeURIComponent(name)}/reset`, "POST", { to: where, topic, confirm: name });
      return `${done.queues.length} queues are reset.`;
    },
  });
  const remove = () => ask({
    title: "Delete the group", text: "Its offsets, retry topic and dead letters are deleted too.", confirm: name, button: "Delete", danger: true,
    work: async () => { await api(`/groups/${encodeURIComponent(name)}`, "DELETE", { confirm: name }); location.hash = "#/groups"; return `Group ${name} is deleted.`; },
  });
  return [
    head(name, action("Reset offsets", reset), action("Delete", remove, { class: "danger" })),
    found.subscriptions_differ && h("p", { class: "error", role: "alert" }, "Members subscribe to different topics or expressions: each misses messages."),
    h("div", { class: "cards" },
      h("div", { class: "card" }, h("div", { class: "label" }, "Lag"), h("div", { class: "value", id: "group-lag" }, number(found.lag))),
      h("div", { class: "card" }, h("div", { class: "label" }, "Members"), h("div", { class: "value" }, number(found.members.length))),
      h("div", { class: "card" }, h("div", { class: "label" }, "Queues"), h("div", { class: "value" }, number(found.queues.length)))),
    panel("Queues", table([
      ["Topic", (row) => link("topics", row.topic)], ["Broker", (row) => row.broker], ["Queue", (row) => number(row.queue), true],
      ["Offset", (row) => number(row.committed), true], ["End", (row) => number(row.end), true], ["Lag", (row) => number(row.lag), true],
      ["Behind", (row) => (row.behind_ms === null ? "–" : `${(row.behind_ms / 1000).toFixed(1)} s`), true],
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
  ["Client", (row) => h("span", { class: "mono" }, row.client_id)], ["Address", (row) => h("span", { class: "mono" }, row.address)],
  ["Language", (row) => row.language],
  ...(withGroup ? [] : [["Subscriptions", (row) => Object.entries(row.subscriptions ?? {}).map(([topic, text]) => `${topic}: ${text}`).join(", ") || "–"]]),
  ["", disconnectAction, true],
], rows, "No member is connected.");

async function clients(_, params) {
  const found = await api(`/clients?${params}`);
  const producers = await api(`/producers?${new URLSearchParams({ search: params.get("search") ?? "", size: 200 })}`);
  return [
    head("Clients"), listing("clients", params, found, memberTable(found.clients, true)),
    panel(`${number(producers.total)} producers`, table([
      ["Group", (row) => row.group], ["Client", (row) => h("span", { class: "mono" }, row.client_id)],
      ["Address", (row) => h("span", { class: "mono" }, row.address)], ["Language", (row) => row.language], ["Version", (row) => row.version],
      ["Last heartbeat", (row) => clock(row.last_heartbeat_ms)], ["", disconnectAction, true],
    ], producers.producers, "No producer is connected.")),
  ];
}

const messageTable = (rows, empty) => table([
  ["Stored", (row) => clock(row.stored)], ["Queue", (row) => `${row.broker} ${row.queue}`], ["Offset", (row) => number(row.offset), true],
  ["Keys", (row) => row.keys.join(" ") || "–"],
  ["Body", (row) => h("span", { class: "mono" }, (row.body_text ?? "(binary)").slice(0, 90))],
  ["", (row) => h("button", { class: "small", type: "button", onclick: () => showMessage(row) }, "Show"), true],
], rows, empty);

async function messages(_, params) {
  const field = (name, label, more = {}) => h("label", {}, label, h("input", { name, value: params.get(name) ?? "", autocomplete: "off", ...more }));
  const form = h("form", { class: "row" }, field("topic", "Topic", { required: true }), field("key", "Key"), field("id", "Message id"),
    field("queue", "Queue", { size: 5 }), field("offset", "Offset", { size: 8 }), field("from", "From: first, last, time", { placeholder: "last" }),
    h("button", { class: "primary", type: "submit" }, "Find"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = [...new FormData(form)].filter(([, value]) => value);
    location.hash = `#/messages?${new URLSearchParams(given)}`;
  });
  const parts = [head("Messages"), panel("Find messages", form)];
  const name = params.get("topic");
  if (!name) return [...parts, h("p", { class: "hint" }, "Name a topic. Without further fields its newest messages are shown.")];
  const query = new URLSearchParams([...params].filter(([key]) => key !== "topic"));
  const from = query.get("from");
  if (from && !["first", "last"].includes(from)) query.set("from", Date.parse(from) || 0);
  const found = await api(`/topics/${encodeURIComponent(name)}/messages?${query}`);
  return [...parts, panel(`${found.messages.length} messages of ${name}`, messageTable(found.messages, "No such message."))];
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
  return [head(`Dead letters of ${name}`, action("Replay", () => replay(name))), panel("Oldest messages", messageTable(found.messages, "There are none."))];
}

function replay(name, count) {
  ask({
    title: "Replay dead letters", confirm: name, button: "Replay",
    text: `${count === undefined ? "All that were not replayed" : number(count)} dead letters go to the group's retry topic; only this group gets them.`,
    work: async () => `${(await api(`/dead-letters/${encodeURIComponent(name)}/replay`, "POST", { confirm: name })).sent} messages are sent again.`,
  });
}

async function delayed() {
  const found = await api("/delayed");
  return [head("Delayed messages"), panel(`${number(found.total)} timed messages wait`, table([
    ["Due", (row) => clock(row.due)], ["Topic", (row) => link("topics", row.topic)], ["Broker", (row) => row.broker],
    ["Queue", (row) => number(row.queue_id), true], ["Id", (row) => h("span", { class: "mono" }, row.message_id)],
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
  const found = (await api("/plugins")).plugins;
  return [head("Plugins"), panel("Plugins of GantryMQ's brokers", table([
    ["Broker", (row) => row.broker], ["Plugin", (row) => row.plugin], ["Version", (row) => row.version],
    ["Calls", (row) => number(row.calls), true], ["Time", (row) => `${(row.seconds * 1000).toFixed(1)} ms`, true],
    ["Errors", (row) => (row.errors ? badge(number(row.errors), "bad") : "0"), true],
    ["Tasks", (row) => Object.entries(row.tasks).map(([name, state]) => badge(`${name}: ${state}`, state === "failed" ? "bad" : ""))],
  ], found, "No broker of GantryMQ is registered."), h("p", { class: "hint" }, "Calls are timed while this page is open, and for a minute after."))];
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
      ["Keys", (row) => row.keys.join(" ") || "–"], ["Body", (row) => h("span", { class: "mono" }, (row.body_text ?? "(binary)").slice(0, 60))],
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
  let timer;
  const search = h("input", { type: "search", id: "search", placeholder: "Search (press /)", "aria-label": "Search", value: params.get("search") ?? "", oninput: (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => go({ search: event.target.value }), 200);
  } });
  return [head("Log events", level), h("div", { class: "head search" }, search), h("section", { class: "panel" }, table([
    ["Time", (row) => clock(row.time)], ["Level", (row) => badge(row.level, { error: "bad", critical: "bad", warning: "warn" }[row.level] ?? "")],
    ["Component", (row) => row.component || "–"], ["Event", (row) => row.event],
    ["Fields", (row) => h("span", { class: "mono" }, Object.entries(row.fields).map(([name, value]) => `${name}=${value}`).join(" "))],
  ], found.events, "No such event."), h("p", { class: "hint" }, "The newest events of the process that serves this dashboard."))];
}

async function apiPage() {
  const found = await api("/openapi.json");
  const rows = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })));
  return [head("API", h("a", { class: "button", href: `${API}/openapi.json` }, "OpenAPI document")), panel(`${found.info.title} ${found.info.version}`, table([
    ["Request", (row) => [badge(row.method, row.method === "GET" ? "good" : "warn"), " ", h("span", { class: "mono" }, row.path)]],
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
const STILL = ["messages", "api"]; // pages that do not load again by themselves

// -------------------------------------------------------------------------------------------------------------- router

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "overview", name = ""] = path.split("/");
  return { page: page in VIEWS ? page : "overview", name: decodeURIComponent(name), params: new URLSearchParams(query) };
}

async function show({ quietly = false } = {}) {
  const mine = ++turn;
  const { page, name, params } = place();
  for (const each of document.querySelectorAll("nav a")) {
    if (each.dataset.page === page) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${name || PAGES.find(([each]) => each === page)[1]} · GantryMQ`;
  let content;
  try { content = await VIEWS[page](name, params); } catch (problem) {
    content = [head(name || PAGES.find(([each]) => each === page)[1]), h("p", { class: "error", role: "alert" }, problem.message)];
  }
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

let events;
function listen() {
  events?.close();
  events = new EventSource(`${API}/stream`);
  events.addEventListener("history", (event) => { samples = JSON.parse(event.data); update(); });
  events.addEventListener("sample", (event) => { samples = [...samples, JSON.parse(event.data)].slice(-150); update(); });
  events.onerror = () => state(false, "no connection to the dashboard");
}

function update() {
  const last = samples.at(-1);
  if (last?.problem) state(false, last.problem);
  else if (last) {
    const lost = last.brokers.filter((row) => ["unreachable", "fenced", "missing"].includes(row.role)).length;
    state(!lost && last.brokers.length > 0, lost ? `${lost} of ${last.brokers.length} brokers lost` : "live");
  }
  if (!dialog.open && !document.hidden && !STILL.includes(place().page)) show({ quietly: true });
}

document.getElementById("nav").append(...PAGES.map(([page, label]) => h("a", { href: `#/${page}`, "data-page": page }, label)));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !dialog.open && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName)) {
    document.getElementById("search")?.focus();
    event.preventDefault();
  }
});
let before = place();
window.addEventListener("hashchange", () => {
  const now = place();
  if (now.page !== before.page || now.name !== before.name) { // not while somebody types a search
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  before = now;
  show();
});
session = await api("/session");
if (session.role) listen();
await show();
