// How the model tells order: the table of positions and how alike they are; and words that lie near each other.
import { look } from "../api.js";
import { largest, signed } from "../colour.js";
import { bars, busy, clear, failed, h, number, shown } from "../dom.js";
import { legend, matrix } from "../matrix.js";
import { ordered } from "../models.js";

export const positions = {
  id: "positions",
  title: (model) => (ordered(model) ? "Positions" : "Words"),
  fits: (model) => model !== null && (ordered(model) || model.can.includes("embed")),
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
    "Queries and keys are turned, two numbers at a time, by an angle that grows with the position: their product depends on the distance alone (Su et al. 2021). Shown is the cosine of each angle.",
  ],
  alibi: ["ALiBi", "Scores fall with the distance, in each head at another rate (Press et al. 2022)."],
  t5: [
    "Relative position bias",
    "Each head adds a learned number to the scores, one for each range of distances (T5).",
  ],
  relative: ["Relative positions", "A learned vector for each distance is added to the keys (Shaw et al. 2018)."],
};
const LENGTHS = [16, 32, 64, 128];

function mount(root, { model }) {
  const card = h("div");
  const near = model.can.includes("embed") ? neighbours(model) : null;
  clear(root, card, near);

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

  return (changed) => void (changed || !ordered(model) || show(64));
}

/** How many positions are shown. */
function sizes(length, show) {
  const options = LENGTHS.map((n) => h("option", { value: n, selected: n === length }, String(n)));
  const choose = (event) => show(Number(event.target.value));
  return h("label.field.inline", h("span", "Positions"), h("select", { onchange: choose }, options));
}

function tables({ scheme, table, similarity }, choice) {
  const [title, words] = SCHEMES[scheme] ?? [scheme, ""];
  const head = h("div.row.head", h("h2", title), legend(signed, "−", "+"), h("span.grow"), choice);
  const part = (name, rows, unit) => h("div", h("h3", name), picture(rows, name, unit));
  if (Array.isArray(table[0][0])) {
    const heads = table.map((one, n) => part(`Head ${n}`, one, "position"));
    return [head, h("p.quiet", words), h("div.two.even", heads)];
  }
  const what = scheme === "relative" ? "distance" : "position";
  const numbers = scheme === "rotary" ? table.map((row) => row.map(Math.cos)) : table;
  const both = [
    part(`A row for each ${what}`, numbers, "number"),
    part(`How alike two ${what}s are`, similarity, "position"),
  ];
  return [head, h("p.quiet", words), h("div.two.even", both)];
}

/** unit: what a column is, a "position" or a "number" of a vector. */
function picture(rows, label, unit) {
  const most = largest(rows);
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

/** The words nearest to a word. */
function neighbours(model) {
  const word = h("input", {
    type: "text",
    value: { de: "Hund" }[model.source] ?? "dog",
    "aria-label": "A word",
    maxlength: "100",
  });
  const said = h("div", { "aria-live": "polite" });
  const go = async () => {
    try {
      const found = await look("neighbours", { model: model.name, word: word.value });
      const { pieces = [] } = found;
      clear(
        said,
        pieces.length > 1 ? h("p.quiet", `made of: ${pieces.map(shown).join(" · ")}`) : null,
        bars(
          found.words.map((text, i) => ({
            text,
            probability: Math.max(0, found.cosines[i]),
            note: number(found.cosines[i]),
          })),
        ),
      );
    } catch (error) {
      clear(said, failed(error));
    }
  };
  return h(
    "section.card",
    h("h2", "Words near a word"),
    h("p.quiet", "By the cosine of their vectors in the embedding, before any context."),
    h(
      "form.row",
      { onsubmit: (event) => (event.preventDefault(), go()) },
      word,
      h("button", { type: "submit" }, "Find"),
    ),
    said,
  );
}
