// Line charts of training metrics by step.
import { formatNumber, h, onPointer, s } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 220, 48, 22];

/** Chart of curves [{name, points: [[step, value]]}]; the values nearest to the pointer are printed below. */
export function lineChart(title, curves) {
  const scale = createScale(curves.flatMap((curve) => curve.points));
  const format = (values) => curves.map(({ name }, i) => `${name} ${formatTick(values[i])}`).join(" · ");
  const latest = curves.map((curve) => curve.points.at(-1)[1]);
  const readout = h("p.readout", format(latest));
  const picture = s(
    "svg.chart",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, latest value ${formatNumber(latest[0], 4)}` },
    axes(scale),
    curves.map(({ points }, i) => drawCurve(points, i, scale)),
  );
  onPointer(picture, (event) => {
    const box = picture.getBoundingClientRect();
    const step = scale.step(((event.clientX - box.left) * WIDTH) / box.width);
    const near = curves.map(({ points }) => nearest(points, step));
    readout.textContent = `update ${near[0][0].toLocaleString("en")}: ${format(near.map((point) => point[1]))}`;
  });
  const legend = h(
    "span.legend",
    curves.map(({ name }, i) => [h(`i.swatch.swatch${i}`), name]),
  );
  return h(
    "figure.chart-figure",
    h("figcaption.row", h("b", title), curves.length > 1 ? legend : null),
    picture,
    readout,
  );
}

/** Map steps and values to coordinates, and an x coordinate back to a step. */
function createScale(points) {
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
      s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, formatTick(value)),
    ]),
    ticks(0, last).map((step) =>
      s("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, step.toLocaleString("en")),
    ),
  ];
}

function drawCurve(points, i, { x, y }) {
  const dots = points.length < 60 ? points : [];
  return [
    s(`polyline.curve${i}`, { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }),
    dots.map(([a, b]) => s(`circle.curve${i}`, { cx: x(a), cy: y(b), r: 3 })),
  ];
}

const nearest = (points, step) =>
  points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));

const formatTick = (value) =>
  value === 0
    ? "0"
    : Math.abs(value) >= 100
      ? value.toFixed(0)
      : Math.abs(value) >= 0.01
        ? String(Number(value.toPrecision(3)))
        : value.toExponential(1);

/** About four round numbers between two bounds. */
function ticks(low, high) {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(Number(value.toPrecision(6)));
  return values;
}
