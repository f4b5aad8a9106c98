// Attention as lines: queries on the left, keys on the right; the thicker the line, the larger the weight.
import { edges, h, number, roving, s } from "./dom.js";

const ROW = 28;
const WIDTH = 260;
const FAINT = 0.03; // weights below this are not drawn

export function lines({ rows, columns, values, chosen, choose, label }) {
  const height = ROW * Math.max(rows.length, columns.length);
  const strokes = values.map(strokesOf);
  const picture = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", height, role: "img", "aria-label": label },
    strokes,
  );
  const readout = h("p.readout", { "aria-live": "polite" });
  const from = rows.map((name, i) =>
    h(
      "button.word",
      { type: "button", "data-keep": `word${i}`, "aria-pressed": i === chosen, onclick: () => choose(i) },
      name,
    ),
  );
  const to = columns.map((name) => h("span.word", name));

  function mark(i) {
    strokes.forEach((own, k) => own.forEach((line) => line.classList.toggle("off", i >= 0 && k !== i)));
    to.forEach((word, j) => word.style.setProperty("--weight", i >= 0 ? `${Math.round(45 * values[i][j])}%` : "0%"));
    readout.replaceChildren(...(i < 0 ? [HOW] : best(rows[i], columns, values[i])));
  }

  from.forEach((word, i) => {
    word.addEventListener("pointerenter", () => mark(i));
    word.addEventListener("focus", () => mark(i));
    word.addEventListener("pointerleave", () => mark(chosen));
  });
  mark(chosen);
  const box = h("div.lines-scroll", roving(h("div.words.from", from), ".word"), picture, h("div.words", to));
  return h("figure.lines", edges(box), readout);
}

const HOW = "Point at a row on the left to see its weights; click to keep it.";

/** The lines of the i-th word: one for each weight that can be seen. */
function strokesOf(weights, i) {
  const y = (n) => (n + 0.5) * ROW;
  const seen = weights.map((x, j) => [x, j]).filter(([x]) => x >= FAINT);
  return seen.map(([x, j]) =>
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

/** The largest weights of a row, in words. */
function best(name, columns, weights) {
  const most = weights
    .map((x, j) => [x, j])
    .sort((a, b) => b[0] - a[0])
    .slice(0, 3);
  return [
    h("b", name),
    ": ",
    ...most.flatMap(([x, j], n) => [n ? ", " : "", h("b", columns[j]), ` ${number(x)}`]),
  ];
}
