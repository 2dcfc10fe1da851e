// Topologies as they are planned: parts as boxes with their operators, and the topics between them.
import { byId, change, draw, each, make, say, show, updating } from "./dom.js";
import { bytes, rate, seconds, short, words } from "./format.js";
import { lookup } from "./lookup.js";

/** Operators that stand as topics. */
const ENDS = new Set(["stream", "to"]);

/** What is said of an operator with figures: what it has not is left out. */
const FIGURES = [
  ["rows", ({ rows }) => rows, short],
  ["bytes", ({ bytes: size }) => size, bytes],
  ["records", ({ records }) => records, short],
  ["late", ({ late }) => late, short],
  ["alone", ({ alone }) => alone, short],
  ["closed", ({ closed }) => closed, short],
  ["skipped", ({ skipped }) => skipped, short],
  ["time lag", ({ operator_time_lag_s: lag }) => lag, seconds],
];

/**
 * Draws the plans. `onOpen(channel)` is called with the channel that was clicked, `ask(path)` for
 * rows of stores.
 */
export class Topologies {
  constructor(onOpen, ask) {
    this._onOpen = onOpen;
    this._ask = ask;
    this._list = byId("plans");
    new ResizeObserver(() => this._connect()).observe(this._list);
  }

  /** Show the plans with what the status says of their channels now. */
  update(plans, channels) {
    show(byId("topologies"), plans.length > 0);
    const known = new Map(channels.map((channel) => [channel.name, channel]));
    each(this._list, plans.map((plan) => ({ plan, known })), ({ plan }) => plan.name, ({ plan }) => planOf(plan, this._onOpen, this._ask));
    this._connect();
  }

  _connect() {
    for (const plan of this._list.children) plan.connect();
  }
}

/**
 * The columns of a plan from left to right: topics and parts in turn. A part comes after the topics
 * that it reads, but for those that it writes itself, and a topic after the parts that write it.
 */
export function columnsOf({ parts }) {
  const levels = new Map();
  const written = new Set(parts.flatMap((part) => part.writes));
  for (const topic of parts.flatMap((part) => part.reads)) if (!written.has(topic)) levels.set(topic, 0);
  const ends = new Map();
  for (const part of parts) {
    const read = part.reads.filter((topic) => !part.writes.includes(topic));
    const level = Math.max(0, ...read.map((topic) => levels.get(topic) ?? 0)) + 1;
    ends.set(part, level);
    for (const topic of part.writes) levels.set(topic, Math.max(levels.get(topic) ?? 0, level + 1));
  }
  const columns = [];
  const put = (level, item) => (columns[level] ??= []).push(item);
  for (const [topic, level] of levels) put(level, { topic });
  for (const [part, level] of ends) put(level, { part });
  return columns.filter(Boolean);
}

/** The arrows of a plan: pairs of the keys of what they connect. */
export function arrowsOf({ parts }) {
  return parts.flatMap((part) => [
    ...part.reads.map((topic) => [`topic ${topic}`, `part ${part.channel}`]),
    ...part.writes.map((topic) => [`part ${part.channel}`, `topic ${topic}`]),
  ]);
}

const keyOf = ({ topic, part }) => (part ? `part ${part.channel}` : `topic ${topic}`);

function planOf({ name: topology }, onOpen, ask) {
  const name = make("h3", {});
  const about = make("p", { class: "about" });
  const columns = make("div", { class: "columns-of" });
  const arrows = draw("svg", { class: "arrows", "aria-hidden": "true" });
  const drawing = make("div", { class: "drawing" }, arrows, columns);
  const scroll = make("div", { class: "sideways", role: "group", tabindex: "0" }, drawing);
  const keys = lookup(topology, ask);
  const element = make("article", { class: "panel plan" }, make("header", {}, name, about), scroll, keys);
  let pairs = [];
  element.connect = () => connect(drawing, arrows, pairs);
  return updating(element, ({ plan, known }) => {
    pairs = arrowsOf(plan);
    say(name, plan.name);
    say(about, `group ${plan.group}`);
    keys.update(plan);
    change(scroll, { "aria-label": `Plan of topology ${plan.name}` });
    const places = new Map(plan.parts.flatMap((part) => part.operators.map((each) => [each.place, each])));
    const items = columnsOf(plan).map((column, index) => ({ index, column: column.map((item) => ({ ...item, known, places })) }));
    each(columns, items, ({ index }) => String(index), () => columnOf(onOpen));
  });
}

function columnOf(onOpen) {
  const element = make("div", { class: "column-of" });
  return updating(element, ({ column }) =>
    each(element, column, keyOf, ({ part }) => (part ? partOf(onOpen) : topicOf())),
  );
}

function topicOf() {
  const name = make("span", {});
  const element = make("p", { class: "topic-of" }, make("span", { class: "unseen" }, "topic "), name);
  return updating(element, ({ topic }) => {
    say(name, topic);
    change(element, { title: topic });
  });
}

function partOf(onOpen) {
  let channel = null;
  const open = (event) => {
    event.preventDefault();
    onOpen(channel);
  };
  const name = make("a", { on: { click: open } });
  const state = make("span", { class: "chip" });
  const figures = make("p", { class: "figures-of" });
  const operators = make("ol", {});
  const element = make("div", { class: "part-of" }, make("h4", {}, name, " ", state), figures, operators);
  return updating(element, ({ part, known, places }) => {
    channel = part.channel;
    const found = known.get(channel);
    const word = found ? (found.paused && found.state === "running" ? "paused" : found.state) : "not there";
    say(name, channel);
    change(name, { href: `#${encodeURIComponent(channelId(channel))}` });
    say(state, words(word));
    change(state, { "data-state": word });
    sayAll(figures, found ? partFigures(found) : []);
    const shown = part.operators.filter((operator) => !ENDS.has(operator.kind));
    const own = new Map((found?.state_by_key?.operators ?? []).map((each) => [each.name, each]));
    const items = shown.map((operator, index) => ({
      operator,
      from: sourcesOf(operator, shown[index - 1], places),
      // a change of key is called as the aggregate behind it
      figures: operator.kind === "key_by" ? null : own.get(operator.name),
    }));
    each(operators, items.length ? items : [{ operator: null }], ({ operator }) => String(operator?.place), operatorOf);
  });
}

/** The id of the panel of a channel. */
export const channelId = (name) => `channel ${name}`;

function partFigures({ totals }) {
  const said = [["records", `${rate(totals.records_per_s)} records/s`], ["lag", `lag ${short(totals.lag)}`]];
  if (totals.enforced) said.push(["waits", `did not wait ${short(totals.enforced)} times`]);
  return said;
}

/** Say figures by their names, each in a place of its own, so that longer numbers shift nothing. */
function sayAll(element, figures) {
  each(element, figures, ([name]) => name, () => {
    const figure = make("span", {});
    return updating(figure, ([, text]) => say(figure, text));
  });
}

/** Where an operator's rows come from, unless that is the operator above it alone. */
function sourcesOf(operator, above, places) {
  if (operator.reads) return [operator.reads];
  const inputs = operator.inputs.map((place) => places.get(place)).filter(Boolean);
  if (inputs.length === 1 && inputs[0] === above && !above.writes) return [];
  return inputs.map((input) => input.writes ?? input.reads ?? labelOf(input));
}

const labelOf = ({ kind, name }) => (name ? `${words(kind)} ${name}` : words(kind));

function operatorOf() {
  const label = make("strong", {});
  const store = make("span", { class: "store-of" });
  const from = make("span", { class: "muted" });
  const figures = make("span", { class: "figures-of" });
  const element = make("li", {}, label, " ", store, " ", from, " ", figures);
  return updating(element, ({ operator, from: sources, figures: found }) => {
    say(label, operator ? labelOf(operator) : "rows as they are");
    say(store, operator?.store ? `store of ${words(operator.store)}` : "");
    show(store, Boolean(operator?.store));
    say(from, sources?.length ? `of ${sources.join(", ")}` : "");
    sayAll(figures, found ? operatorFigures(found) : []);
    change(element, { "data-late": found?.late ? true : null });
  });
}

function operatorFigures(found) {
  return FIGURES.map(([name, read, form]) => [name, read(found), form])
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value, form]) => [name, `${name} ${form(value)}`]);
}

/** Draw arrows where things stand now: beside each other, or one below the other on a phone. */
function connect(drawing, arrows, pairs) {
  const frame = drawing.getBoundingClientRect();
  if (!frame.width) return;
  const boxes = new Map([...drawing.querySelectorAll(".part-of, .topic-of")].map((box) => [box.dataset.key, box.getBoundingClientRect()]));
  change(arrows, { width: Math.round(frame.width), height: Math.round(frame.height) });
  const lines = pairs.flatMap(([from, to]) => {
    const [start, end] = [boxes.get(from), boxes.get(to)];
    return start && end ? [{ key: `${from} > ${to}`, path: pathOf(start, end, frame) }] : [];
  });
  const known = new Map([...arrows.children].map((child) => [child.dataset.key, child]));
  for (const { key, path } of lines) {
    let line = known.get(key);
    known.delete(key);
    if (!line) {
      line = draw("path", { class: "arrow" });
      line.dataset.key = key;
      arrows.append(line);
    }
    change(line, { d: path });
  }
  for (const gone of known.values()) gone.remove();
}

/** The half length and the half width of an arrow's head, in points. */
const [LONG, WIDE] = [7, 4];

function pathOf(start, end, frame) {
  const beside = end.left >= start.right || start.left >= end.right;
  const back = beside ? end.left < start.left : end.top < start.top;
  const [x1, y1, x2, y2] = (
    beside
      ? [back ? start.left : start.right, middle(start), back ? end.right : end.left, middle(end)]
      : [center(start), back ? start.top : start.bottom, center(end), back ? end.bottom : end.top]
  ).map((value, index) => Math.round(value - (index % 2 ? frame.top : frame.left)));
  const sign = back ? -1 : 1;
  if (beside) {
    const half = Math.round((x1 + x2) / 2);
    return `M${x1} ${y1}C${half} ${y1} ${half} ${y2} ${x2 - sign * LONG} ${y2}M${x2} ${y2}l${-sign * LONG} ${-WIDE}v${2 * WIDE}z`;
  }
  const half = Math.round((y1 + y2) / 2);
  return `M${x1} ${y1}C${x1} ${half} ${x2} ${half} ${x2} ${y2 - sign * LONG}M${x2} ${y2}l${-WIDE} ${-sign * LONG}h${2 * WIDE}z`;
}

const middle = ({ top, bottom }) => (top + bottom) / 2;
const center = ({ left, right }) => (left + right) / 2;
