// The steps of a walk through a head: a title, a formula, a few words, and the numbers themselves.
import { largest } from "./colour.js";
import { h, number, shown } from "./dom.js";
import { scores, signedBar } from "./scores.js";
import { line, quoted as name, strip, variable as v, weight, written } from "./strips.js";

export const STEPS = ["x", "q k v", "scores", "mask", "softmax", "mix", "output"];

/** found: what the server says of the head; at: {row, column, say, chooseRow, chooseColumn}. */
export function steps(found, at) {
  const own = { ...found, ...at, width: found.query[0].length, cross: found.kind === "cross" };
  return [inputs, projections, scores, mask, softmax, mix, output].map((step) => step(own));
}

// --- 1

function inputs({ x, memory, rows, columns, row, say, chooseRow, cross }) {
  const most = largest([...x, ...memory]) * 0.6;
  const list = (table, names, on, choose, title) => [
    h("h3", title),
    h(
      "div.lines-table",
      table.map((one, i) =>
        line({
          token: names[i],
          wide: strip(one, most, say, `x(${shown(names[i])})`),
          narrow: written(one),
          on: i === on,
          choose: choose && (() => choose(i)),
          label: "look from ",
          keep: `from${i}`,
        }),
      ),
    ),
  ];
  return {
    title: "Every token is a vector",
    formula: [v("x"), " ∈ ℝ", h("sup", String(x[0].length))],
    words: [
      `A token enters this layer as ${x[0].length} numbers: its meaning so far, normalised. Each strip is one token; one colour is above zero, the other below.`,
      cross
        ? "In cross-attention what is written looks at the source: two sets of vectors."
        : ["The token that looks is ", name(rows[row]), ". Choose another one by its name."],
    ],
    numbers: cross
      ? [list(x, rows, row, chooseRow, "What is being written"), list(memory, columns, -1, null, "The source")]
      : list(x, rows, row, chooseRow, "Tokens"),
  };
}

// --- 2

function projections({ query, key, value, rows, columns, row, width, say, cross }) {
  const most = largest([...query, ...key]) * 0.7;
  const one = (letter, token, values, size, on = false) =>
    line({ token, wide: strip(values, size, say, `${letter}(${shown(token)})`), narrow: written(values), on });
  const strips = (letter, table, size) => table.map((values, j) => one(letter, columns[j], values, size));
  const product = (letter, below) => [v(letter), " = ", v("x"), v("W", below)];
  return {
    title: "Query, key and value",
    formula: [product("q", "Q"), ",  ", product("k", "K"), ",  ", product("v", "V")],
    words: [
      [
        `Three learned matrices turn each vector into three small ones of ${width} numbers. The `,
        h("b", "query"),
        " says what ",
        name(rows[row]),
        " is looking for; a ",
        h("b", "key"),
        " says what a token has to offer; a ",
        h("b", "value"),
        " is what it hands over.",
      ],
      cross
        ? "Queries come from what is written, keys and values from the source."
        : "All three come from the same tokens: self-attention.",
    ],
    numbers: [
      h("h3", "Query"),
      h("div.lines-table", one("q", rows[row], query[row], most, true)),
      h("h3", "Keys"),
      h("div.lines-table", strips("k", key, most)),
      h("h3", "Values"),
      h("div.lines-table", strips("v", value, largest(value) * 0.7)),
    ],
  };
}

// --- 4 (3 is in scores.js)

function mask({ scores: table, allowed, rows, columns, row, kind }) {
  const hidden = allowed[row].filter((one) => !one).length;
  const most = largest([table[row]]);
  const why = hidden
    ? [
        "A decoder writes from left to right: ",
        name(rows[row]),
        ` must not see what comes after it. ${hidden} ${hidden === 1 ? "score becomes" : "scores become"} −∞, so that the softmax gives exactly 0.`,
      ]
    : allowed.some((one) => one.includes(false))
      ? [
          "Tokens behind the one that looks are hidden. ",
          name(rows[row]),
          " is the last: it sees all. Choose an earlier token to see the mask at work.",
        ]
      : [
          kind === "cross"
            ? "The whole source is there before the first word is written: nothing is hidden."
            : "An encoder may look both ways: nothing is hidden here.",
        ];
  return {
    title: "Mask: who may be looked at?",
    formula: [v("s"), " ← −∞ where looking is not allowed"],
    words: [why],
    numbers: h(
      "div.lines-table",
      table[row].map((score, j) => {
        const free = allowed[row][j];
        return line({
          token: columns[j],
          wide: free ? signedBar(score, most) : h("span.masked", "hidden"),
          narrow: free ? number(score, 2) : "−∞",
          faint: !free,
        });
      }),
    ),
  };
}

// --- 5

function softmax({ scores: table, allowed, weights, rows, columns, row }) {
  const free = table[row].filter((_, j) => allowed[row][j]);
  const top = Math.max(...free);
  const powers = table[row].map((score, j) => (allowed[row][j] ? Math.exp(score - top) : 0));
  const total = powers.reduce((a, b) => a + b, 0);
  return {
    title: "Softmax: scores become weights",
    formula: [v("a"), " = e", h("sup", "s"), " / Σ e", h("sup", "s")],
    words: [
      [
        "e to the power of each score makes all of them positive and the large ones much larger; divided by their sum (",
        h("b", number(total, 2)),
        "), they are shares of 1.",
      ],
      [
        "The largest score is taken off first, which changes nothing and keeps the numbers small. This row is what the attention matrix shows for ",
        name(rows[row]),
        ".",
      ],
    ],
    numbers: h(
      "div.lines-table",
      weights[row].map((one, j) =>
        line({
          token: columns[j],
          wide: weight(one),
          faint: !allowed[row][j],
          narrow: h(
            "span",
            h("span.quiet.power", allowed[row][j] ? `${number(powers[j], 2)} ÷ ${number(total, 2)} = ` : ""),
            h("b", number(one)),
          ),
        }),
      ),
    ),
  };
}

// --- 6

function mix({ weights, value, mixed, value_bias: added, rows, columns, row, say }) {
  const most = largest(value) * 0.7;
  const order = weights[row]
    .map((x, j) => [x, j])
    .sort((a, b) => b[0] - a[0])
    .slice(0, 12);
  const part = ([x, j]) =>
    line({
      token: columns[j],
      wide: strip(
        value[j].map((y) => x * y),
        most,
        say,
        `a·v(${shown(columns[j])})`,
      ),
      narrow: [h("b", number(x)), " × v"],
    });
  return {
    title: "The values, mixed",
    formula: [v("z"), " = Σ ", v("a"), " ", v("v"), added ? " + what positions add" : ""],
    words: [
      "Each value is multiplied with its weight: what has little weight fades to nothing.",
      [
        "Their sum is what this head has read for ",
        name(rows[row]),
        ". ",
        weights[row].length > 12 ? "Shown are the twelve largest." : "",
      ],
    ],
    numbers: [
      h("div.lines-table", order.map(part)),
      h("h3", "Sum"),
      h(
        "div.lines-table",
        added
          ? line({ token: "position", wide: strip(added[row], most, say, "position"), narrow: written(added[row]) })
          : null,
        line({ token: "z", wide: strip(mixed[row], most, say, "z"), narrow: written(mixed[row]), on: true }),
      ),
    ],
  };
}

// --- 7

function output({ mixed, output: added, x, rows, row, say, head, layer }) {
  const size = (one) => Math.sqrt(one.reduce((sum, y) => sum + y * y, 0));
  const lengths = added.map(size);
  const most = Math.max(...lengths, 1e-9);
  return {
    title: "Out: added to the stream",
    formula: [v("o"), " = ", v("z"), v("W", "O")],
    words: [
      [
        `A last matrix brings the ${mixed[row].length} numbers back to ${added[row].length}. All heads of layer ${layer} do the same, and what they say is added to the vector of `,
        name(rows[row]),
        ": the residual stream.",
      ],
      [
        `What head ${head} adds here is `,
        h("b", number(size(added[row]), 2)),
        ` long (x is ${number(size(x[row]), 2)}). Does it matter? Switch it off in “Switch off”.`,
      ],
    ],
    numbers: [
      h(
        "div.lines-table",
        line({
          token: "z",
          wide: strip(mixed[row], largest([mixed[row]]) * 0.7, say, "z"),
          narrow: written(mixed[row]),
        }),
        line({
          token: "o",
          wide: strip(added[row], largest([added[row]]) * 0.7, say, "o"),
          narrow: written(added[row]),
          on: true,
        }),
      ),
      h("h3", "How much it adds to each token"),
      h(
        "div.lines-table",
        lengths.map((one, i) =>
          line({ token: rows[i], wide: weight(one / most), narrow: number(one, 2), on: i === row }),
        ),
      ),
    ],
  };
}
