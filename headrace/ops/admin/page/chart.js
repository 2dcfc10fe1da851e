// Small charts of the last hour. Each has a fixed height and is drawn again in place.
import { draw, make, say } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 100;
const HOUR = 3600000;

/** Spans that a chart may cover, in milliseconds: the least that all points fit into. */
const SPANS = [600000, 1200000, HOUR];

/** A chart with its title, what is now and what was highest; `format` writes a value. */
export function chart(title, format) {
  const area = draw("path", { class: "area" });
  const line = draw("path", { class: "line" });
  const cross = draw("line", { class: "cross", y1: 0, y2: HEIGHT, hidden: "" });
  const plot = draw(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    ...[0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => draw("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y })),
    area,
    line,
    cross,
  );
  const [now, top, from, read] = ["now", "top", "from", "read"].map((name) => make("span", { class: name }));
  const element = make(
    "figure",
    { class: "chart" },
    make("figcaption", {}, make("span", { class: "title" }, title), now, read),
    make("div", { class: "plot" }, plot, top),
    make("div", { class: "axis", "aria-hidden": "true" }, from, make("span", {}, "now")),
  );
  let shown = null;

  function update(points, value, end) {
    const scale = scaleOf(points, value, end);
    shown = { points, value, scale };
    const runs = runsOf(points);
    const at = (point) => `${scale.x(point.time).toFixed(1)},${scale.y(value(point)).toFixed(1)}`;
    line.setAttribute("d", runs.map((run) => `M${run.map(at).join("L")}`).join(""));
    area.setAttribute(
      "d",
      runs
        .map((run) => `M${scale.x(run[0].time).toFixed(1)},${HEIGHT}L${run.map(at).join("L")}L${scale.x(run.at(-1).time).toFixed(1)},${HEIGHT}Z`)
        .join(""),
    );
    const last = points.length ? value(points.at(-1)) : null;
    say(now, format(last));
    say(top, scale.top ? format(scale.top) : "");
    say(from, `${scale.span / 60000} min ago`);
    const best = points.reduce((found, point) => (!found || value(point) > value(found) ? point : found), null);
    plot.setAttribute(
      "aria-label",
      best ? `${title}: now ${format(last)}; highest ${format(value(best))} at ${clock(best.time)}` : `${title}: no samples yet`,
    );
  }

  plot.addEventListener("pointermove", (event) => {
    if (!shown?.points.length) return;
    const box = plot.getBoundingClientRect();
    const time = shown.scale.time(((event.clientX - box.left) / box.width) * WIDTH);
    const near = shown.points.reduce((a, b) => (Math.abs(b.time - time) < Math.abs(a.time - time) ? b : a));
    const x = shown.scale.x(near.time);
    for (const name of ["x1", "x2"]) cross.setAttribute(name, x);
    cross.removeAttribute("hidden");
    say(read, `${format(shown.value(near))} at ${clock(near.time)}`);
  });
  plot.addEventListener("pointerleave", () => {
    cross.setAttribute("hidden", "");
    say(read, "");
  });
  return { element, update };
}

/** A line without axes, for a row of a table. */
export function sparkline() {
  const line = draw("path", { class: "line" });
  const element = draw("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  function update(points, value, end) {
    const { x, y } = scaleOf(points, value, end);
    const at = (point) => `${x(point.time).toFixed(1)},${y(value(point)).toFixed(1)}`;
    line.setAttribute("d", runsOf(points).map((run) => `M${run.map(at).join("L")}`).join(""));
  }
  return { element, update };
}

function scaleOf(points, value, end) {
  const first = points.length ? points[0].time : end;
  const span = SPANS.find((each) => end - first <= each) ?? HOUR;
  const top = nice(points.reduce((found, point) => Math.max(found, value(point)), 0));
  return {
    span,
    top,
    x: (time) => WIDTH * (1 - (end - time) / span),
    y: (number) => HEIGHT - (HEIGHT - 2) * (top ? number / top : 0) - 1,
    time: (x) => end - span * (1 - x / WIDTH),
  };
}

/** The least of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `value`. */
function nice(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((each) => each * power >= value * 0.999) * power;
}

/** The points in runs without gaps: where the process did not sample there is no line. */
function runsOf(points) {
  const runs = [];
  let before = null;
  for (const point of points) {
    if (before === null || point.time - before > 20000) runs.push([]);
    runs.at(-1).push(point);
    before = point.time;
  }
  return runs;
}
