// The step from queries and keys to scores, as the server says it is made: nothing of it is guessed here.
import { largest } from "./colour.js";
import { h, number, shown } from "./dom.js";
import { line, quoted as name, strip, variable as v, written } from "./strips.js";

/** How each kind of score compares a query with a key: its formula, and in words. */
const KINDS = {
  dot: {
    formula: () => [v("q"), " · ", v("k")],
    words: "is multiplied with each key, number by number, and summed up: a large sum means that they point the same way.",
  },
  bilinear: {
    formula: () => [v("q"), " ", v("W"), " ", v("k")],
    words: "is compared with each key through a learned matrix W, which says which of their numbers have to do with each other.",
  },
  "low-rank": {
    formula: () => [v("q"), " ", v("U"), h("sup", "T"), v("V"), " ", v("k")],
    words: "is compared with each key through a learned matrix of low rank: both are made short first, then multiplied.",
  },
  additive: {
    formula: () => [v("w"), " · tanh(", v("q"), " + ", v("k"), ")"],
    words: "is added to each key, squeezed between −1 and 1, and weighed by a learned vector.",
  },
};

const OTHER = {
  formula: () => ["score(", v("q"), ", ", v("k"), ")"],
  words: "is compared with each key.",
};

export function scores(own) {
  const { scores: table, rows, columns, row, column: j, chooseColumn } = own;
  const kind = KINDS[own.score] ?? OTHER;
  const [scale, most] = [scaleOf(own), largest([table[row]])];
  const lines = table[row].map((score, c) =>
    line({
      token: columns[c],
      wide: signedBar(score, most),
      narrow: number(score, 2),
      on: c === j,
      choose: () => chooseColumn(c),
      label: "score of ",
      keep: `score${c}`,
    }),
  );
  return {
    title: "Scores: how well do they fit?",
    formula: [v("s"), " = ", kind.formula(), scale.formula, own.bias ? " + what positions add" : ""],
    words: [
      ["The query of ", name(rows[row]), " ", kind.words],
      scale.words,
      ["Choose a token on the right to see how its score is made."],
    ],
    numbers: [h("div.lines-table", lines), h("h3", shown(rows[row]), " · ", shown(columns[j])), arithmetic(own, scale)],
  };
}

/** What the product is multiplied with, as one writes it: ÷ √D where it is that. */
function scaleOf({ scale = 1, width }) {
  if (scale === 1) return { formula: "", words: "", step: "" };
  if (Math.abs(scale * Math.sqrt(width) - 1) > 1e-4) {
    const by = ` × ${number(scale)}`;
    return { formula: by, words: "", step: by };
  }
  const words = `Dividing by √${width} keeps the sums from growing with the width, which would make the softmax too sharp.`;
  return { formula: ` / √${width}`, words, step: ` ÷ √${width}` };
}

/** One score, from its parts to the end. */
function arithmetic({ query, key, scores: table, bias, score, scale = 1, row, column: j, say }, { step }) {
  const most = largest([query[row], key[j]]) * 0.7;
  const vector = (token, values, size) =>
    line({ token, wide: strip(values, size, say, token), narrow: written(values) });
  const added = bias ? bias[row][j] : 0;
  const own = table[row][j] === null ? null : table[row][j] - added; // without what positions add
  const product = query[row].map((x, d) => x * key[j][d]);
  const sum = product.reduce((a, b) => a + b, 0);
  const dot = score === "dot";
  return h(
    "div.arithmetic",
    vector("q", query[row], most),
    vector("k", key[j], most),
    dot ? vector("q × k", product, largest([product]) * 0.7) : null,
    h(
      "p.sum",
      dot ? ["sum ", h("b", number(sum, 2))] : ["score ", h("b", number(own, 3))],
      dot && step ? [`${step} = `, h("b", number(sum * scale, 3))] : null,
      bias ? [" + position ", h("b", number(added, 3)), " = ", h("b", number(table[row][j], 3))] : null,
    ),
  );
}

/** A bar to the left of the middle for what is below zero, to the right for what is above. */
export function signedBar(x, most) {
  if (x === null) return h("span.masked", "masked");
  const size = (50 * Math.abs(x)) / most;
  return h(
    "span.signed-track",
    h(`span.signed-fill${x < 0 ? ".less" : ""}`, {
      style: { width: `${size}%`, left: x < 0 ? `${50 - size}%` : "50%" },
    }),
  );
}
