// Puts the page together: what arrives goes to the sections, and the connection to the header.
import { announce, byId, change, each, say, show } from "./dom.js";
import { age, clock } from "./format.js";
import { Live } from "./live.js";
import { partitionsOf, problemsOf } from "./model.js";
import { startColors } from "./cells.js";
import { channelPanel, channelTable } from "./channels.js";
import { PartitionTable } from "./partitions.js";
import { EventList, Verdict, titleOf, updateConfig, updateFacts, updateGroup } from "./sections.js";
import { startTheme } from "./theme.js";
import { Topologies, channelId } from "./topologies.js";

/** Milliseconds without an answer after which what is shown counts as old. */
const OLD = 5000;

const live = new Live(render, renderState);
const table = new PartitionTable();
const events = new EventList();
const verdict = new Verdict(({ find }) => table.find({ text: find }), acknowledge);
const overview = channelTable(toggle);
const topologies = new Topologies(open, look);
/** Channels whose details somebody opened or closed; of up to so many they are open without that. */
const chosen = new Map();
const OPEN = 2;
let connection = "waiting";
let answeredRefusals = 0;

function render(parts) {
  const { status, members, history, config } = parts;
  const now = Date.parse(status.at);
  const partitions = partitionsOf(status, members);
  const problems = problemsOf(parts);
  document.title = `${problems.length ? `(${titleOf(problems)}) ` : ""}${status.process.instance_id} · Headrace`;
  say(byId("instance"), status.process.instance_id);
  say(byId("versions"), `Headrace ${status.process.version}, Python ${status.process.python}.`);
  verdict.update(status, problems, now);
  updateFacts(status);
  const panels = status.channels.map((channel) => ({
    channel,
    end: now,
    points: history[channel.name] ?? [],
    partitions: partitions.filter((partition) => partition.channel === channel.name),
  }));
  topologies.update(parts.topologies, status.channels);
  const isOpen = (name) => chosen.get(name) ?? panels.length <= OPEN;
  overview.update(status.channels, isOpen);
  each(byId("channels"), panels.filter(({ channel }) => isOpen(channel.name)), ({ channel }) => channel.name, () =>
    channelPanel((wanted) => table.find(wanted)),
  );
  table.update(partitions);
  events.update(parts.events);
  updateGroup(members);
  updateConfig(status, config, Boolean(live.token), askToken);
  show(byId("all"), true);
}

function toggle(name) {
  chosen.set(name, !(chosen.get(name) ?? live.parts.status.channels.length <= OPEN));
  render(live.parts);
}

/** Open the details of a channel and go there. */
function open(name) {
  chosen.set(name, true);
  render(live.parts);
  const panel = byId(channelId(name));
  panel?.scrollIntoView();
  panel?.focus({ preventScroll: true });
}

async function acknowledge({ channel, counts }) {
  const problem = await live.acknowledge(channel, counts);
  if (problem === "refused") askToken();
  else announce(problem ? `Not acknowledged: ${problem}` : "Acknowledged");
}

/** Ask for rows of a store: they take the token also where the rest does not. */
async function look(path) {
  const found = await live.look(path);
  if (found === null) askToken();
  return found;
}

function stateOf() {
  if (live.refused) return "refused";
  if (live.answered === null) return live.failures ? "away" : "waiting";
  return live.failures && Date.now() - live.answered > OLD ? "away" : "live";
}

const SAID = { away: "The process does not answer", live: "The process answers again", refused: "The process asks for its token" };

function renderState() {
  const state = stateOf();
  const old = live.answered === null ? null : (Date.now() - live.answered) / 1000;
  change(byId("live"), { "data-state": state });
  change(document.body, { "data-live": state });
  say(byId("live-text"), liveText(state, old));
  show(byId("away"), state === "away");
  if (old !== null) verdict.age(state === "away");
  if (state === "away") {
    const since = old === null ? "It has not answered yet." : `This is ${age(old)} old, from ${clock(live.answered)}.`;
    const why = live.failure ? `The process answers with an error: ${live.failure}.` : "The process does not answer.";
    say(byId("away-text"), `${why} ${since} It is asked again by itself.`);
  }
  if (state === "refused" && answeredRefusals < live.refusals) {
    answeredRefusals = live.refusals;
    askToken();
  }
  if (connection !== state && connection !== "waiting") announce(SAID[state] ?? "");
  connection = state;
}

function liveText(state, old) {
  if (state === "live") return old < 4 ? "Live" : `Live, ${age(old)} ago`;
  return { waiting: "Connecting to the process", away: old === null ? "No answer" : `Old: ${age(old)}`, refused: "Token needed" }[state];
}

function askToken() {
  show(byId("token"), true);
  // without the token there would be nothing behind the form
  show(byId("token-cancel"), !live.refused);
  const wrong = Boolean(live.token) && (live.refused || live.configRefused);
  show(byId("token-wrong"), wrong);
  change(byId("token-value"), { "aria-invalid": wrong ? "true" : null });
  if (wrong) announce(byId("token-wrong").textContent);
  byId("token-value").focus();
}

function startToken() {
  const close = () => {
    byId("token-value").value = "";
    show(byId("token"), false);
  };
  byId("token").addEventListener("submit", (event) => {
    event.preventDefault();
    live.token = byId("token-value").value.trim();
    close();
  });
  byId("token-cancel").addEventListener("click", close);
}

byId("overview").append(overview.element);
startTheme();
startToken();
startColors(() => live.parts.status && render(live.parts));
say(byId("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone);
byId("retry").addEventListener("click", () => live.now());
setInterval(renderState, 1000);
live.now();
