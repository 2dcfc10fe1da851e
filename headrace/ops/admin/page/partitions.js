// The table of partitions: found, sorted and shown in parts. Works by keyboard alone.
import { announce, byId, change, each, make, say, show, updating } from "./dom.js";
import { clock, many, rate, seconds, short, whole, words } from "./format.js";
import { LOOKS, batchOf } from "./model.js";

const AT_FIRST = 20;

const urgency = (partition) => LOOKS.indexOf(partition.look) * 1e15 - (partition.lag ?? -1);

/** Columns: title, what it is sorted by, what it shows; `falling`: the first click sorts so. */
const COLUMNS = [
  { id: "partition", title: "Partition", by: (p) => [p.topic, p.number], kind: "name" },
  { id: "channel", title: "Channel", by: (p) => p.channel, kind: "channel" },
  { id: "state", title: "State", by: urgency, kind: "state" },
  { id: "owner", title: "Owner", by: (p) => p.owner ?? "", kind: "owner" },
  { id: "lag", title: "Lag", by: (p) => p.lag ?? -1, text: (p) => whole(p.lag), falling: true },
  { id: "waits", title: "Wait", by: (p) => p.lag_s ?? -1, text: (p) => seconds(p.lag_s), falling: true },
  { id: "rate", title: "Per second", by: (p) => p.records_per_s ?? -1, text: (p) => rate(p.records_per_s), falling: true },
  { id: "position", title: "Position", by: (p) => p.position ?? -1, text: (p) => whole(p.position) },
  { id: "committed", title: "Committed", by: (p) => p.committed ?? -1, text: (p) => whole(p.committed) },
  { id: "epoch", title: "Epoch", by: (p) => p.epoch ?? -1, text: (p) => whole(p.epoch) },
  { id: "buffered", title: "Buffered", by: (p) => p.buffered_records ?? -1, text: (p) => short(p.buffered_records), falling: true },
];

function compare(a, b) {
  if (Array.isArray(a)) return compare(a[0], b[0]) || compare(a[1], b[1]);
  if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
  return a - b;
}

export class PartitionTable {
  constructor() {
    this._all = [];
    this._limit = AT_FIRST;
    this._sort = { column: COLUMNS[2], falling: false };
    this._table = byId("partitions");
    this._fields = { text: byId("find"), channel: byId("by-channel"), look: byId("by-state"), owner: byId("by-owner") };
    this._heads();
    for (const field of Object.values(this._fields)) {
      field.addEventListener("input", () => this._filtered());
    }
    byId("more").firstElementChild.addEventListener("click", () => {
      this._limit = this._limit * 5;
      this._render();
    });
  }

  /** Show other partitions. The order stays as it is under a pointer that rests on the table. */
  update(partitions) {
    this._all = partitions;
    this._choices(this._fields.channel, partitions.map((p) => p.channel), "all channels");
    this._choices(this._fields.owner, partitions.map((p) => p.owner).filter(Boolean), "all owners");
    const looks = new Set(partitions.map((p) => p.look));
    const look = this._fields.look.value;
    this._choices(this._fields.look, LOOKS.filter((each) => looks.has(each) || each === look), "all states", false);
    this._render(this._table.tBodies[0].matches(":hover"));
  }

  /** Find something, as if it had been typed, and go there. */
  find({ text = "", channel = "", look = "", owner = "" }) {
    const { text: input, channel: channels, look: looks, owner: owners } = this._fields;
    input.value = text;
    channels.value = channel;
    looks.value = look;
    owners.value = owner;
    this._filtered();
    byId("partitions-title").scrollIntoView();
    byId("partitions-title").focus({ preventScroll: true });
  }

  _heads() {
    const row = this._table.tHead.rows[0];
    for (const column of COLUMNS) {
      const button = make("button", { type: "button", on: { click: () => this._sortBy(column) } }, column.title);
      row.append(make("th", { scope: "col", class: `c-${column.id}` }, button));
    }
    this._markSort();
  }

  _sortBy(column) {
    const same = this._sort.column === column;
    this._sort = { column, falling: same ? !this._sort.falling : Boolean(column.falling) };
    this._markSort();
    this._render();
    announce(`Sorted by ${column.title.toLowerCase()}, ${this._sort.falling ? "highest" : "lowest"} first`);
  }

  _markSort() {
    [...this._table.tHead.rows[0].cells].forEach((cell, index) => {
      const direction = this._sort.falling ? "descending" : "ascending";
      change(cell, { "aria-sort": COLUMNS[index] === this._sort.column ? direction : null });
    });
  }

  _filtered() {
    this._limit = AT_FIRST;
    const found = this._render();
    announce(`${many(found, "partition")} found`);
  }

  _choices(select, values, all, sorted = true) {
    const wanted = [...new Set(values)];
    if (sorted) wanted.sort((a, b) => compare(a, b));
    const options = ["", ...wanted];
    const kept = select.value;
    each(select, options, (value) => value, (value) => make("option", { value }, value === "" ? all : words(value)));
    if (select.value !== kept) select.value = options.includes(kept) ? kept : "";
  }

  _matches() {
    const { text, channel, look, owner } = this._fields;
    const terms = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this._all.filter(
      (p) =>
        (!channel.value || p.channel === channel.value) &&
        (!look.value || p.look === look.value) &&
        (!owner.value || p.owner === owner.value) &&
        terms.every((term) => haystack(p).includes(term)),
    );
  }

  _render(keepOrder = false) {
    const found = this._matches();
    const { column, falling } = this._sort;
    const sign = falling ? -1 : 1;
    if (keepOrder && this._order) found.sort((a, b) => (this._order.get(a.key) ?? 1e9) - (this._order.get(b.key) ?? 1e9));
    else found.sort((a, b) => sign * compare(column.by(a), column.by(b)) || compare(a.key, b.key));
    this._order = new Map(found.map((p, index) => [p.key, index]));
    const rows = found.slice(0, this._limit);
    each(this._table.tBodies[0], rows, (p) => p.key, newRow);
    const rest = found.length - rows.length;
    say(byId("shown"), found.length === this._all.length ? many(found.length, "partition") : `${whole(found.length)} of ${many(this._all.length, "partition")}`);
    show(byId("more"), rest > 0);
    say(byId("more").firstElementChild, `Show ${whole(Math.min(rest, this._limit * 4))} more of ${whole(rest)}`);
    return found.length;
  }
}

const haystack = (p) => `${p.channel} ${p.name} ${words(p.look)} ${words(p.state)} ${p.owner ?? ""} ${p.last_error ?? ""}`.toLowerCase();

function newRow() {
  const cells = COLUMNS.map((column) =>
    make(column.id === "partition" ? "th" : "td", { class: `c-${column.id}`, scope: column.id === "partition" ? "row" : null }),
  );
  const mark = make("i", { class: "cell", "aria-hidden": "true" });
  const state = make("span", {});
  const detail = make("small", {});
  cells[2].append(mark, state, detail);
  return updating(make("tr", {}, ...cells), (p) => {
    say(cells[0], p.name);
    say(cells[1], p.channel);
    change(mark, { "data-look": p.look });
    say(state, words(p.look));
    say(detail, detailOf(p));
    say(cells[3], p.own ? "this process" : (p.owner ?? "–"));
    COLUMNS.forEach((column, index) => column.text && say(cells[index], column.text(p)));
  });
}

/** How far a partition is whose state is not there yet, as the commands say it. */
export function restoring({ percent: part, left_s: left }) {
  if (part === null) return "restoring";
  return `restoring ${part.toFixed(0)} %${left === null ? "" : `, ${left.toFixed(0)} s left`}`;
}

function detailOf(p) {
  if (p.restoring) return restoring(p.restoring);
  if (p.suspect_records) return `looks for what fails among ${many(p.suspect_records, "record")}`;
  if (p.look === "failing") {
    const next = p.held_back_until ? `, next ${clock(p.held_back_until)}` : "";
    return `${batchOf(p)}, ${many(p.attempts, "attempt")}${next}: ${p.last_error ?? ""}`;
  }
  if (p.look === "moving") return words(p.state);
  if (p.look === "running" && p.callback_s > 5) return `for ${seconds(p.callback_s)}`;
  if (p.look === "backing_off" && p.held_back_until) return `until ${clock(p.held_back_until)}`;
  return "";
}
