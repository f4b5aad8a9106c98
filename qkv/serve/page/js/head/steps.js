// Steps of the computation of one head, each {name, title, formula, text, numbers}.
import { maxAbs, robustMax } from "../colour.js";
import { formatNumber, h } from "../dom.js";
import { outputStep } from "./output.js";
import { rotationStep } from "./rotation.js";
import { scoresStep, signedBar } from "./scores.js";
import { descendingOrder, formatVector, quote, symbol, tokenRow, tokenTable, vectorStrip, weightBar } from "./vectors.js";

/** result: response of /api/look/walk; selection: {row, column, setReadout, selectRow, selectColumn}. */
export function stepsOf(result, selection) {
  const { after, predicting } = result;
  const { row } = selection;
  const decoderStep = () => ["the step after ", quote(after[row]), ", predicting ", quote(predicting[row]), ","];
  const head = {
    ...result,
    ...selection,
    width: result.query[0].length,
    cross: result.kind === "cross",
    recurrent: result.into !== "stream",
    subject: predicting.length ? decoderStep() : quote(result.rows[row]),
  };
  const steps = [inputStep, projectionStep, result.angles ? rotationStep : null, scoresStep, maskStep, softmaxStep, sumStep, outputStep];
  return steps.filter(Boolean).map((step) => step(head));
}

function inputStep({ x, memory, residual, rows, columns, row, setReadout, selectRow, cross, recurrent, subject, predicting }) {
  const most = robustMax([...x, ...memory]);
  const list = (vectors, names, selected, onSelect, long) =>
    tokenTable(
      vectors.map((vector, i) =>
        tokenRow({
          token: names[i],
          wide: vectorStrip(vector, most, setReadout, `x(${names[i]})`),
          narrow: formatVector(vector),
          selected: i === selected,
          onSelect: onSelect && (() => onSelect(i)),
          label: "query ",
          focusKey: `from${i}`,
        }),
      ),
      long,
    );
  const size = x[0].length;
  const unchanged = !residual || residual[row].every((value, i) => value === x[row][i]);
  const about = recurrent
    ? `The state of the decoder has ${size} numbers: all that it keeps of the tokens read so far. Each strip is one state: blue is positive, orange negative.`
    : `A token enters this layer as ${size} numbers: its vector in the residual stream${unchanged ? "" : " (r), normalised"}. Each strip is one vector: blue is positive, orange negative.`;
  return {
    name: "x",
    title: recurrent ? "Decoder states and source vectors" : "Input: one vector per token",
    formula: [symbol("x"), unchanged ? "" : [" = norm(", symbol("r"), ")"], " ∈ ℝ", h("sup", String(size))],
    text: [
      about,
      cross ? "Cross-attention has two sets of vectors: queries come from the decoder, keys and values from the source." : "",
      predicting.length
        ? "Each row is named by the last token read, whose vector it is, and the token predicted from it."
        : ["The query token is ", subject, ". Select another one by its name."],
    ],
    numbers: cross
      ? [
          h("h3", recurrent ? "States of the decoder" : "Decoder"),
          list(x, rows, row, selectRow, true),
          h("h3", "Source"),
          list(memory, columns, -1, null, false),
        ]
      : [h("h3", predicting.length ? "Decoder" : "Tokens"), list(x, rows, row, selectRow, predicting.length > 0)],
  };
}

function projectionStep(head) {
  const { query, key, value, rows, columns, row, column, width, setReadout, cross, recurrent, subject, shared, biased, predicting } = head;
  const most = robustMax([...query, ...key]);
  const vectorRow = (letter, token, values, size, selected = false) =>
    tokenRow({ token, wide: vectorStrip(values, size, setReadout, `${letter}(${token})`), narrow: formatVector(values), selected });
  const list = (letter, vectors, size) =>
    tokenTable(vectors.map((values, j) => vectorRow(letter, columns[j], values, size, j === column)));
  const product = (letter, matrix) => [symbol(letter), " = ", symbol("x"), symbol("W", matrix), biased ? [" + ", symbol("b", matrix)] : ""];
  const grouped = `Heads ${shared.slice(0, -1).join(", ")} and ${shared.at(-1)} share these keys and values (grouped-query attention): only their queries differ.`;
  return {
    name: "q k v",
    title: "Query, key and value",
    formula: [product("q", "Q"), ", ", product("k", "K"), ", ", recurrent ? [symbol("v"), " = ", symbol("x")] : product("v", "V")],
    text: [
      [
        `${recurrent ? "Two" : "Three"} learned matrices project each vector to ${recurrent ? "others" : "three smaller ones"} of ${width} numbers. The `,
        h("b", "query"),
        " of ",
        subject,
        " is compared with the ",
        h("b", "key"),
        " of every token; the better they match, the more of that token's ",
        h("b", "value"),
        ` enters the output${recurrent ? ". Here the value is the source vector itself." : "."}`,
      ],
      cross
        ? "Queries come from the decoder, keys and values from the source."
        : "All three come from the same tokens: self-attention.",
      shared.length > 1 ? grouped : "",
    ],
    numbers: [
      h("h3", "Query"),
      tokenTable([vectorRow("q", rows[row], query[row], most, true)], predicting.length > 0),
      h("h3", "Keys"),
      list("k", key, most),
      h("h3", "Values"),
      list("v", value, robustMax(value)),
    ],
  };
}

function maskStep({ scores, allowed, columns, row, kind, subject }) {
  const masked = allowed[row].filter((visible) => !visible).length;
  const most = maxAbs([scores[row]]);
  const reason = masked
    ? [
        "A decoder generates from left to right, so ",
        subject,
        ` must not attend to later tokens: ${masked} ${masked === 1 ? "score is" : "scores are"} set to −∞, for which the softmax gives exactly 0.`,
      ]
    : allowed.some((visible) => visible.includes(false))
      ? ["Later tokens are masked; ", subject, " has none. Select an earlier query to see masked scores."]
      : [
          kind === "cross"
            ? "The whole source is known before the first token is generated: nothing is masked."
            : "An encoder attends in both directions: nothing is masked here.",
        ];
  return {
    name: "mask",
    title: "Mask",
    formula: [symbol("s"), " ← −∞ where attention is not allowed"],
    text: [reason],
    numbers: tokenTable(
      scores[row].map((score, j) => {
        const visible = allowed[row][j];
        return tokenRow({
          token: columns[j],
          wide: visible ? signedBar(score, most) : h("span.masked", "masked"),
          narrow: visible ? formatNumber(score, 2) : "−∞",
          faint: !visible,
          selected: kind !== "cross" && j === row,
        });
      }),
    ),
  };
}

function softmaxStep({ scores, allowed, weights, columns, row }) {
  const largest = Math.max(...scores[row].filter((_, j) => allowed[row][j]));
  const exponentials = scores[row].map((score, j) => (allowed[row][j] ? Math.exp(score - largest) : 0));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return {
    name: "softmax",
    title: "Softmax: scores become weights",
    formula: [symbol("a"), " = e", h("sup", "s"), " / Σ e", h("sup", "s")],
    text: [
      [
        "The exponential makes all scores positive and enlarges differences; dividing by the sum (",
        h("b", formatNumber(total, 2)),
        ") gives weights that sum to 1.",
      ],
      "The largest score is subtracted first, which leaves the weights the same and avoids overflow. These weights are one row of the attention matrix.",
    ],
    numbers: [
      h("p.hint", `${columns.length} keys, sorted by weight`),
      tokenTable(
        descendingOrder(weights[row]).map((j) =>
          tokenRow({
            token: columns[j],
            wide: weightBar(weights[row][j]),
            faint: !allowed[row][j],
            narrow: h(
              "span",
              h("span.quiet.power", allowed[row][j] ? `${formatNumber(exponentials[j], 2)} ÷ ${formatNumber(total, 2)} = ` : ""),
              h("b", formatNumber(weights[row][j])),
            ),
          }),
        ),
      ),
    ],
  };
}

const MAX_VALUES = 12; // values listed in the weighted sum

function sumStep({ weights, value, mixed, value_bias: bias, columns, row, setReadout, subject }) {
  const most = robustMax(value);
  const term = (j) => {
    const weighted = value[j].map((y) => weights[row][j] * y);
    return tokenRow({
      token: columns[j],
      wide: vectorStrip(weighted, most, setReadout, `a·v(${columns[j]})`),
      narrow: [h("b", formatNumber(weights[row][j])), " × v"],
    });
  };
  const vectorRow = (token, vector, selected = false) =>
    tokenRow({ token, wide: vectorStrip(vector, most, setReadout, token), narrow: formatVector(vector), selected });
  return {
    name: "weighted sum",
    title: "Weighted sum of the values",
    formula: [symbol("z"), " = Σ ", symbol("a"), " ", symbol("v"), bias ? " + relative positions" : ""],
    text: [
      "Each value is multiplied by its attention weight: values with small weights contribute little.",
      ["The sum is the result of this head for ", subject, " before the output matrix."],
      columns.length > MAX_VALUES ? `The ${MAX_VALUES} values with the largest weights are listed.` : "",
    ],
    numbers: [
      tokenTable(descendingOrder(weights[row]).slice(0, MAX_VALUES).map(term)),
      h("h3", "Sum"),
      tokenTable([bias ? vectorRow("position", bias[row]) : null, vectorRow("z", mixed[row], true)]),
    ],
  };
}
