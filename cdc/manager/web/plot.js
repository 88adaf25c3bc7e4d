// Line plots as SVG: one or more series over time, stacked or not, with gaps where a value is missing.

import { clock } from "./format.js";
import { h, svg } from "./dom.js";

const HEIGHT = 150;
const MARGIN = { left: 52, right: 10, top: 10, bottom: 22 };
const GAP_S = 10; // no line between samples that are further apart: no driver answered
const drawn = new Map(); // by id: what the plot shows, for the pointer
let pointed = null; // { id, share }: the pointer is over this plot

function withGaps(times, series) {
  const breaks = times.flatMap((time, index) => (index && time - times[index - 1] > GAP_S ? [index] : []));
  const widen = (list, between) => {
    const copy = [...list];
    for (const index of breaks.toReversed()) copy.splice(index, 0, between(index));
    return copy;
  };
  return {
    times: widen(times, (index) => times[index - 1] + 1),
    series: series.map((one) => ({ ...one, values: widen(one.values, () => null) })),
  };
}

// The upper end of the axis: a round number, also of its half; of sizes, in their own unit.
function niceTop(value, isSize) {
  if (!(value > 0)) return 1;
  const unit = isSize ? 1024 ** Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 3, 4, 6, 8, 10].find((step) => step * power * unit >= value) * power * unit;
}

function stack(series) {
  let below = null;
  return series.map((one) => {
    const lower = below;
    const upper = one.values.map((value, index) => (value === null ? null : value + (lower?.[index] ?? 0)));
    below = upper;
    return { ...one, lower, upper };
  });
}

function line(points) {
  let path = "";
  let open = false;
  for (const point of points) {
    if (point) path += open ? `L${point[0].toFixed(1)} ${point[1].toFixed(1)}` : `M${point[0].toFixed(1)} ${point[1].toFixed(1)}h0`;
    open = Boolean(point);
  }
  return path;
}

function runs(points) {
  const found = [];
  for (const point of points) {
    if (!point) found.push([]);
    else (found.at(-1) ?? found[found.push([]) - 1]).push(point);
  }
  return found.filter((run) => run.length);
}

export function plot({ id, title, format, minutes, width, stacked = false, isSize = false, ...samples }) {
  const { times, series } = withGaps(samples.times, samples.series);
  const end = Date.now() / 1000;
  const start = end - minutes * 60;
  const layers = stacked ? stack(series) : series.map((one) => ({ ...one, lower: null, upper: one.values }));
  const values = layers.flatMap((one) => one.upper.filter((value) => value !== null));
  const top = niceTop(Math.max(0, ...values), isSize);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const x = (time) => MARGIN.left + ((time - start) / (end - start)) * inner.width;
  const y = (value) => MARGIN.top + (1 - value / top) * inner.height;
  const at = (list) => list.map((value, index) => (value === null ? null : [x(times[index]), y(value)]));
  drawn.set(id, { times, series, format, start, end });

  const grid = [0, 0.5, 1].map((share) => [
    svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(top * share), y2: y(top * share) }),
    values.length > 0 && svg("text", { class: "axis", x: MARGIN.left - 8, y: y(top * share) + 4, "text-anchor": "end" }, format(top * share)),
  ]);
  const ticks = [0, 0.5, 1].map((share) =>
    svg(
      "text",
      { class: "axis", x: x(start + share * (end - start)), y: HEIGHT - 5, "text-anchor": ["start", "middle", "end"][share * 2] },
      clock((start + share * (end - start)) * 1000, false),
    ),
  );
  const shapes = layers.map((one, index) => {
    const upper = at(one.upper);
    const lower = one.upper.map((value, slot) => (value === null ? null : [x(times[slot]), y(one.lower?.[slot] ?? 0)]));
    const lowerRuns = runs(lower);
    const areas = runs(upper).map((run, number) => line([...run, ...lowerRuns[number].toReversed()]) + "Z");
    return [
      svg("path", { class: `area c${one.colour ?? index}`, d: areas.join("") }),
      svg("path", { class: `line c${one.colour ?? index}`, d: line(upper) }),
    ];
  });
  const cross = pointed?.id === id && svg("line", { class: "cross", x1: MARGIN.left + pointed.share * inner.width, x2: MARGIN.left + pointed.share * inner.width, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
  const newest = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? null)}`).join(", ");
  return h(
    "figure",
    { class: "plot card", "data-key": id },
    h("figcaption", null, h("span", { class: "title" }, title), h("span", { class: "legend" }, legend(id))),
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "data-plot": id, "aria-label": `${title}, last ${minutes} minutes. Now: ${newest}.` },
      grid,
      ticks,
      shapes,
      cross,
      values.length ? null : svg("text", { class: "axis", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no values yet"),
    ),
  );
}

function legend(id) {
  const { times, series, format, start, end } = drawn.get(id);
  let index = times.length - 1;
  if (pointed?.id === id && times.length) {
    const time = start + pointed.share * (end - start);
    index = times.reduce((best, one, slot) => (Math.abs(one - time) < Math.abs(times[best] - time) ? slot : best), 0);
  }
  const shown = series.map((one, number) =>
    h("span", { class: "entry" }, series.length > 1 && h("i", { class: `swatch c${one.colour ?? number}` }), series.length > 1 && `${one.name} `, h("b", null, format(one.values[index] ?? null))),
  );
  return pointed?.id === id && times.length ? [shown, h("span", { class: "entry quiet" }, clock(times[index] * 1000))] : shown;
}

// Show the values at the pointer. `redraw` draws the view again.
export function followPointer(redraw) {
  const follow = (event) => {
    const target = event.target.closest?.("[data-plot]");
    const before = pointed;
    if (target) {
      const box = target.getBoundingClientRect();
      const scale = box.width / target.viewBox.baseVal.width;
      const share = (event.clientX - box.left - MARGIN.left * scale) / (box.width - (MARGIN.left + MARGIN.right) * scale);
      pointed = { id: target.dataset.plot, share: Math.min(1, Math.max(0, share)) };
    } else {
      pointed = null;
    }
    if (pointed || before) redraw();
  };
  document.addEventListener("pointermove", follow, { passive: true });
}

export function sparkline(values) {
  const width = 96;
  const height = 22;
  const top = Math.max(1e-9, ...values.map((value) => value ?? 0));
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => (value === null ? null : [index * step, height - 1 - (value / top) * (height - 3)]));
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("path", { class: "line c0", d: line(points) }));
}
