// Curves over the updates of a run.
import { h, number, pointed, s } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 220, 48, 22];

/** curves: [{name, points: [[step, value]]}]; the numbers nearest to the pointer are told below. */
export function chart(title, curves) {
  const scale = scaled(curves.flatMap((one) => one.points));
  const told = (values) => curves.map((one, i) => `${one.name} ${short(values[i])}`).join(" · ");
  const now = curves.map((one) => one.points.at(-1)[1]);
  const readout = h("p.readout", told(now));
  const picture = s(
    "svg.chart",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: now ${number(now[0], 4)}` },
    axes(scale),
    curves.map((one, i) => curve(one.points, i, scale)),
  );
  pointed(picture, (event) => {
    const box = picture.getBoundingClientRect();
    const step = scale.step(((event.clientX - box.left) * WIDTH) / box.width);
    const near = curves.map((one) => nearest(one.points, step));
    readout.textContent = `update ${near[0][0].toLocaleString("en")}: ${told(near.map((one) => one[1]))}`;
  });
  const key = h(
    "span.legend",
    curves.map((one, i) => [h(`i.swatch.swatch${i}`), one.name]),
  );
  return h(
    "figure.chart-figure",
    h("figcaption.row", h("b", title), curves.length > 1 ? key : null),
    picture,
    readout,
  );
}

/** Where a step and a value are in the picture, and which step is at a place. */
function scaled(points) {
  const ys = points.map(([, y]) => y);
  const [last, low, high] = [Math.max(...points.map(([x]) => x), 1), Math.min(...ys), Math.max(...ys)];
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  const width = WIDTH - LEFT - 8;
  return {
    ...{ last, low, high },
    x: (step) => LEFT + (step / last) * width,
    y: (value) => HEIGHT - BOTTOM - ((value - low + pad) / (high - low + 2 * pad)) * (HEIGHT - BOTTOM - 8),
    step: (x) => ((x - LEFT) / width) * last,
  };
}

function axes({ x, y, last, low, high }) {
  return [
    ticks(low, high).map((value) => [
      s("line.grid", { x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
      s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    ]),
    ticks(0, last).map((step) =>
      s("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, step.toLocaleString("en")),
    ),
  ];
}

function curve(points, i, { x, y }) {
  const dots = points.length < 60 ? points : [];
  return [
    s(`polyline.curve${i}`, { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }),
    dots.map(([a, b]) => s(`circle.curve${i}`, { cx: x(a), cy: y(b), r: 3 })),
  ];
}

const nearest = (points, step) =>
  points.reduce((best, one) => (Math.abs(one[0] - step) < Math.abs(best[0] - step) ? one : best));

const short = (value) =>
  value === 0
    ? "0"
    : Math.abs(value) >= 100
      ? value.toFixed(0)
      : Math.abs(value) >= 0.01
        ? String(Number(value.toPrecision(3)))
        : value.toExponential(1);

/** About four round numbers between two. */
function ticks(low, high) {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(Number(value.toPrecision(6)));
  return found;
}
