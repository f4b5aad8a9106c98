// All heads at a glance: a row of small pictures for each layer, and what the chosen head does on average.
import { look } from "./api.js";
import { paint, share } from "./colour.js";
import { clear, edges, even, failed, h, number, revealChosen, roving } from "./dom.js";
import { subject } from "./input.js";
import { sees } from "./models.js";
import { set } from "./state.js";

const IN_A_ROW = 12; // heads; of more, a layer has several rows
const HABITS = [
  ["previous", "the previous token"],
  ["next", "the next token"],
  ["itself", "the token itself"],
  ["first", "the first token"],
  ["last", "the last token"],
  ["same", "other copies of the token"],
  ["induction", "what followed the token before (induction)"],
];

export class Overview {
  constructor(model) {
    [this.model, this.card] = [model, h("section.card")];
  }

  /** where: what sitesOf has found; current(): whether this is still wanted; anew: whether the heads are others. */
  async update(where, current, anew) {
    if (anew || !this.card.querySelector(".thumbs")) this.frame(where.own);
    for (const button of this.card.querySelectorAll(".thumb"))
      button.setAttribute("aria-pressed", button.dataset.at === `${where.layer}.${where.head}`);
    const thumbs = this.card.querySelector(".thumbs");
    revealChosen(thumbs, thumbs.scrollTop);
    try {
      await this.fill(where, current);
      if (current() && where.kind !== "cross" && !sees(this.model)) await this.does(where, current);
    } catch (error) {
      if (current()) clear(this.card.querySelector(".does"), failed(error));
    }
  }

  frame(own) {
    const row = ({ layer, heads }) =>
      h(
        "div.thumb-row",
        { "data-layer": layer },
        h("span.quiet", String(layer)),
        h(
          "div.thumb-heads",
          { style: { "--heads": even(heads, IN_A_ROW) } },
          Array.from({ length: heads }, (_, i) => thumb(layer, i)),
        ),
      );
    clear(
      this.card,
      h("h2", "All heads"),
      h("p.quiet", "One row per layer. Choose a head to enlarge it."),
      roving(edges(h("div.thumbs", own.map(row))), ".thumb"),
      h("p.note.does"),
    );
  }

  /** The pictures that are not there yet, those near the chosen layer first. */
  async fill({ kind, own, layer }, current) {
    const near = [...own].sort((a, b) => Math.abs(a.layer - layer) - Math.abs(b.layer - layer));
    for (const site of near) {
      if (!this.card.querySelector(`.thumb-row[data-layer="${site.layer}"] canvas[data-empty]`)) continue;
      const map = await look("attention", { ...subject(this.model), kind, layer: site.layer });
      if (!current()) return;
      map.heads.forEach((i, n) => {
        const canvas = this.card.querySelector(`[data-at="${site.layer}.${i}"] canvas`);
        if (canvas) paint(canvas, map.weights[n], share).removeAttribute("data-empty");
      });
    }
  }

  async does({ kind, layer, head }, current) {
    const found = await look("heads", { ...subject(this.model), kind });
    if (!current()) return;
    const of = (name) => found.statistics[name]?.[found.layers.indexOf(layer)]?.[head] ?? 0;
    const best = HABITS.map(([name, text]) => [of(name), text])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 2);
    clear(
      this.card.querySelector(".does"),
      h("b", `Head ${layer}.${head}`),
      `: mean weight ${best.map(([x, text]) => `${number(x, 2)} on ${text}`).join(", ")}; effective number of keys ${number(Math.exp(of("entropy")), 1)}.`,
    );
  }
}

function thumb(layer, i) {
  const about = { "data-at": `${layer}.${i}`, "aria-label": `Layer ${layer}, head ${i}`, title: `layer ${layer}, head ${i}` };
  return h(
    "button.thumb",
    { type: "button", ...about, onclick: () => set({ layer, head: i }) },
    h("canvas", { "data-empty": "yes", width: "1", height: "1" }),
  );
}
