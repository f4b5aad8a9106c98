// The last step of a walk: where the mixed values go.
import { typical } from "./colour.js";
import { h, number } from "./dom.js";
import { line, quoted as name, strip, table, variable as v, weight, written } from "./strips.js";

const size = (one) => Math.sqrt(one.reduce((sum, y) => sum + y * y, 0));

/** A line of a table: `most` is the number with the full colour. */
const vector =
  (say) =>
  (token, values, { on = false, most = typical([values]) } = {}) =>
    line({ token, wide: strip(values, most, say, token), narrow: written(values), on });

export const output = (own) => ({ stream, cell, output: joined })[own.into](own);

/** A head of a Transformer adds to the residual stream. */
function stream({ mixed, output: added, residual, rows, row, say, head, layer, who, predicting }) {
  const lengths = added.map(size);
  const most = Math.max(...lengths, 1e-9);
  const one = vector(say);
  const [sum, alike] = [residual[row].map((x, i) => x + added[row][i]), typical([residual[row]])];
  return {
    name: "output",
    title: "Output: added to the residual stream",
    formula: [v("o"), " = ", v("z"), v("W", "O"), ",  ", v("r"), " ← ", v("r"), " + ", v("o")],
    words: [
      [
        `The output matrix maps the ${mixed[row].length} numbers back to ${added[row].length}. The outputs of all heads of layer ${layer} are added to the residual stream (r) of `,
        who,
        " as it was before this attention sub-layer.",
      ],
      [
        `The output of head ${head} has length `,
        h("b.added", number(size(added[row]), 2)),
        "; the residual stream has length ",
        h("b.stream", number(size(residual[row]), 2)),
        ". “Switch off” shows what changes without this head.",
      ],
    ],
    numbers: [
      table([
        one("z", mixed[row]),
        one("o", added[row], { on: true, most: alike }),
        one("r", residual[row], { most: alike }),
        one("r + o", sum, { most: alike }),
      ]),
      h("h3", "Length of the head's output / of the residual stream"),
      table(
        lengths.map((length, i) =>
          line({
            token: rows[i],
            wide: weight(length / most),
            narrow: `${number(length, 2)} / ${number(size(residual[i]), 2)}`,
            on: i === row,
          }),
        ),
        predicting.length > 0,
      ),
    ],
  };
}

/** Bahdanau's decoder: the context enters its cell beside the token that is read next. */
function cell({ mixed, output: state, x, row, say, predicting }) {
  const one = vector(say);
  return {
    name: "output",
    title: "Output: into the recurrent cell",
    formula: [v("x′"), " = cell(", v("x"), ", [token; ", v("z"), "])"],
    words: [
      "This decoder has no residual stream. The sum z, called the context, enters its recurrent cell together with the next token, and the cell computes the next state.",
      ["The next token, ", name(predicting[row]), ", is predicted from that state."],
    ],
    numbers: table([one("x", x[row]), one("z", mixed[row], { on: true }), one("x′", state[row])]),
  };
}

/** Luong's decoder: the context is joined with the state that was the query. */
function joined({ mixed, output: vectors, x, row, say, predicting }) {
  const one = vector(say);
  return {
    name: "output",
    title: "Output: joined with the state",
    formula: [v("y"), " = tanh(", v("W"), " [", v("z"), "; ", v("x"), "])"],
    words: [
      "This decoder has no residual stream. The sum z, called the context, and the state x go through one more matrix.",
      ["The next token, ", name(predicting[row]), ", is predicted from the result, which also enters the next step."],
    ],
    numbers: table([one("x", x[row]), one("z", mixed[row], { on: true }), one("y", vectors[row])]),
  };
}
