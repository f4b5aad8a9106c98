// The steps of a walk through a head: a name, a title, a formula, a few words, and the numbers themselves.
import { largest, typical } from "./colour.js";
import { h, number } from "./dom.js";
import { output } from "./outputs.js";
import { rotation } from "./rotation.js";
import { scores, signedBar } from "./scores.js";
import { line, quoted as name, ranked, strip, table, variable as v, weight, written } from "./strips.js";

/** found: what the server says of the head; at: {row, column, say, chooseRow, chooseColumn}. */
export function steps(found, at) {
  const { after, predicting } = found;
  const step = () => ["the step after ", name(after[at.row]), ", predicting ", name(predicting[at.row]), ","];
  const own = {
    ...found,
    ...at,
    width: found.query[0].length,
    cross: found.kind === "cross",
    recurrent: found.into !== "stream",
    who: predicting.length ? step() : name(found.rows[at.row]),
  };
  const all = [inputs, projections, found.angles ? rotation : null, scores, mask, softmax, mix, output];
  return all.filter(Boolean).map((one) => one(own));
}

// --- 1

function inputs({ x, memory, residual, rows, columns, row, say, chooseRow, cross, recurrent, who, predicting }) {
  const most = typical([...x, ...memory]);
  const list = (vectors, names, on, choose, long) =>
    table(
      vectors.map((one, i) =>
        line({
          token: names[i],
          wide: strip(one, most, say, `x(${names[i]})`),
          narrow: written(one),
          on: i === on,
          choose: choose && (() => choose(i)),
          label: "query ",
          keep: `from${i}`,
        }),
      ),
      long,
    );
  const size = x[0].length;
  const raw = !residual || residual[row].every((one, i) => one === x[row][i]);
  const about = recurrent
    ? `The state of the decoder has ${size} numbers: all that it keeps of the tokens read so far. Each strip is one state: blue is positive, orange negative.`
    : `A token enters this layer as ${size} numbers: its vector in the residual stream${raw ? "" : " (r), normalised"}. Each strip is one vector: blue is positive, orange negative.`;
  return {
    name: "x",
    title: recurrent ? "Decoder states and source vectors" : "Every token is a vector",
    formula: [v("x"), raw ? "" : [" = norm(", v("r"), ")"], " ∈ ℝ", h("sup", String(size))],
    words: [
      about,
      cross ? "Cross-attention has two sets of vectors: queries come from the decoder, keys and values from the source." : "",
      predicting.length
        ? "A row is named by the last token read, to which its vector belongs, and the token predicted from it."
        : ["The query token is ", who, ". Choose another one by its name."],
    ],
    numbers: cross
      ? [
          h("h3", recurrent ? "States of the decoder" : "Decoder"),
          list(x, rows, row, chooseRow, true),
          h("h3", "Source"),
          list(memory, columns, -1, null, false),
        ]
      : [h("h3", predicting.length ? "Decoder" : "Tokens"), list(x, rows, row, chooseRow, predicting.length > 0)],
  };
}

// --- 2

function projections(own) {
  const { query, key, value, rows, columns, row, column, width, say, cross, recurrent, who, shared, biased, predicting } = own;
  const most = typical([...query, ...key]);
  const one = (letter, token, values, size, on = false) =>
    line({ token, wide: strip(values, size, say, `${letter}(${token})`), narrow: written(values), on });
  const strips = (letter, vectors, size) =>
    table(vectors.map((values, j) => one(letter, columns[j], values, size, j === column)));
  const product = (letter, below) => [v(letter), " = ", v("x"), v("W", below), biased ? [" + ", v("b", below)] : ""];
  const same = `Heads ${shared.slice(0, -1).join(", ")} and ${shared.at(-1)} share these keys and values (grouped-query attention): only their queries differ.`;
  return {
    name: "q k v",
    title: "Query, key and value",
    formula: [product("q", "Q"), ", ", product("k", "K"), ", ", recurrent ? [v("v"), " = ", v("x")] : product("v", "V")],
    words: [
      [
        `${recurrent ? "Two" : "Three"} learned matrices turn each vector into ${recurrent ? "others" : "three small ones"} of ${width} numbers. The `,
        h("b", "query"),
        " of ",
        who,
        " is compared with the ",
        h("b", "key"),
        " of every token; the better they match, the more of that token's ",
        h("b", "value"),
        ` the head passes on${recurrent ? ". Here the value is the vector of the source itself." : "."}`,
      ],
      cross
        ? "Queries come from the decoder, keys and values from the source."
        : "All three come from the same tokens: self-attention.",
      shared.length > 1 ? same : "",
    ],
    numbers: [
      h("h3", "Query"),
      table([one("q", rows[row], query[row], most, true)], predicting.length > 0),
      h("h3", "Keys"),
      strips("k", key, most),
      h("h3", "Values"),
      strips("v", value, typical(value)),
    ],
  };
}

// --- 4 (3 is in scores.js, and with rotary positions rotation.js before it)

function mask({ scores: all, allowed, columns, row, kind, who }) {
  const hidden = allowed[row].filter((one) => !one).length;
  const most = largest([all[row]]);
  const why = hidden
    ? [
        "A decoder generates from left to right, so ",
        who,
        ` must not attend to later tokens: ${hidden} ${hidden === 1 ? "score is" : "scores are"} set to −∞, for which the softmax gives exactly 0.`,
      ]
    : allowed.some((one) => one.includes(false))
      ? ["Later tokens are masked; ", who, " has none. Choose an earlier query to see the mask at work."]
      : [
          kind === "cross"
            ? "The whole source is known before the first token is generated: nothing is masked."
            : "An encoder attends in both directions: nothing is masked here.",
        ];
  return {
    name: "mask",
    title: "Mask",
    formula: [v("s"), " ← −∞ where attention is not allowed"],
    words: [why],
    numbers: table(
      all[row].map((score, j) => {
        const free = allowed[row][j];
        return line({
          token: columns[j],
          wide: free ? signedBar(score, most) : h("span.masked", "masked"),
          narrow: free ? number(score, 2) : "−∞",
          faint: !free,
          on: kind !== "cross" && j === row,
        });
      }),
    ),
  };
}

// --- 5

function softmax({ scores: all, allowed, weights, columns, row }) {
  const free = all[row].filter((_, j) => allowed[row][j]);
  const top = Math.max(...free);
  const powers = all[row].map((score, j) => (allowed[row][j] ? Math.exp(score - top) : 0));
  const total = powers.reduce((a, b) => a + b, 0);
  return {
    name: "softmax",
    title: "Softmax: scores become weights",
    formula: [v("a"), " = e", h("sup", "s"), " / Σ e", h("sup", "s")],
    words: [
      [
        "e to the power of each score makes all of them positive and the large ones much larger; divided by their sum (",
        h("b", number(total, 2)),
        "), they are shares of 1.",
      ],
      "The largest score is subtracted first, which leaves the weights the same and avoids overflow. These weights are one row of the attention matrix.",
    ],
    numbers: [
      h("p.hint", `${columns.length} keys, the largest weight first`),
      table(
        ranked(weights[row]).map((j) =>
          line({
            token: columns[j],
            wide: weight(weights[row][j]),
            faint: !allowed[row][j],
            narrow: h(
              "span",
              h("span.quiet.power", allowed[row][j] ? `${number(powers[j], 2)} ÷ ${number(total, 2)} = ` : ""),
              h("b", number(weights[row][j])),
            ),
          }),
        ),
      ),
    ],
  };
}

// --- 6

const MIXED = 12; // values that are shown

function mix({ weights, value, mixed, value_bias: added, columns, row, say, who }) {
  const most = typical(value);
  const part = (j) =>
    line({
      token: columns[j],
      wide: strip(
        value[j].map((y) => weights[row][j] * y),
        most,
        say,
        `a·v(${columns[j]})`,
      ),
      narrow: [h("b", number(weights[row][j])), " × v"],
    });
  const position = () =>
    line({ token: "position", wide: strip(added[row], most, say, "position"), narrow: written(added[row]) });
  return {
    name: "mix",
    title: "Weighted sum of the values",
    formula: [v("z"), " = Σ ", v("a"), " ", v("v"), added ? " + relative positions" : ""],
    words: [
      "Each value is multiplied by its attention weight: values with small weights hardly contribute.",
      ["Their sum is this head's result for ", who, "."],
      columns.length > MIXED ? `Shown are the ${MIXED} with the largest weights.` : "",
    ],
    numbers: [
      table(ranked(weights[row]).slice(0, MIXED).map(part)),
      h("h3", "Sum"),
      table([
        added ? position() : null,
        line({ token: "z", wide: strip(mixed[row], most, say, "z"), narrow: written(mixed[row]), on: true }),
      ]),
    ],
  };
}
