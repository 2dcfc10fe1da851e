// Asks the process, again and again, and knows how old the answers are.

/** Milliseconds between two looks at each part; the status is what the page lives on. */
const EVERY = { status: 2000, events: 2000, history: 5000, members: 10000, config: 10000, topologies: 30000 };

/** Milliseconds that an answer may take. */
const PATIENCE = 10000;

/** Milliseconds after which somebody who is away is asked again; the last value stays. */
const BACK_OFF = [1000, 2000, 4000, 5000];

/** Part of the time that a process may spend on answering this page. */
const SHARE = 0.1;

const KEY = "headrace-token";

class Refused extends Error {}

/** The process answered, but not what was asked. */
class Answered extends Error {}

/**
 * Asks while the page is seen. `onChange(parts)` is called whenever something is new;
 * `onState()` when the connection is another, also once a second while it is away.
 */
export class Live {
  constructor(onChange, onState) {
    this.parts = { status: null, history: {}, events: [], members: null, config: null, topologies: [] };
    this.answered = null;
    this.failures = 0;
    this.failure = null;
    this.refused = false;
    this.refusals = 0;
    this.configRefused = false;
    this.nextTry = null;
    this._onChange = onChange;
    this._onState = onState;
    this._due = {};
    this._timer = null;
    this._busy = false;
    this._asking = new Set();
    this._newest = { history: null, event: 0 };
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this._timer) : this.now()));
    window.addEventListener("online", () => this.now());
    window.addEventListener("pageshow", () => this.now());
  }

  get token() {
    return sessionStorage.getItem(KEY);
  }

  set token(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
    this.refused = this.configRefused = false;
    this._due = {};
    this.now();
  }

  /** Look at once. */
  now() {
    clearTimeout(this._timer);
    if (!this._busy) this._look();
  }

  async _look() {
    this._busy = true;
    try {
      await this._ask("status", () => this._status());
      this.answered = Date.now();
      this.failures = 0;
      await Promise.all([
        this._ask("history", () => this._history()),
        this._ask("events", () => this._events()),
        this._ask("topologies", () => this._topologies()),
      ]);
      this._aside("members", () => this._members());
      this._aside("config", () => this._config());
      this._onChange(this.parts);
    } catch (error) {
      this._failed(error);
    }
    this._busy = false;
    this._onState();
    this._plan();
  }

  _failed(error) {
    if (error instanceof Refused) {
      this.refused = true;
      this.refusals += 1;
      return;
    }
    this.failures += 1;
    this.failure = error instanceof Answered ? error.message : null;
    this._due = {};
  }

  _plan() {
    clearTimeout(this._timer);
    if (this.refused || document.hidden) return;
    const wait = this.failures
      ? BACK_OFF[Math.min(this.failures, BACK_OFF.length) - 1]
      : Math.max(100, this._due.status - performance.now());
    this.nextTry = Date.now() + wait;
    this._timer = setTimeout(() => this._look(), wait);
  }

  /** Ask for a part that is due; it is due again later the longer the answer took. */
  async _ask(part, ask) {
    const begin = performance.now();
    if (begin < (this._due[part] ?? 0) - 50) return;
    await ask();
    const took = performance.now() - begin;
    this._due[part] = begin + Math.max(EVERY[part], took / SHARE);
  }

  /** Ask for a part that may take long, as what ZooKeeper is asked for, and wait for nothing. */
  async _aside(part, ask) {
    if (this._asking.has(part)) return;
    this._asking.add(part);
    try {
      const before = this.parts[part];
      await this._ask(part, ask);
      if (this.parts[part] !== before) this._onChange(this.parts);
    } catch {
      // who does not answer at all is noticed by the next look
      this._due[part] = performance.now() + EVERY[part];
    } finally {
      this._asking.delete(part);
    }
  }

  /** Ask for rows: their document, or a problem in words; null: that takes the token. */
  async look(path) {
    try {
      // a page does not get to see where it would be led
      const answer = await this._fetch(path, { Prefer: "no-redirect" });
      return JSON.parse(await answer.text(), exact);
    } catch (error) {
      if (error instanceof Refused) {
        this.configRefused = true;
        return null;
      }
      return { problem: error.nextStep ? `${error.message}: ${error.nextStep}` : error.message };
    }
  }

  async _get(path) {
    return (await this._fetch(path)).json();
  }

  async _fetch(path, more = {}) {
    const headers = { Accept: "application/json", ...more };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    const answer = await fetch(path, {
      headers,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (answer.status === 401) throw new Refused();
    if (!answer.ok) throw await answeredOf(answer);
    return answer;
  }

  /** Take so many records of a channel as seen. Returns null, "refused", or why it was not done. */
  async acknowledge(channel, counts) {
    if (!this.token) return "refused";
    try {
      const answer = await fetch(`/api/v1/channels/${encodeURIComponent(channel)}/acknowledge`, {
        method: "POST",
        headers: { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" },
        body: JSON.stringify(counts),
        credentials: "omit",
        redirect: "error",
        signal: AbortSignal.timeout(PATIENCE),
      });
      if (answer.status === 401) {
        this.configRefused = true;
        return "refused";
      }
      if (!answer.ok) return (await answeredOf(answer)).message;
    } catch (error) {
      return error.message;
    }
    this._due = {};
    this.now();
    return null;
  }

  async _status() {
    const status = await this._get("/api/v1/status");
    const before = this.parts.status;
    const identity = (each) => `${each?.process.pid} ${each?.process.started_at}`;
    if (before && identity(before) !== identity(status)) {
      this._newest = { history: null, event: 0 };
      this.parts.events = [];
      this.parts.history = {};
      this._due = {};
    }
    this.parts.status = status;
    this.parts.received = Date.now();
  }

  async _history() {
    const after = this._newest.history;
    const query = after ? `?after=${encodeURIComponent(after)}` : "";
    const { interval_s: interval, channels } = await this._get(`/api/v1/history${query}`);
    const kept = this.parts.history;
    for (const name of Object.keys(kept)) if (!(name in channels)) delete kept[name];
    for (const [name, points] of Object.entries(channels)) {
      const added = points.map((point) => ({ ...point, time: Date.parse(point.at) }));
      kept[name] = [...(kept[name] ?? []), ...added].slice(-Math.ceil(3600 / interval));
      const last = points.at(-1)?.at;
      if (last && (!this._newest.history || last > this._newest.history)) this._newest.history = last;
    }
  }

  async _events() {
    const { events, pid } = await this._get(`/api/v1/events?after=${this._newest.event}`);
    if (pid !== this.parts.status.process.pid || !events.length) return;
    // an event that happened again replaces what it was before
    const same = (a, b) => a.event === b.event && a.first === b.first;
    const kept = this.parts.events.filter((old) => !events.some((event) => same(old, event)));
    this.parts.events = [...kept, ...events].slice(-400);
    this._newest.event = events.at(-1).number;
  }

  /** The plans stay the same while their channels run: they are asked for where there are any. */
  async _topologies() {
    const planned = this.parts.status.channels.some(({ processor }) => processor === "streams");
    this.parts.topologies = planned ? (await this._get("/api/v1/topologies")).topologies : [];
  }

  async _members() {
    try {
      this.parts.members = { ...(await this._get("/api/v1/members")), problem: null };
    } catch (error) {
      const slow = error.name === "TimeoutError" ? `nothing within ${PATIENCE / 1000} s` : null;
      if (!slow && !(error instanceof Answered)) throw error;
      this.parts.members = { ...(this.parts.members ?? { groups: [] }), problem: slow ?? error.message };
    }
  }

  /** The configuration takes the token also where the rest does not. */
  async _config() {
    if (!this.token || this.configRefused) return;
    try {
      this.parts.config = await this._get("/api/v1/config");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.configRefused = true;
      this.parts.config = null;
    }
  }
}

async function answeredOf(answer) {
  try {
    const { message, next_step: nextStep } = await answer.json();
    return Object.assign(new Answered(message ?? answer.statusText), { nextStep });
  } catch {
    return new Answered(`${answer.status} ${answer.statusText}`);
  }
}

/** Keep the digits of numbers that are none of JavaScript's, where the browser can. */
function exact(_, value, context) {
  const isOther = typeof value === "number" && context?.source && String(value) !== context.source;
  return isOther && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}
