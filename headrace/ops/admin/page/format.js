// Numbers, sizes and times as people read them. "–" stands for what is not known.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const NONE = "–";

/** A whole number, with all its digits. */
export const whole = (value) => (value === null || value === undefined ? NONE : WHOLE.format(value));

/** A number in a few characters. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 100000) return SHORT.format(value);
  return value >= 10 || Number.isInteger(value) ? WHOLE.format(Math.round(value)) : value.toPrecision(2);
}

/** A rate a second. */
export const rate = (value) => (value === 0 ? "0" : short(value));

/** Bytes. */
export function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(value >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${value} B`;
}

/** Seconds, with the unit in which they are a small number. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 0.0005) return "0 ms";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.round((value % 86400) / 3600)} h`;
}

/** Seconds that pass while one looks: no fractions. */
export const age = (value) => (value < 1 ? "less than 1 s" : seconds(value < 10 ? Math.floor(value) + 1e-9 : value).replace(".0", ""));

/** A part of 1 in per cent. */
export const percent = (value) => `${value > 0 && value < 0.01 ? "<1" : Math.round(value * 100)} %`;

/** A time of day, with the day where that is another one than `now`'s. */
export function clock(time, now = Date.now()) {
  const date = new Date(time);
  const same = date.toDateString() === new Date(now).toDateString();
  return same ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

/** A count with its noun: 1 partition, 2 partitions. */
export const many = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

/** A name such as backing_off as words. */
export const words = (name) => name.replaceAll("_", " ");
