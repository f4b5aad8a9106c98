// Step "scores": from queries and keys to scores, by the formula that the server reports.
import { maxAbs, robustMax } from "../colour.js";
import { formatNumber, h } from "../dom.js";
import { descendingOrder, formatVector, quote, symbol, tokenRow, tokenTable, vectorStrip } from "./vectors.js";

/** Score functions: formula and explanation. */
const FUNCTIONS = {
  dot: {
    formula: (q, k) => [q, " · ", k],
    text: "and each key are multiplied element by element and summed (dot product): a large score means that they point in the same direction.",
  },
  bilinear: {
    formula: (q, k) => [q, " ", symbol("W"), " ", k],
    text: "is compared with each key through a learned matrix W.",
  },
  "low-rank": {
    formula: (q, k) => [q, " ", symbol("U"), h("sup", "T"), symbol("V"), " ", k],
    text: "is compared with each key through a learned matrix of low rank: both are projected to fewer dimensions, then multiplied.",
  },
  additive: {
    formula: (q, k) => [symbol("w"), " · tanh(", q, " + ", k, ")"],
    text: "is added to each key; the sum goes through tanh and is multiplied by a learned vector.",
  },
};

export function scoresStep(head) {
  const { scores, rows, columns, row, column, selectColumn, subject } = head;
  const [score, [q, k]] = [FUNCTIONS[head.score], symbolsOf(head)];
  const [scale, most] = [scaleOf(head), maxAbs([scores[row]])];
  const keys = descendingOrder(scores[row]).map((j) =>
    tokenRow({
      token: columns[j],
      wide: signedBar(scores[row][j], most),
      narrow: formatNumber(scores[row][j], 2),
      selected: j === column,
      onSelect: () => selectColumn(j),
      label: "score of ",
      focusKey: `score${j}`,
    }),
  );
  return {
    name: "scores",
    title: "Scores: query against keys",
    formula: [symbol("s"), " = ", score.formula(symbol(q), symbol(k)), scale.formula, head.bias ? " + position bias" : ""],
    text: [
      ["The query of ", subject, " ", score.text],
      scale.text,
      "Select a key in the list to see how its score is computed.",
    ],
    numbers: [
      h("p.hint", `${columns.length} keys, sorted by score`),
      tokenTable(keys),
      h("h3", "Score of the key ", quote(columns[column]), " for the query ", quote(rows[row])),
      calculation(head, scale),
    ],
  };
}

/** Factor of the product: / √D where it is that, else a number. */
function scaleOf({ scale, width }) {
  if (scale === 1) return { formula: "", text: "", step: "" };
  if (Math.abs(scale * Math.sqrt(width) - 1) > 1e-4) {
    const factor = ` × ${formatNumber(scale)}`;
    return { formula: factor, text: "", step: factor };
  }
  const text = `Dividing by √${width}, the root of the head dimension, keeps the scores from growing with it, which would saturate the softmax.`;
  return { formula: ` / √${width}`, text, step: ` ÷ √${width}` };
}

/** With rotary positions the rotated vectors are compared. */
const symbolsOf = ({ rotated_query }) => (rotated_query ? ["q′", "k′"] : ["q", "k"]);

/** Intermediate vectors of one score, [[name, vector]]; the elements of the last are summed. */
function intermediates({ score, score_weight: w }, query, key, [q, k]) {
  const multiply = (a, b) => a.map((x, d) => x * b[d]);
  const inputs = [[q, query], [k, key]];
  if (score === "dot") return [...inputs, [`${q} × ${k}`, multiply(query, key)]];
  if (score === "additive") {
    const hidden = query.map((x, d) => Math.tanh(x + key[d]));
    return [...inputs, [`tanh(${q} + ${k})`, hidden], ["× w", multiply(hidden, w)]];
  }
  const projected = w[0].map((_, d) => query.reduce((sum, x, e) => sum + x * w[e][d], 0));
  return [...inputs, [`${q} W`, projected], [`${q} W × ${k}`, multiply(projected, key)]];
}

/** Calculation of one score, step by step. */
function calculation(head, { step }) {
  const { scores, bias, scale, row, column, setReadout } = head;
  const [query, key] = [(head.rotated_query ?? head.query)[row], (head.rotated_key ?? head.key)[column]];
  const vectors = intermediates(head, query, key, symbolsOf(head));
  const most = robustMax([query, key]);
  const vectorRow = ([token, values], i) => {
    const wide = vectorStrip(values, i < 2 ? most : robustMax([values]), setReadout, token);
    return tokenRow({ token, wide, narrow: formatVector(values) });
  };
  const sum = vectors.at(-1)[1].reduce((a, b) => a + b, 0);
  return h(
    "div.arithmetic",
    vectors.map(vectorRow),
    h(
      "p.sum",
      ["sum ", h("b", formatNumber(sum, 2))],
      step ? [`${step} = `, h("b", formatNumber(sum * scale, 3))] : null,
      bias ? [" + position bias ", h("b", formatNumber(bias[row][column], 3)), " = ", h("b", formatNumber(scores[row][column], 3))] : null,
    ),
  );
}

/** Bar to the left of the centre for a negative number, to the right for a positive one. */
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
