// From what the process answers to what the page shows: pure functions, no document.
import { age, many, rate, seconds, short, whole, words } from "./format.js";

/**
 * What a partition looks like, the most urgent first. `failing` is any state in which the batch that
 * is out or comes again has failed; `moving` are the states of being taken over or given back.
 */
export const LOOKS = [
  "unowned", "failing", "suspended", "backing_off", "paused", "moving", "running", "waiting", "elsewhere",
];

const MOVING = new Set(["starting", "releasing", "terminating", "terminated", "lost"]);

/** Seconds for which a partition that has records may rest without a word. */
const STILL = 60;

/** Seconds after which a running callback is worth a look. */
const LONG_CALL = 60;

/** What the kinds of records are called that somebody has to acknowledge. */
const REJECTED = { dead_letters: "dead letter", skipped_records: "skipped record", rejected_facts: "rejected fact" };

/** How a lag has to grow within ten minutes to be said: so many times, and so many records. */
const GROWTH = { window: 600000, times: 2, records: 5000 };

/** When a channel is late: by so many seconds. */
const LATE = 300;

export function lookOf(partition) {
  if (partition.attempts > 0) return "failing";
  return MOVING.has(partition.state) ? "moving" : partition.state;
}

/** All partitions of the groups: those that this process holds, and those that others have. */
export function partitionsOf(status, members) {
  return status.channels.flatMap((channel) => {
    const owners = members?.groups.find((each) => each.channel === channel.name)?.owners ?? null;
    const self = status.process.instance_id;
    const held = new Map(channel.partitions.map((each) => [`${each.topic}-${each.partition}`, each]));
    return Object.entries(channel.topics).flatMap(([topic, count]) =>
      Array.from({ length: count }, (_, number) => {
        const name = `${topic}-${number}`;
        const own = held.get(name);
        const base = { key: `${channel.name} ${name}`, channel: channel.name, topic, number, name };
        if (own) return { ...own, ...base, look: lookOf(own), owner: self, own: true };
        const owner = owners?.[name];
        // what this process has given back a moment ago may stand in ZooKeeper still as ours
        const look = owner || owners === null || owner === null ? "elsewhere" : "unowned";
        return { ...base, state: look, look, owner: owner ?? null, own: false, attempts: 0 };
      }),
    );
  });
}

/** The highest value that is known, null where none is. */
export function highest(items, value) {
  const known = items.map(value).filter((each) => each !== null && each !== undefined);
  return known.length ? Math.max(...known) : null;
}

/** What somebody should know, the worst first: {rank, what, why, command, find, runbook, acknowledge}. */
export function problemsOf({ status, members, history }) {
  const partitions = partitionsOf(status, members);
  const found = [
    ...processProblems(status),
    ...status.channels.flatMap((channel) => [...channelProblems(channel, status, history)]),
    ...status.channels.flatMap((channel) => [
      ...partitionProblems(channel, partitions.filter((each) => each.channel === channel.name)),
    ]),
    ...configProblems(status.config),
  ];
  for (const item of found) if (item.runbook) item.runbook = `${status.runbooks}#${item.runbook}`;
  return found.sort((a, b) => RANKS.indexOf(a.rank) - RANKS.indexOf(b.rank));
}

/** How much a problem matters: it is broken, it should be looked at, somebody wants it so. */
export const RANKS = ["broken", "look", "wanted"];

function* processProblems(status) {
  const { zookeeper, spark, process } = status;
  if (zookeeper.state !== "connected") {
    yield {
      rank: "broken",
      what: `The ZooKeeper session is ${zookeeper.state}`,
      why: `Nothing new is delivered or committed until it reconnects. Servers: ${zookeeper.hosts.join(", ")}.`,
      runbook: "headracesessionsuspended",
    };
  }
  if (spark && !spark.running && process.phase === "running") {
    yield { rank: "broken", what: "Spark is not running", why: "It starts again before the next micro-batch." };
  }
  if (process.phase !== "running") {
    yield { rank: "look", what: `The process is ${process.phase}`, why: "Not all channels are running." };
  }
}

function* channelProblems(channel, status, history) {
  const { name, state, failure, member, conditions } = channel;
  if (state === "failed") yield { rank: "broken", what: `${name} has failed`, why: failure ?? "" };
  else if (state !== "running" && status.process.phase === "running") {
    yield { rank: "look", what: `${name} is ${words(state)}`, why: failure ?? "" };
  }
  if (state === "running" && !["active", "away"].includes(member.state) && status.zookeeper.state === "connected") {
    yield { rank: "broken", what: `${name} is not in its group`, why: `The member is ${member.state}.` };
  }
  for (const [condition, why] of CONDITIONS) {
    const count = conditions?.[condition];
    if (count) {
      const page = condition === "unowned" ? "headracepartitionsunowned" : "headracegroupdisagrees";
      yield { rank: "look", what: `${name}: ${many(count, "partition")} ${condition}`, why, find: `${name} unowned`, runbook: page };
    }
  }
  yield* pauseProblems(channel, status.process.config_file);
  yield* rejectProblems(channel, status.process.config_file);
  for (const skip of channel.skips ?? []) {
    yield {
      rank: "wanted",
      what: `${name}: the record at ${skip.topic}-${skip.partition}, offset ${whole(skip.offset)} is skipped`,
      why: `Requested by ${skip.by}: ${skip.reason}`,
      find: `${skip.topic}-${skip.partition}`,
    };
  }
  const { lag, lag_per_s: trend, catch_up_s: left } = channel.totals;
  const late = highest(channel.partitions, (each) => each.lag_s) ?? 0;
  const growth = late > LATE ? null : lagGrowth(history[name] ?? []);
  if (late > LATE && lag > 0 && left !== 0 && state === "running" && !channel.paused) {
    const gains = left === null ? (trend > 0 ? "falls further behind" : "does not catch up") : `catches up in about ${age(left)}`;
    yield {
      rank: "look",
      // without numbers that change: the item stays the same one
      key: `${name} late`,
      what: `${name} is ${age(late)} late, and ${gains}`,
      why: `The lag of ${short(lag)} records ${trend > 0 ? "grew" : "shrank"} by ${rate(Math.abs(trend))} per second over the last minutes.`,
      find: name,
      runbook: "headracelaggrowing",
    };
  }
  if (growth && state === "running" && !channel.paused) {
    yield {
      rank: "look",
      what: `${name} is falling behind`,
      why: `Its lag grew from ${whole(growth.from)} to ${whole(growth.to)} records in ${seconds(growth.seconds)}.`,
      runbook: "headracelaggrowing",
    };
  }
}

/** What was skipped or rejected is an item until somebody has seen it. */
function* rejectProblems({ name, rejects }, file) {
  const open = Object.entries(REJECTED)
    .filter(([kind]) => rejects?.[kind] > 0)
    .map(([kind, noun]) => ({ kind, count: rejects[kind], text: many(rejects[kind], noun) }));
  if (!open.length) return;
  yield {
    rank: "look",
    key: `${name} rejects`,
    what: `${name}: ${open.map(({ text }) => text).join(", ")}`,
    why: "Shown until they are acknowledged, even after a restart.",
    command: `headrace acknowledge ${name} -c ${quoted(file)}`,
    acknowledge: { channel: name, counts: Object.fromEntries(open.map(({ kind, count }) => [kind, count])) },
    runbook: rejects.skipped_records ? "headracerecordsskipped" : "headracedeadletters",
  };
}

const CONDITIONS = [
  ["unowned", "No member may take them: neither a static list nor a count covers them."],
  ["contended", "More than one static member lists them."],
  ["missing", "A static member lists them, but they do not exist."],
  ["foreign", "A process that is not a member of the group holds them."],
];

function* pauseProblems(channel, file) {
  for (const pause of channel.pauses) {
    const scope = pause.topic === null ? channel.name : `${channel.name} ${pause.topic}-${pause.partition}`;
    const by = pause.reason === "operator" ? `by ${pause.by}` : `by ${pause.by} (${pause.reason})`;
    yield {
      rank: pause.reason === "error" ? "broken" : "wanted",
      what: `${scope} is paused ${by}`,
      why: pause.note,
      since: pause.since,
      until: pause.until,
      command: pause.reason === "operator" ? resumeCommand(channel.name, pause, file) : null,
    };
  }
}

export function resumeCommand(channel, pause, file) {
  const scope = pause.topic === null ? "" : ` --partition ${pause.topic}:${pause.partition}`;
  return `headrace resume ${channel}${scope} --of ${quoted(pause.by)} -c ${quoted(file)}`;
}

/** A word as a shell takes it. */
function quoted(path) {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`;
}

function* partitionProblems(channel, partitions) {
  const name = channel.name;
  const failing = partitions.filter((each) => each.look === "failing");
  if (failing.length) {
    const worst = failing.reduce((a, b) => (b.attempts > a.attempts ? b : a));
    yield {
      rank: "broken",
      what: failing.length === 1
        ? `${name}: ${worst.name} fails at ${batchOf(worst)}`
        : `${name}: ${many(failing.length, "partition")} fail`,
      why: `${failing.length === 1 ? "" : `${worst.name} at ${batchOf(worst)}: `}${many(worst.attempts, "attempt")} so far. ${worst.last_error ?? ""}`,
      find: failing.length === 1 ? worst.name : `${name} failing`,
      runbook: "headraceprocessorfailing",
    };
  }
  const long = partitions.filter((each) => each.callback_s > LONG_CALL);
  if (long.length) {
    const worst = long.reduce((a, b) => (b.callback_s > a.callback_s ? b : a));
    yield {
      rank: "look",
      what: `${name}: a callback of ${worst.name} has been running for long`,
      why: `${age(worst.callback_s)} so far. After half of batch_timeout the log shows which call it is in.`,
      find: worst.name,
    };
  }
  const still = channel.paused ? [] : partitions.filter(isStill);
  if (still.length) {
    const worst = still.reduce((a, b) => (b.lag_s > a.lag_s ? b : a));
    yield {
      rank: "look",
      what: `${name}: ${many(still.length, "partition")} with records ${still.length === 1 ? "is" : "are"} not moving`,
      why: `${worst.name} has waited ${age(worst.lag_s)}, with a lag of ${short(worst.lag)} records.`,
      find: still.length === 1 ? worst.name : name,
      runbook: "headracepartitionstalled",
    };
  }
}

/** The batch that is out or fails: the position is past it while it is out. */
export function batchOf({ batch_offset: first, batch_end: end, position }) {
  if (first === null) return `offset ${whole(position)}`;
  return end === first + 1 ? `offset ${whole(first)}` : `offsets ${whole(first)} to ${whole(end - 1)}`;
}

const isStill = (each) =>
  each.look === "waiting" && each.lag > 0 && each.lag_s > STILL && each.records_per_s === 0;

function* configProblems(config) {
  if (!config) return;
  if (config.problems.length) {
    yield { rank: "look", what: "The configuration file is not applied", why: config.problems.join("; ") };
  }
  if (config.pending.length) {
    yield {
      rank: "look",
      what: `${many(config.pending.length, "setting")} changed but not applied yet`,
      why: config.pending.map((each) => `${each.path}: ${each.reason}`).join("; "),
    };
  }
}

/** The last point, and the one of ten minutes before it or the first. */
function recent(points) {
  const last = points.at(-1);
  return [points.find((point) => point.time >= last.time - GROWTH.window), last];
}

function lagGrowth(points) {
  if (points.length < 2) return null;
  const [first, last] = recent(points);
  const much = last.lag > GROWTH.times * first.lag && last.lag - first.lag > GROWTH.records;
  return much ? { from: first.lag, to: last.lag, seconds: (last.time - first.time) / 1000 } : null;
}
