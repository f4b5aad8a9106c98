// The step from queries and keys to scores, as the server says it is made: nothing of it is guessed here.
import { largest, typical } from "./colour.js";
import { h, number } from "./dom.js";
import { line, quoted, ranked, strip, table, variable as v, written } from "./strips.js";

/** How each kind of score compares a query with a key: its formula, and in words. */
const KINDS = {
  dot: {
    formula: (q, k) => [q, " · ", k],
    words: "and each key are multiplied element by element and summed (dot product): a large score means that they point in the same direction.",
  },
  bilinear: {
    formula: (q, k) => [q, " ", v("W"), " ", k],
    words: "is compared with each key through a learned matrix W.",
  },
  "low-rank": {
    formula: (q, k) => [q, " ", v("U"), h("sup", "T"), v("V"), " ", k],
    words: "is compared with each key through a learned matrix of low rank: both are projected to fewer dimensions, then multiplied.",
  },
  additive: {
    formula: (q, k) => [v("w"), " · tanh(", q, " + ", k, ")"],
    words: "is added to each key; the sum goes through tanh and is multiplied by a learned vector.",
  },
};

export function scores(own) {
  const { scores: all, rows, columns, row, column: j, chooseColumn, who } = own;
  const [kind, [q, k]] = [KINDS[own.score], lettersOf(own)];
  const [scale, most] = [scaleOf(own), largest([all[row]])];
  const lines = ranked(all[row]).map((c) =>
    line({
      token: columns[c],
      wide: signedBar(all[row][c], most),
      narrow: number(all[row][c], 2),
      on: c === j,
      choose: () => chooseColumn(c),
      label: "score of ",
      keep: `score${c}`,
    }),
  );
  return {
    name: "scores",
    title: "Scores: query against keys",
    formula: [v("s"), " = ", kind.formula(v(q), v(k)), scale.formula, own.bias ? " + position bias" : ""],
    words: [
      ["The query of ", who, " ", kind.words],
      scale.words,
      "Choose a key in the list to see how its score is computed.",
    ],
    numbers: [
      h("p.hint", `${columns.length} keys, the largest score first`),
      table(lines),
      h("h3", "Score of the key ", quoted(columns[j]), " for the query ", quoted(rows[row])),
      arithmetic(own, scale),
    ],
  };
}

/** What the product is multiplied with, as one writes it: ÷ √D where it is that. */
function scaleOf({ scale, width }) {
  if (scale === 1) return { formula: "", words: "", step: "" };
  if (Math.abs(scale * Math.sqrt(width) - 1) > 1e-4) {
    const by = ` × ${number(scale)}`;
    return { formula: by, words: "", step: by };
  }
  const words = `Dividing by √${width} keeps the sums from growing with the width, which would make the softmax too sharp.`;
  return { formula: ` / √${width}`, words, step: ` ÷ √${width}` };
}

/** Where positions are rotary, the rotated vectors are compared. */
const lettersOf = ({ rotated_query }) => (rotated_query ? ["q′", "k′"] : ["q", "k"]);

/** From a query and a key to the numbers that are summed up: [[name, vector]], the last being those. */
function factors({ score, score_weight: w }, query, key, [q, k]) {
  const times = (a, b) => a.map((x, d) => x * b[d]);
  const both = [[q, query], [k, key]];
  if (score === "dot") return [...both, [`${q} × ${k}`, times(query, key)]];
  if (score === "additive") {
    const inside = query.map((x, d) => Math.tanh(x + key[d]));
    return [...both, [`tanh(${q} + ${k})`, inside], ["× w", times(inside, w)]];
  }
  const folded = w[0].map((_, d) => query.reduce((sum, x, e) => sum + x * w[e][d], 0));
  return [...both, [`${q} W`, folded], [`${q} W × ${k}`, times(folded, key)]];
}

/** One score, from its parts to the end. */
function arithmetic(own, { step }) {
  const { scores: all, bias, scale, row, column: j, say } = own;
  const [query, key] = [(own.rotated_query ?? own.query)[row], (own.rotated_key ?? own.key)[j]];
  const parts = factors(own, query, key, lettersOf(own));
  const most = typical([query, key]);
  const vector = ([token, values], i) =>
    line({ token, wide: strip(values, i < 2 ? most : typical([values]), say, token), narrow: written(values) });
  const sum = parts.at(-1)[1].reduce((a, b) => a + b, 0);
  return h(
    "div.arithmetic",
    parts.map(vector),
    h(
      "p.sum",
      ["sum ", h("b", number(sum, 2))],
      step ? [`${step} = `, h("b", number(sum * scale, 3))] : null,
      bias ? [" + position ", h("b", number(bias[row][j], 3)), " = ", h("b", number(all[row][j], 3))] : null,
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
