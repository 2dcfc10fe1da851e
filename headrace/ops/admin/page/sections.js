// What stands around the channels: the verdict, the facts, events, members, configuration.
import { announce, byId, change, each, make, say, show, updating } from "./dom.js";
import { age, clock, many, rate, seconds, short, whole, words } from "./format.js";
import { highest } from "./model.js";

const MARKS = { broken: "✕", look: "!", wanted: "❚❚" };

/** The sentence that stands first, and below it what is wrong. */
export class Verdict {
  constructor(onFind, onAcknowledge) {
    this._onFind = onFind;
    this._onAcknowledge = onAcknowledge;
    this._said = null;
    this._old = false;
  }

  /** Whether what is shown is what was, and nobody knows what is. */
  age(old) {
    if (old === this._old) return;
    this._old = old;
    this._title();
  }

  _title() {
    say(byId("verdict-title"), this._old ? `Last known: ${this._heading.toLowerCase()}` : this._heading);
    change(byId("verdict"), { "data-rank": this._old && this._rank === "well" ? "none" : this._rank });
  }

  update(status, problems, now) {
    this._rank = problems[0]?.rank ?? "well";
    this._heading = titleOf(problems);
    this._title();
    say(byId("verdict-text"), summary(status));
    each(byId("problems"), problems, (item) => `${item.rank} ${item.key ?? item.what}`, () => this._item());
    for (const row of byId("problems").children) row.showPeriod(now);
    if (this._said !== null && this._said !== this._heading) announce(this._heading);
    this._said = this._heading;
  }

  _item() {
    const mark = make("span", { class: "mark", "aria-hidden": "true" });
    const what = make("strong", {});
    const why = make("span", {});
    const when = make("span", { class: "muted" });
    const find = make("button", { type: "button", class: "quiet", on: { click: () => this._onFind(row.item) } }, "Show");
    const acknowledge = make("button", { type: "button", class: "quiet", on: { click: () => this._onAcknowledge(row.item.acknowledge) } }, "Acknowledge");
    const page = make("a", { rel: "noopener noreferrer", target: "_blank" }, "Runbook");
    const command = copyable();
    const row = make("li", {}, mark, make("p", {}, what, " ", why, " ", when, " ", page), find, acknowledge, command.element);
    row.showPeriod = (now) => say(when, period(row.item, now));
    return updating(row, (item) => {
      row.item = item;
      change(row, { "data-rank": item.rank });
      say(mark, MARKS[item.rank]);
      say(what, item.what);
      say(why, item.why ?? "");
      show(find, Boolean(item.find));
      show(acknowledge, Boolean(item.acknowledge));
      show(page, Boolean(item.runbook));
      change(page, { href: item.runbook, "aria-label": item.runbook ? `Runbook: ${item.what}` : null });
      show(command.element, Boolean(item.command));
      command.update(item.command ?? "");
    });
  }
}

/** What is going on, in a few words. */
export function titleOf(problems) {
  const count = (rank) => problems.filter((each) => each.rank === rank).length;
  const parts = [];
  if (count("broken")) parts.push(`${many(count("broken"), "fault")}`);
  if (count("look")) parts.push(many(count("look"), "warning"));
  if (parts.length) return parts.join(", ");
  return problems.length ? "As requested" : "All is well";
}

function period({ since, until }, now) {
  if (!since) return "";
  const end = until ? `, until ${clock(until)} (in ${age(Math.max(0, (Date.parse(until) - now) / 1000))})` : "";
  return `since ${clock(since)} (${age(Math.max(0, (now - Date.parse(since)) / 1000))})${end}`;
}

function summary(status) {
  const { channels } = status;
  const held = channels.flatMap((channel) => channel.partitions);
  const total = channels.reduce((sum, channel) => sum + channel.totals.records_per_s, 0);
  return (
    `${many(channels.length, "channel")}, ${many(held.length, "partition")} here, ${rate(total)} records per second, ` +
    `lag ${short(channels.reduce((sum, channel) => sum + channel.totals.lag, 0))}, ` +
    `longest wait ${seconds(highest(held, (partition) => partition.lag_s))}.`
  );
}

/** A command with a button that copies it, where the browser lets pages copy. */
function copyable() {
  const code = make("code", {});
  const button = make("button", { type: "button", class: "quiet", on: { click: copy } }, "Copy");
  const element = make("span", { class: "command" }, code, navigator.clipboard ? button : null);
  async function copy() {
    await navigator.clipboard.writeText(code.textContent);
    announce("Copied");
    say(button, "Copied");
    setTimeout(() => say(button, "Copy"), 2000);
  }
  return { element, update: (text) => say(code, text) };
}

/** Four boxes: a word that says how it is, and the details. */
export function updateFacts(status) {
  each(byId("facts"), factsOf(status), (fact) => fact.title, () => {
    const [word, details, title] = ["strong", "span", "h2"].map((tag) => make(tag, {}));
    const dot = make("span", { class: "dot", "aria-hidden": "true" });
    const element = make("div", { class: "fact" }, title, make("p", {}, dot, word), details);
    return updating(element, (fact) => {
      change(element, { "data-rank": fact.rank });
      say(title, fact.title);
      say(word, fact.word);
      say(details, fact.details);
    });
  });
}

function factsOf({ process, zookeeper, spark, config, ready, not_ready_because: why }) {
  const connected = zookeeper.state === "connected";
  const facts = [
    {
      title: "Process",
      rank: ready ? "well" : "look",
      word: ready ? "ready" : process.phase === "running" ? "not ready" : process.phase,
      details: ready ? `up ${age(process.uptime_s)} · ${process.host} · pid ${process.pid}` : why.join("; "),
    },
    {
      title: "ZooKeeper",
      rank: connected ? "well" : "broken",
      word: zookeeper.state,
      details: `${zookeeper.session_id ? `session ${zookeeper.session_id} · ` : ""}time-out ${seconds(zookeeper.session_timeout_s)}`,
    },
    {
      title: "Spark",
      rank: spark ? (spark.running ? "well" : "broken") : "none",
      word: spark ? (spark.running ? "running" : "not running") : "not used",
      details: spark ? `${spark.master} · ${many(spark.cores, "task")} at once · pid ${spark.pid ?? "–"} · JVM number ${spark.generation}` : "no channel needs it",
    },
  ];
  if (config) facts.push(configFact(config));
  return facts;
}

function configFact(config) {
  const count = config.pending.length;
  const last = config.last_at ? `last reload ${clock(config.last_at)}: ${config.last_outcome}` : "unchanged since the start";
  if (config.problems.length) return { title: "Configuration", rank: "look", word: "file rejected", details: config.problems[0] };
  return {
    title: "Configuration",
    rank: count ? "look" : "well",
    word: count ? `${whole(count)} pending` : "applied",
    details: last,
  };
}

const KINDS = [
  ["all", "All", () => true],
  ["trouble", "Problems", (event) => event.level !== "info"],
  ["group", "Group", (event) => event.subject === "group"],
  ["pause", "Pauses", (event) => event.subject === "pause"],
  ["config", "Configuration", (event) => event.subject === "config"],
];

/** Events shown; the process keeps some hundreds. */
const SHOWN = 100;

export class EventList {
  constructor() {
    this._kind = KINDS[0];
    this._events = [];
    for (const kind of KINDS) {
      const pressed = String(kind === this._kind);
      byId("event-kinds").append(
        make("button", { type: "button", "aria-pressed": pressed, on: { click: () => this._choose(kind) } }, kind[1]),
      );
    }
  }

  update(events) {
    this._events = events;
    const shown = events.filter(this._kind[2]).slice(-SHOWN).reverse();
    each(byId("events"), shown.length ? shown : [null], (event) => (event ? `${event.event} ${event.first}` : "none"), (event) =>
      event ? newEvent() : make("li", { class: "none" }, "None since the process started."),
    );
  }

  _choose(kind) {
    this._kind = kind;
    [...byId("event-kinds").children].forEach((button, index) => change(button, { "aria-pressed": String(KINDS[index] === kind) }));
    this.update(this._events);
  }
}

function newEvent() {
  const time = make("time", {});
  const name = make("strong", {});
  const count = make("span", { class: "count" });
  const where = make("span", { class: "where" });
  const fields = make("span", { class: "fields" });
  const row = make("li", {}, time, make("p", {}, name, count, " ", where, " ", fields));
  return updating(row, (event) => {
    change(row, { "data-level": event.level });
    change(time, { datetime: event.last });
    say(time, clock(event.last));
    say(name, words(event.event));
    say(count, event.count > 1 ? `× ${whole(event.count)}` : "");
    const { channel, topic, partition, epoch, exc_info: _, ...others } = event.fields;
    const place = topic ? `${topic}${partition === undefined ? "" : `-${partition}`}` : (partition ?? "");
    say(where, [channel, place].filter((part) => part !== undefined && part !== null && part !== "").join(" "));
    say(fields, Object.entries(others).filter(([, value]) => value !== null && value !== "").map(([key, value]) => `${words(key)}: ${value}`).join(" · "));
  });
}

export function updateGroup(members) {
  const groups = members?.groups ?? [];
  each(byId("group"), groups, (group) => group.channel, () => {
    const title = make("h3", {});
    const body = make("tbody", {});
    const heads = ["Member", "Partitions", "Mode", "Host", "Joined"];
    const table = make(
      "table",
      { class: "data members" },
      make("thead", {}, make("tr", {}, ...heads.map((text, index) => make("th", { scope: "col", class: index === 1 ? "number" : null }, text)))),
      body,
    );
    return updating(make("div", {}, title, table), (group) => {
      say(title, `${group.channel}: group ${group.group}`);
      each(body, group.members, (member) => member.name, newMember);
    });
  });
  show(byId("group-problem"), Boolean(members?.problem));
  say(byId("group-problem"), `No answer from ZooKeeper: ${members?.problem}`);
}

function newMember() {
  const cells = ["th", "td", "td", "td", "td"].map((tag, index) => make(tag, { scope: index ? null : "row", class: index === 1 ? "number" : null }));
  const [name, self] = [make("span", {}), make("span", { class: "this" })];
  cells[0].append(name, self);
  return updating(make("tr", {}, ...cells), (member) => {
    say(name, member.name);
    say(self, member.this ? "this process" : "");
    say(cells[1], whole(member.owned));
    say(cells[2], member.problem ?? `${words(member.mode ?? "–")}${member.draining ? ", draining" : ""}`);
    say(cells[3], member.host ?? "–");
    change(cells[3], { title: member.pid ? `pid ${member.pid}, Headrace ${member.software}` : null });
    say(cells[4], member.since ? `${age((Date.now() - Date.parse(member.since)) / 1000)} ago` : "–");
  });
}

/** Where desired and applied differ; `ask` opens the form for the token. */
export function updateConfig(status, config, hasToken, ask) {
  const rows = [];
  const summary = status.config;
  rows.push(["file", `File: ${status.process.config_file}`]);
  for (const problem of summary?.problems ?? []) rows.push([`problem ${problem}`, `Not applied: ${problem}`]);
  for (const change of summary?.pending ?? []) {
    rows.push([`pending ${change.path}`, pendingText(change, config)]);
  }
  if (summary && !summary.problems.length && !summary.pending.length) rows.push(["same", "The running configuration matches the file."]);
  rows.push(config ? ["applied", config] : ["token", hasToken]);
  each(byId("config"), rows, ([key]) => key, ([key]) => {
    if (key === "applied") return appliedConfig();
    if (key === "token") return tokenHint(ask);
    const line = make("p", {});
    return updating(line, ([, text]) => say(line, text));
  });
}

/** A pending change, with both values where the whole configuration is known. */
function pendingText({ path, reason, since }, config) {
  const text = `${path} is pending since ${clock(since)}: ${reason}`;
  if (!config?.desired) return text;
  const [now, then] = [config.applied, config.desired].map((document) => valueAt(document, path));
  return `${text} Running: ${JSON.stringify(now)}. In the file: ${JSON.stringify(then)}.`;
}

const valueAt = (document, path) => path.split(".").reduce((found, step) => found?.[step], document) ?? null;

function appliedConfig() {
  const pre = make("pre", { tabindex: "0", role: "group", "aria-label": "Settings in effect" });
  const element = make("details", {}, make("summary", {}, "All settings in effect"), pre);
  return updating(element, ([, config]) => say(pre, lines(config.applied).join("\n")));
}

function tokenHint(ask) {
  const text = make("span", {});
  const button = make("button", { type: "button", class: "quiet", on: { click: ask } }, "Enter the token");
  return updating(make("p", {}, text, " ", button), ([, hasToken]) =>
    say(text, hasToken ? "This is not the process's token." : "Enter the token to see all settings."),
  );
}

/** A document as indented lines. */
function lines(value, indent = "") {
  return Object.entries(value).flatMap(([key, each]) => {
    if (each !== null && typeof each === "object" && Object.keys(each).length) {
      return [`${indent}${key}:`, ...lines(each, `${indent}  `)];
    }
    return [`${indent}${key}: ${typeof each === "string" ? each : JSON.stringify(each)}`];
  });
}
