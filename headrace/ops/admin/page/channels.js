// One panel for each channel: numbers, the last hour, stages, threads, and its partitions at a glance.
import { chart, sparkline } from "./chart.js";
import { gridOf } from "./cells.js";
import { change, each, make, say, show, updating } from "./dom.js";
import { age, bytes, many, percent, rate, seconds, short, whole, words } from "./format.js";
import { highest } from "./model.js";
import { channelId } from "./topologies.js";

const NUMBERS = [
  [() => "records per second", ({ channel }) => rate(channel.totals.records_per_s)],
  [() => "records behind", ({ channel }) => short(channel.totals.lag)],
  [() => "longest wait", ({ channel }) => seconds(highest(channel.partitions, (each) => each.lag_s))],
  [() => "catches up in", ({ channel }) => catchUp(channel.totals)],
  [() => "sink lag", ({ channel }) => (channel.totals.lag ? seconds(sinkAge(channel)) : "none")],
  [({ partitions }) => `of ${many(partitions.length, "partition")} here`, ({ channel }) => whole(channel.partitions.length)],
  [() => "held in memory", ({ channel }) => bytes(channel.totals.held_bytes)],
  [() => "errors since start", ({ channel }) => short(channel.totals.errors)],
  [() => "skipped · overflow · dead letters", ({ channel: { totals } }) => `${short(totals.skipped_records)} · ${short(totals.overflow_records)} · ${short(totals.dead_letters)}`],
];

/** Of a channel that keeps state by key. */
const STATE_NUMBERS = [
  [() => "keys", (state) => short(state.rows)],
  [() => "bytes of state", (state) => (state.bytes === null ? "–" : bytes(state.bytes))],
  [() => "unwritten, in memory", (state) => bytes(state.unwritten_bytes)],
  [() => "timers", (state) => short(state.timers)],
  [() => "late · rejected since start", (state) => `${short(state.late)} · ${short(state.rejected)}`],
  [() => "in quarantine", (state) => short(state.quarantined)],
  [(state) => (state.restoring ? `to restore, of ${many(state.restoring, "partition")}` : "to restore"), (state) => short(state.restore_remaining)],
  [() => "stream time lag", (state) => seconds(state.stream_time_lag_s)],
  [(state) => (state.standbys?.length ? `standby of ${many(state.standbys.length, "partition")}, behind` : "standbys, behind"), (state) => (state.standbys?.length ? short(highest(state.standbys, (each) => each.lag)) : "none")],
];

/** What a reducer declares of its states, and a processor of its pool: names come with the data. */
function declaredNumbers({ state_by_key: state, pool }) {
  const found = [];
  for (const phase of state?.phases ?? []) {
    found.push([words(phase.name), short(phase.keys)]);
    if (phase.oldest_s !== null) found.push([`oldest ${words(phase.name)}`, seconds(phase.oldest_s)]);
  }
  for (const numbers of [state?.amounts, state?.counts, pool?.ended]) {
    for (const [name, value] of Object.entries(numbers ?? {})) found.push([words(name), short(value)]);
  }
  if (pool) found.push(["threads busy", `${whole(pool.busy)} of ${whole(pool.threads)}`], ["calls waiting", short(pool.waiting)]);
  if (pool?.left) found.push(["threads lost to hung calls", whole(pool.left)]);
  return found;
}

function declaredOf(element) {
  return (channel) =>
    each(element, declaredNumbers(channel), ([name]) => name, ([name]) => {
      const value = make("dd", {});
      return updating(make("div", {}, make("dt", {}, name), value), ([, said]) => say(value, said));
    });
}

function numbersOf(list) {
  const numbers = list.map(() => {
    const [label, value] = [make("dt", {}), make("dd", {})];
    return { label, value, element: make("div", {}, label, value) };
  });
  const element = make("dl", { class: "numbers" }, ...numbers.map((each) => each.element));
  const update = (data) =>
    list.forEach(([name, read], index) => {
      say(numbers[index].label, name(data));
      say(numbers[index].value, read(data));
    });
  return { element, update };
}

/** How long it takes until nothing is left to read. */
function catchUp({ lag, lag_per_s: trend, catch_up_s: left }) {
  if (!lag || left === 0) return "caught up";
  if (left !== null) return age(left);
  return trend > 0 ? "falls back" : "–";
}

/** The heads of the table, and what a row says; what is not a number stands at the left. */
const COLUMNS = [
  ["State", (channel) => stateOf(channel), false],
  ["Records per second", ({ totals }) => rate(totals.records_per_s)],
  ["Records behind", ({ totals }) => short(totals.lag)],
  ["Longest wait", ({ partitions }) => seconds(highest(partitions, (each) => each.lag_s))],
  ["Catches up in", ({ totals }) => catchUp(totals)],
  ["To acknowledge", ({ rejects }) => short(rejects ? rejects.dead_letters + rejects.skipped_records + rejects.rejected_facts : 0)],
  ["Errors", ({ totals }) => short(totals.errors)],
  ["Partitions", ({ partitions, topics }) => `${whole(partitions.length)} of ${whole(Object.values(topics).reduce((sum, count) => sum + count, 0))}`],
];

const stateOf = (channel) => (channel.paused && channel.state === "running" ? "paused" : channel.state);

/** A line for each channel; `onToggle(name)` opens or closes its details. */
export function channelTable(onToggle) {
  const body = make("tbody", {});
  const heads = ["Channel", ...COLUMNS.map(([head]) => head)];
  const isNumber = (index) => index > 0 && COLUMNS[index - 1][2] !== false;
  const element = make(
    "table",
    { class: "data" },
    make("caption", { class: "unseen" }, "Channels of this process"),
    make("thead", {}, make("tr", {}, ...heads.map((text, index) => make("th", { scope: "col", class: isNumber(index) ? "number" : null }, text)))),
    body,
  );
  function update(channels, isOpen) {
    each(body, channels, ({ name }) => name, ({ name }) => {
      const button = make("button", { type: "button", class: "quiet", on: { click: () => onToggle(name) } }, name);
      const cells = COLUMNS.map((_, index) => make("td", { class: isNumber(index + 1) ? "number" : null }));
      const chip = make("span", { class: "chip" });
      cells[0].append(chip);
      return updating(make("tr", {}, make("th", { scope: "row" }, button), ...cells), (channel) => {
        change(button, { "aria-expanded": String(isOpen(channel.name)) });
        COLUMNS.forEach(([, read], index) => say(index ? cells[index] : chip, read(channel)));
        change(chip, { "data-state": channel.paused ? "paused" : channel.state });
      });
    });
  }
  return { element, update };
}

function sinkAge(channel) {
  const ages = channel.partitions.filter((each) => each.lag > 0).map((each) => each.sink_age_s).filter((value) => value !== null);
  return ages.length ? Math.min(...ages) : null;
}

/** A panel; `onPick(wanted)` is called with what to find in the table. */
export function channelPanel(onPick) {
  const name = make("h3", {});
  const state = make("span", { class: "chip" });
  const about = make("p", { class: "about" });
  const member = make("p", { class: "about end" });
  const numbers = numbersOf(NUMBERS);
  const stateNumbers = numbersOf(STATE_NUMBERS);
  const stateTitle = make("h4", {}, "State by key");
  const declared = make("dl", { class: "numbers declared" });
  const declaredTitle = make("h4", {}, "Phases and calls");
  const updateDeclared = declaredOf(declared);
  const rates = chart("Records per second", rate);
  const lag = chart("Records behind", short);
  const stages = stageTable();
  const threads = make("div", { class: "threads" });
  const grid = gridOf(onPick);
  const element = make(
    "article",
    { class: "panel channel", tabindex: "-1" },
    make("header", {}, name, state, about, member),
    numbers.element,
    stateTitle,
    stateNumbers.element,
    declaredTitle,
    declared,
    make("div", { class: "charts" }, rates.element, lag.element),
    grid.element,
    make("div", { class: "inside" }, stages.element, make("div", {}, make("h4", {}, "Threads, last minute"), threads)),
  );
  return updating(element, (data) => {
    const { channel, points, end } = data;
    change(element, { id: channelId(channel.name), "data-state": channel.paused ? "paused" : channel.state });
    say(name, channel.name);
    say(state, stateOf(channel));
    change(state, { "data-state": channel.paused ? "paused" : channel.state });
    say(about, `group ${channel.group} · ${channel.processor} → ${channel.sink ?? "no sink"} · ${channel.delivery}`);
    const lease = channel.member.lease_s;
    say(member, `member ${channel.member.state}${lease === null ? "" : ` · lease ${lease.toFixed(0)} s`}`);
    numbers.update(data);
    for (const part of [stateTitle, stateNumbers.element]) show(part, channel.state_by_key !== null);
    if (channel.state_by_key) stateNumbers.update(channel.state_by_key);
    updateDeclared(channel);
    for (const part of [declaredTitle, declared]) show(part, declared.childElementCount > 0);
    rates.update(points, (point) => point.records_per_s, end);
    lag.update(points, (point) => point.lag, end);
    stages.update(channel, points, end);
    each(threads, channel.threads, (item) => item.role, threadBar);
    grid.update(data.partitions);
  });
}

const STAGES = {
  on_next_batch: "processor",
  arrow: "to Arrow",
  reduce: "reduce",
  sink_commit: "write, commit",
  commit: "offset commit",
};

/** Stages that are Spark's in channels with a Spark reducer, and nobody's else. */
const SPARKS = new Set(["reduce", "sink_commit"]);

function stageName(stage, processor) {
  const name = STAGES[stage] ?? words(stage);
  return processor === "spark" && SPARKS.has(stage) ? `Spark: ${name}` : name;
}

function stageTable() {
  const body = make("tbody", {});
  const heads = ["Stage", "Mean", "Per second", "Busy", "Last hour"];
  const table = make(
    "table",
    { class: "data stages" },
    make("thead", {}, make("tr", {}, ...heads.map((text, index) => make("th", { scope: "col", class: index ? "number" : null }, text)))),
    body,
  );
  const batches = make("span", { class: "muted" });
  const element = make("div", {}, make("h4", {}, "Batches by stage, last minute ", batches), table);
  let processor = null;
  function update(channel, points, end) {
    processor = channel.processor;
    say(batches, points.length ? `${rate(points.at(-1).batches_per_s)} batches a second` : "");
    each(body, channel.stages, (stage) => stage.stage, () => {
      const spark = sparkline();
      const cells = ["number", "number", "number"].map((name) => make("td", { class: name }));
      const head = make("th", { scope: "row" });
      return updating(make("tr", {}, head, ...cells, make("td", { class: "number" }, spark.element)), (stage) => {
        say(head, stageName(stage.stage, processor));
        say(cells[0], seconds(stage.mean_s));
        say(cells[1], rate(stage.per_s));
        say(cells[2], percent(stage.busy));
        spark.update(points, (point) => point.busy[stage.stage] ?? 0, end);
      });
    });
  }
  return { element, update };
}

function threadBar() {
  const bar = make("div", { class: "bar-of", "aria-hidden": "true" });
  const name = make("span", { class: "role" });
  const text = make("span", { class: "muted" });
  const element = make("div", { class: "thread" }, make("div", { class: "thread-text" }, name, text), bar);
  return updating(element, ({ role, parts }) => {
    const shares = Object.entries(parts);
    say(name, `${role}s`);
    say(text, shares.filter(([, part]) => part >= 0.005).map(([doing, part]) => `${words(doing)} ${percent(part)}`).join(" · "));
    each(bar, shares, ([doing]) => doing, ([doing]) => {
      const piece = make("i", { "data-doing": doing });
      return updating(piece, ([, part]) => piece.style.setProperty("flex-grow", part));
    });
  });
}
