// A form below a plan that looks a key up in one of its stores.
import { announce, change, each, make, say, show, updating } from "./dom.js";
import { many } from "./format.js";

/** Stores that have no rows of a key. */
const WITHOUT_ROWS = new Set(["join"]);

/** Stores whose rows are windows. */
const WITH_WINDOWS = new Set(["windows", "sessions"]);

/** The most rows that are shown: of windows the latest. */
const MOST = 200;

/** The stores of a plan that can be asked for a key, by name. */
export function storesOf({ parts }) {
  const found = parts.flatMap((part) => part.operators).filter(({ name, store }) => name && store && !WITHOUT_ROWS.has(store));
  return found.map(({ name, store }) => ({ name, kind: store })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Makes the form. `ask(path)` returns what the API answers, or a problem; null: it has to be asked
 * for the token first.
 */
export function lookup(topology, ask) {
  const place = (name) => `lookup ${topology} ${name}`;
  const field = (name, label, control, more = "") => {
    change(control, { id: place(name) });
    return make("p", { class: `field ${more}` }, make("label", { for: place(name) }, label), control);
  };
  const store = make("select", {});
  const key = make("input", { autocomplete: "off", spellcheck: "false", placeholder: 'text, digits, or ["a",2]' });
  const [since, until] = ["from", "to"].map(() =>
    make("input", { autocomplete: "off", spellcheck: "false", placeholder: "2013-01-01T05:00:00Z" }),
  );
  const times = [field("from", "Windows from", since), field("to", "and before", until)];
  const stale = make("input", { type: "checkbox", id: place("stale") });
  const copies = make("p", { class: "field check" }, stale, make("label", { for: place("stale") }, "Copies, too"));
  const button = make("button", { type: "submit" }, "Look up");
  const answer = make("div", { class: "answer", tabindex: "-1" });
  const form = make(
    "form",
    { class: "filters", role: "search", "aria-label": `Look up a key in topology ${topology}` },
    field("store", "Store", store),
    field("key", "Key", key, "grow"),
    ...times,
    copies,
    button,
  );
  let stores = [];
  let asked = 0;
  const hasWindows = () => WITH_WINDOWS.has(stores.find(({ name }) => name === store.value)?.kind);
  const showTimes = () => times.forEach((each) => show(each, hasWindows()));
  store.addEventListener("change", showTimes);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    if (hasWindows()) for (const [name, { value }] of [["from", since], ["to", until]]) if (value.trim()) query.set(name, value.trim());
    if (stale.checked) query.set("stale", "true");
    // browsers take these for folders, escaped as well
    const dots = { ".": "2e", "..": "2e2e" }[key.value];
    if (dots) query.set("hex", "true");
    const said = query.size ? `?${query}` : "";
    const path = [topology, "stores", store.value, dots ?? key.value].map(encodeURIComponent).join("/");
    const number = (asked += 1);
    const found = await ask(`/api/v1/topologies/${path}${said}`);
    // a later question has another answer
    if (number !== asked) return;
    answer.replaceChildren(...(found ? answerOf(found) : []));
    if (found) announce(found.problem ?? many(found.rows.length, "row"));
  });
  const element = make("div", { class: "lookup" }, form, answer);
  return updating(element, (plan) => {
    stores = storesOf(plan);
    show(element, stores.length > 0);
    each(store, stores, ({ name }) => name, ({ name }) => make("option", { value: name }, name));
    showTimes();
  });
}

function answerOf({ problem, position, rows }) {
  if (problem) return [make("p", { class: "wrong" }, problem)];
  const place = make("p", { class: "muted" }, placeOf(position));
  if (!rows.length) return [place, make("p", {}, "No window that is open has a record of this key.")];
  const cut = rows.length > MOST ? `The latest ${MOST} of ${rows.length} windows. ` : "";
  if (cut) place.prepend(cut);
  const windows = rows.some((row) => row.window);
  const titles = ["Key", ...(windows ? ["Window"] : []), "Row"];
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const body = rows.slice(-MOST).map((row) => make("tr", {}, ...cellsOf(row, windows)));
  const table = make("table", { class: "data" }, make("thead", {}, head), make("tbody", {}, ...body));
  return [place, make("div", { class: "scroll" }, table)];
}

function cellsOf({ key, window, problem, row, timers }, windows) {
  const due = timers.map(({ name, due: at }) => `timer ${name} ${at}`).join(", ");
  const text = make("code", {}, problem ?? JSON.stringify(row));
  const shown = make("td", {}, text, due ? ` ${due}` : "");
  const bounds = windows ? [make("td", {}, window ? `${window.start} to ${window.end}` : "")] : [];
  return [make("th", { scope: "row" }, key), ...bounds, shown];
}

/** Of which records rows are, in words. */
function placeOf({ partition, offsets, operator_time: time, standby }) {
  const before = Object.entries(offsets).map(([topic, offset]) => `${offset} of ${topic}`);
  const said = [`partition ${partition}`];
  if (standby) {
    const lag = standby.lag === null ? "unknown how far" : many(standby.lag, "offset");
    said.push(`a copy as of offset ${standby.position} of the changelog, ${lag} behind`);
  }
  if (before.length) said.push(`of the records before ${before.join(" and ")}`);
  if (time) said.push(`operator time ${time}`);
  return said.join(" · ");
}
