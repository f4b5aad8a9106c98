// Position embeddings of the model: their table and the similarity of positions.
import { inspect } from "../api.js";
import { diverging, maxAbs, robustMax } from "../colour.js";
import { busyMessage, errorMessage, formatNumber, h, render } from "../dom.js";
import { colourLegend, heatmap } from "../heatmap.js";
import { hasPositions } from "../models.js";

export const positions = {
  id: "positions",
  title: () => "Positions",
  supports: (model) => model !== null && hasPositions(model),
  usesInput: false,
  mount,
};

const SCHEMES = {
  sinusoidal: [
    "Sinusoidal position encodings",
    "Each position is a vector of sines and cosines of decreasing frequency, added to the token embedding. Nothing is learned (Vaswani et al. 2017).",
  ],
  learned: [
    "Learned position embeddings",
    "Each position has a learned vector that is added to the token embedding.",
  ],
  rotary: [
    "Rotary position embeddings (RoPE)",
    "Pairs of numbers in queries and keys are rotated by an angle that grows with the position, so that their dot product depends on the distance (Su et al. 2021). Shown is the cosine of each angle.",
  ],
  alibi: ["ALiBi", "Scores decrease with the distance, at a different rate in each head (Press et al. 2022)."],
  t5: [
    "Relative position bias",
    "Each head adds a learned number to the scores, one for each range of distances (T5).",
  ],
  disentangled: [
    "Disentangled relative positions",
    "A learned vector for each distance, which every layer projects to a key and a query (DeBERTa, He et al. 2021).",
  ],
  unitary: ["Powers of an orthogonal matrix", "The vector of each position is that of the previous one, rotated by a learned matrix."],
  relative: ["Relative position embeddings", "A learned vector for each distance is added to the keys (Shaw et al. 2018)."],
};
const LENGTHS = [16, 32, 64, 128];

function mount(root, { model }) {
  const content = h("div");
  render(root, content);

  async function show(length) {
    const hadFocus = content.contains(document.activeElement);
    render(content, h("section.card", busyMessage()));
    try {
      const result = await inspect("positions", { model: model.name, length });
      render(content, h("section.card", figures(result, lengthField(length, show))));
      if (hadFocus) content.querySelector("select").focus();
    } catch (error) {
      render(content, h("section.card", error.status === 400 ? h("p.state", error.message) : errorMessage(error)));
    }
  }

  return (changed) => void (changed || show(64));
}

function lengthField(length, show) {
  const options = LENGTHS.map((n) => h("option", { value: n, selected: n === length }, String(n)));
  const select = (event) => show(Number(event.target.value));
  return h("label.field.inline", h("span", "Number of positions"), h("select", { onchange: select }, options));
}

function figures({ scheme, table, similarity }, field) {
  const [title, text] = SCHEMES[scheme] ?? [scheme, ""];
  const head = [h("div.row.head", h("h2", title), h("span.grow"), field), h("p.quiet", text)];
  const figure = (name, rows, column, most = maxAbs(rows)) => {
    const end = formatNumber(most, most < 0.1 ? 3 : 2);
    const clipped = most < maxAbs(rows); // larger numbers have the colour of the end too
    const legend = colourLegend(diverging, `${clipped ? "≤ " : ""}−${end}`, `${clipped ? "≥ " : ""}${end}`);
    return h("div", h("div.row", h("h3", name), legend), positionMap(rows, name, column, most));
  };
  if (Array.isArray(table[0][0])) return [head, h("div.two.even", table.map((rows, n) => figure(`Head ${n}`, rows, "position")))];
  const unit = ["relative", "disentangled"].includes(scheme) ? "distance" : "position";
  const numbers = scheme === "rotary" ? table.map((row) => row.map(Math.cos)) : table;
  const both = [
    figure(`One row per ${unit}`, numbers, "dimension", robustMax(numbers)),
    figure(`Cosine similarity of ${unit}s`, similarity, "position"),
  ];
  return [head, h("div.two.even", both)];
}

/** Heatmap of positions; column: what a column is, a "position" or a "dimension"; most: the number with the full colour. */
function positionMap(rows, label, column, most) {
  const indices = (list) => list.map((_, i) => String(i));
  return heatmap({
    rows: indices(rows),
    columns: indices(rows[0]),
    values: rows.map((row) => row.map((x) => x / most)),
    colour: diverging,
    label,
    largestCell: 16,
    smallestCell: 3,
    describe: (i, j) => [
      column === "position" ? `positions ${i} and ${j}: ` : `position ${i}, dimension ${j}: `,
      h("b", formatNumber(rows[i][j])),
    ],
  });
}
