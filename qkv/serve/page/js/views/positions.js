// How the model represents order: the table of positions and their similarity.
import { look } from "../api.js";
import { largest, signed, typical } from "../colour.js";
import { busy, clear, failed, h, number } from "../dom.js";
import { legend, matrix } from "../matrix.js";
import { ordered } from "../models.js";

export const positions = {
  id: "positions",
  title: () => "Positions",
  fits: (model) => model !== null && ordered(model),
  reads: false,
  mount,
};

const SCHEMES = {
  sinusoidal: [
    "Sinusoidal positions",
    "Each position is a vector of sines and cosines, from fast waves to slow ones; it is added to the token's embedding. Nothing is learned (Vaswani et al. 2017).",
  ],
  learned: [
    "Learned positions",
    "Each position is a vector of its own, learned in training and added to the embedding.",
  ],
  rotary: [
    "Rotary positions",
    "Pairs of numbers of queries and keys are rotated by an angle that grows with the position, so that their product depends on the distance (Su et al. 2021). Shown is the cosine of each angle.",
  ],
  alibi: ["ALiBi", "Scores decrease with the distance, at a different rate in each head (Press et al. 2022)."],
  t5: [
    "Relative position bias",
    "Each head adds a learned number to the scores, one for each range of distances (T5).",
  ],
  relative: ["Relative positions", "A learned vector for each distance is added to the keys (Shaw et al. 2018)."],
};
const LENGTHS = [16, 32, 64, 128];

function mount(root, { model }) {
  const card = h("div");
  clear(root, card);

  async function show(length) {
    const held = card.contains(document.activeElement);
    clear(card, h("section.card", busy()));
    try {
      const found = await look("positions", { model: model.name, length });
      clear(card, h("section.card", tables(found, sizes(length, show))));
      if (held) card.querySelector("select").focus();
    } catch (error) {
      clear(card, h("section.card", error.status === 400 ? h("p.state", error.message) : failed(error)));
    }
  }

  return (changed) => void (changed || show(64));
}

/** A list to choose the number of positions from. */
function sizes(length, show) {
  const options = LENGTHS.map((n) => h("option", { value: n, selected: n === length }, String(n)));
  const choose = (event) => show(Number(event.target.value));
  return h("label.field.inline", h("span", "Positions"), h("select", { onchange: choose }, options));
}

function tables({ scheme, table, similarity }, choice) {
  const [title, words] = SCHEMES[scheme] ?? [scheme, ""];
  const head = h("div.row.head", h("h2", title), h("span.grow"), choice);
  const part = (name, rows, unit, most = largest(rows)) => {
    const edge = number(most, most < 0.1 ? 3 : 2); // larger numbers have its colour too
    const key = legend(signed, `${most < largest(rows) ? "≤ " : ""}−${edge}`, `${most < largest(rows) ? "≥ " : ""}${edge}`);
    return h("div", h("div.row", h("h3", name), key), picture(rows, name, unit, most));
  };
  if (Array.isArray(table[0][0])) {
    const heads = table.map((one, n) => part(`Head ${n}`, one, "position"));
    return [head, h("p.quiet", words), h("div.two.even", heads)];
  }
  const what = scheme === "relative" ? "distance" : "position";
  const numbers = scheme === "rotary" ? table.map((row) => row.map(Math.cos)) : table;
  const both = [
    part(`One row per ${what}`, numbers, "number", typical(numbers)),
    part(`Similarity of two ${what}s (cosine)`, similarity, "position"),
  ];
  return [head, h("p.quiet", words), h("div.two.even", both)];
}

/** unit: what a column is, a "position" or a "number" of a vector; most: the number with the full colour. */
function picture(rows, label, unit, most) {
  const numbers = (list) => list.map((_, i) => String(i));
  return matrix({
    rows: numbers(rows),
    columns: numbers(rows[0]),
    values: rows.map((row) => row.map((x) => x / most)),
    colour: signed,
    label,
    largestCell: 16,
    smallestCell: 3,
    told: (i, j) => [
      unit === "position" ? `positions ${i} and ${j}: ` : `position ${i}, number ${j}: `,
      h("b", number(rows[i][j])),
    ],
  });
}
