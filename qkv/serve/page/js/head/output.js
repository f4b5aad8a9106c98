// Last step: where the weighted sum of the values goes.
import { robustMax } from "../colour.js";
import { formatNumber, h } from "../dom.js";
import { formatVector, quote, symbol, tokenRow, tokenTable, vectorStrip, weightBar } from "./vectors.js";

const norm = (vector) => Math.sqrt(vector.reduce((sum, y) => sum + y * y, 0));

const createVectorRow =
  (setReadout) =>
  (token, values, { selected = false, most = robustMax([values]) } = {}) =>
    tokenRow({ token, wide: vectorStrip(values, most, setReadout, token), narrow: formatVector(values), selected });

export const outputStep = (head) => ({ stream: residualStep, cell: recurrentStep, output: combinedStep })[head.into](head);

/** Transformer: the output of a head is added to the residual stream. */
function residualStep({ mixed, output: added, residual, rows, row, setReadout, head, layer, subject, predicting }) {
  const norms = added.map(norm);
  const most = Math.max(...norms, 1e-9);
  const vectorRow = createVectorRow(setReadout);
  const [sum, scale] = [residual[row].map((x, i) => x + added[row][i]), robustMax([residual[row]])];
  return {
    name: "output",
    title: "Output: added to the residual stream",
    formula: [symbol("o"), " = ", symbol("z"), symbol("W", "O"), ",  ", symbol("r"), " ← ", symbol("r"), " + ", symbol("o")],
    text: [
      [
        `The output matrix maps the ${mixed[row].length} numbers back to ${added[row].length}. The outputs of all heads of layer ${layer} are added to the residual stream (r) of `,
        subject,
        " as it was before this attention sub-layer.",
      ],
      [
        `The output of head ${head} has norm `,
        h("b.added", formatNumber(norm(added[row]), 2)),
        "; the residual stream has norm ",
        h("b.stream", formatNumber(norm(residual[row]), 2)),
        ". The Ablation view shows what changes without this head.",
      ],
    ],
    numbers: [
      tokenTable([
        vectorRow("z", mixed[row]),
        vectorRow("o", added[row], { selected: true, most: scale }),
        vectorRow("r", residual[row], { most: scale }),
        vectorRow("r + o", sum, { most: scale }),
      ]),
      h("h3", "Norm of the head's output / of the residual stream"),
      tokenTable(
        norms.map((length, i) =>
          tokenRow({
            token: rows[i],
            wide: weightBar(length / most),
            narrow: `${formatNumber(length, 2)} / ${formatNumber(norm(residual[i]), 2)}`,
            selected: i === row,
          }),
        ),
        predicting.length > 0,
      ),
    ],
  };
}

/** Bahdanau's decoder: the context enters the recurrent cell with the next token. */
function recurrentStep({ mixed, output: state, x, row, setReadout, predicting }) {
  const vectorRow = createVectorRow(setReadout);
  return {
    name: "output",
    title: "Output: input of the recurrent cell",
    formula: [symbol("x′"), " = cell(", symbol("x"), ", [token; ", symbol("z"), "])"],
    text: [
      "This decoder has no residual stream. The sum z, called the context vector, enters its recurrent cell together with the next token, and the cell computes the next state.",
      ["The next token, ", quote(predicting[row]), ", is predicted from that state."],
    ],
    numbers: tokenTable([vectorRow("x", x[row]), vectorRow("z", mixed[row], { selected: true }), vectorRow("x′", state[row])]),
  };
}

/** Luong's decoder: the context is combined with the state that was the query. */
function combinedStep({ mixed, output: vectors, x, row, setReadout, predicting }) {
  const vectorRow = createVectorRow(setReadout);
  return {
    name: "output",
    title: "Output: combined with the state",
    formula: [symbol("y"), " = tanh(", symbol("W"), " [", symbol("z"), "; ", symbol("x"), "])"],
    text: [
      "This decoder has no residual stream. The sum z, called the context vector, and the state x are concatenated and multiplied by one more matrix.",
      ["The next token, ", quote(predicting[row]), ", is predicted from the result, which also enters the next step."],
    ],
    numbers: tokenTable([vectorRow("x", x[row]), vectorRow("z", mixed[row], { selected: true }), vectorRow("y", vectors[row])]),
  };
}
