// Attention as lines from queries (left) to keys (right); a thicker line is a larger weight.
import { formatNumber, h, markOverflow, rovingFocus, s } from "./dom.js";

const ROW = 28;
const WIDTH = 260;
const MIN_WEIGHT = 0.03; // smaller weights are not drawn
const HINT = "Point at a query on the left to see its weights; click to select it.";

export function attentionLines({ rows, columns, values, selected, onSelect, label }) {
  const height = ROW * Math.max(rows.length, columns.length);
  const strokes = values.map(drawStrokes);
  const picture = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", height, role: "img", "aria-label": label },
    strokes,
  );
  const readout = h("p.readout", { "aria-live": "polite" });
  const queries = rows.map((name, i) =>
    h(
      "button.word",
      { type: "button", "data-focus-key": `word${i}`, "aria-pressed": i === selected, onclick: () => onSelect(i) },
      name,
    ),
  );
  const keys = columns.map((name) => h("span.word", name));

  function highlight(i) {
    strokes.forEach((lines, row) => lines.forEach((line) => line.classList.toggle("off", i >= 0 && row !== i)));
    keys.forEach((key, j) => key.style.setProperty("--weight", i >= 0 ? `${Math.round(45 * values[i][j])}%` : "0%"));
    readout.replaceChildren(...(i < 0 ? [HINT] : largestWeights(rows[i], columns, values[i])));
  }

  queries.forEach((query, i) => {
    query.addEventListener("pointerenter", () => highlight(i));
    query.addEventListener("focus", () => highlight(i));
    query.addEventListener("pointerleave", () => highlight(selected));
  });
  highlight(selected);
  const box = h("div.lines-scroll", rovingFocus(h("div.words.from", queries), ".word"), picture, h("div.words", keys));
  return h("figure.lines", markOverflow(box), readout);
}

/** Lines of the i-th query, one for each weight that is large enough. */
function drawStrokes(weights, i) {
  const y = (n) => (n + 0.5) * ROW;
  const visible = weights.map((x, j) => [x, j]).filter(([x]) => x >= MIN_WEIGHT);
  return visible.map(([x, j]) =>
    s("line", {
      x1: 0,
      x2: WIDTH,
      y1: y(i),
      y2: y(j),
      "stroke-width": 1 + 4 * x,
      "stroke-opacity": Math.min(1, 0.12 + x),
    }),
  );
}

/** List the three largest weights of a query. */
function largestWeights(name, columns, weights) {
  const largest = weights
    .map((x, j) => [x, j])
    .sort((a, b) => b[0] - a[0])
    .slice(0, 3);
  return [
    h("b", name),
    ": ",
    ...largest.flatMap(([x, j], n) => [n ? ", " : "", h("b", columns[j]), ` ${formatNumber(x)}`]),
  ];
}
