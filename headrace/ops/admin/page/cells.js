// Partitions at a glance: a cell each, coloured by state, lag or owner, and a legend that finds them.
import { byId, change, each, make, say, show, updating } from "./dom.js";
import { short, whole, words } from "./format.js";
import { LOOKS } from "./model.js";

/** Up to this many partitions are large enough for their numbers. */
const NUMBERED = 96;

/** Owners that have a colour of their own; the others share the last one. */
const OWNERS = 5;

/** Steps of lag: below this many records, what the legend says. */
const LAGS = [
  [1, "none"],
  [1000, "below 1,000"],
  [100000, "below 100,000"],
  [10000000, "below 10 million"],
  [Infinity, "more"],
];

/**
 * What colours may show. `of(partition, owners)` returns a group: its key (which is also the order),
 * the attributes that colour it, what the legend says, and what to find in the table.
 */
const WAYS = {
  state: (partition) => ({
    key: String(LOOKS.indexOf(partition.look)),
    attributes: { "data-look": partition.look, "data-shade": null },
    text: words(partition.look),
    find: { channel: partition.channel, look: partition.look },
  }),
  lag: (partition) => {
    const step = partition.own && partition.lag !== null ? LAGS.findIndex(([below]) => partition.lag < below) : null;
    return {
      key: step === null ? "z" : String(9 - step),
      attributes: { "data-look": null, "data-shade": `lag-${step ?? "none"}` },
      text: step === null ? "unknown here" : LAGS[step][1],
      find: null,
    };
  },
  owner: (partition, owners) => {
    const index = partition.owner === null ? null : Math.min(owners.indexOf(partition.owner), OWNERS);
    return {
      key: index === null ? "-" : String(index),
      attributes: { "data-look": null, "data-shade": `owner-${index ?? "none"}` },
      text: index === null ? "no known owner" : index === OWNERS ? "others" : partition.own ? `${partition.owner} (this process)` : partition.owner,
      find: index === null || index === OWNERS ? null : { channel: partition.channel, owner: partition.owner },
    };
  },
};

let way = "state";

/** Offer the ways; `redraw()` is called when another one is chosen. */
export function startColors(redraw) {
  for (const name of Object.keys(WAYS)) {
    const choose = () => {
      way = name;
      for (const button of byId("color-by").children) change(button, { "aria-pressed": String(button.dataset.way === way) });
      redraw();
    };
    const attributes = { type: "button", "data-way": name, "aria-pressed": String(name === way), on: { click: choose } };
    byId("color-by").append(make("button", attributes, `By ${name}`));
  }
}

/** The cells of a channel by topic; `onPick(wanted)` is called with what to find in the table. */
export function gridOf(onPick) {
  const topics = make("div", { class: "topics" });
  const legend = make("div", { class: "legend", role: "group" });
  const element = make("div", { class: "grid-of" }, make("div", { class: "grid-head" }, make("h4", {}, "Partitions"), legend), topics);
  topics.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-name]");
    if (cell) onPick({ text: cell.dataset.name });
  });
  function update(partitions) {
    show(element, partitions.length > 0);
    if (!partitions.length) return;
    change(legend, { "aria-label": `Partitions of ${partitions[0].channel} by ${way}` });
    const owners = ownersOf(partitions);
    const groupOf = (partition) => WAYS[way](partition, owners);
    each(legend, counted(partitions, groupOf), (group) => `${way} ${group.key}`, (group) => legendButton(group, onPick));
    const names = [...new Set(partitions.map((partition) => partition.topic))];
    each(topics, names, (topic) => topic, topicCells);
    for (const row of topics.children) {
      row.fill(partitions.filter((partition) => partition.topic === row.dataset.key), groupOf);
    }
  }
  return { element, update };
}

/** The owners by name, this process first. */
function ownersOf(partitions) {
  const others = new Set(partitions.filter((each) => !each.own && each.owner !== null).map((each) => each.owner));
  const self = partitions.find((each) => each.own)?.owner;
  others.delete(self);
  return [...(self ? [self] : []), ...[...others].sort()];
}

/** The groups with how many partitions each has. */
function counted(partitions, groupOf) {
  const groups = new Map();
  for (const partition of partitions) {
    const group = groupOf(partition);
    const found = groups.get(group.key) ?? { ...group, count: 0 };
    found.count += 1;
    groups.set(group.key, found);
  }
  return [...groups.values()].sort((a, b) => a.key.localeCompare(b.key));
}

function legendButton(first, onPick) {
  let group = first;
  const count = make("b", {});
  const text = make("span", {});
  const mark = make("i", { class: "cell", "aria-hidden": "true" });
  const element = first.find
    ? make("button", { type: "button", class: "quiet", on: { click: () => onPick(group.find) } }, mark, count, text)
    : make("span", { class: "entry" }, mark, count, text);
  return updating(element, (now) => {
    group = now;
    change(mark, now.attributes);
    say(count, whole(now.count));
    say(text, now.text);
  });
}

function topicCells(topic) {
  const cells = make("div", { class: "cells", role: "img" });
  const element = make("div", { class: "topic" }, make("span", { class: "topic-name" }, topic), cells);
  let group = null;
  element.fill = (partitions, groupOf) => {
    // cells outlive this call, and the owners that it knows
    group = groupOf;
    change(cells, {
      "data-numbered": String(partitions.length <= NUMBERED),
      "aria-label": `${topic}: ${counted(partitions, groupOf).map(({ count, text }) => `${whole(count)} ${text}`).join(", ")}`,
    });
    each(cells, partitions, (partition) => partition.key, (partition) => {
      const cell = make("i", { class: "cell", "data-name": partition.name }, String(partition.number));
      return updating(cell, (current) => change(cell, { ...group(current).attributes, title: describe(current) }));
    });
  };
  return element;
}

function describe(partition) {
  if (!partition.own) return `${partition.name}: ${partition.owner ?? words(partition.look)}`;
  const parts = [`${partition.name}: ${words(partition.state)}`, `lag ${short(partition.lag)}`];
  if (partition.attempts) parts.push(`failed ${partition.attempts} times`);
  return parts.join(", ");
}
