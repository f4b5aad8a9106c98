// Overview of all heads: a row of thumbnails for each layer, and the mean weights of the selected head.
import { inspect } from "./api.js";
import { paintPixels, sequential } from "./colour.js";
import { errorMessage, evenRowLength, formatNumber, h, markOverflow, render, rovingFocus, scrollToSelected } from "./dom.js";
import { inspectionInput } from "./input.js";
import { readsImages } from "./models.js";
import { setState } from "./state.js";

const MAX_PER_ROW = 12; // a layer with more heads has several rows
const PATTERNS = [
  ["previous", "the previous token"],
  ["next", "the next token"],
  ["itself", "the token itself"],
  ["first", "the first token"],
  ["last", "the last token"],
  ["same", "other occurrences of the token"],
  ["induction", "the token after an earlier occurrence (induction)"],
];

export class HeadGrid {
  constructor(model) {
    [this.model, this.card] = [model, h("section.card")];
  }

  /** sites: result of findSites; isCurrent(): whether the request is still wanted; rebuild: whether the heads have changed. */
  async update(sites, isCurrent, rebuild) {
    if (rebuild || !this.card.querySelector(".thumbs")) this.build(sites.layers);
    for (const button of this.card.querySelectorAll(".thumb"))
      button.setAttribute("aria-pressed", button.dataset.at === `${sites.layer}.${sites.head}`);
    const thumbs = this.card.querySelector(".thumbs");
    scrollToSelected(thumbs, thumbs.scrollTop);
    try {
      await this.paint(sites, isCurrent);
      if (isCurrent() && sites.kind !== "cross" && !readsImages(this.model)) await this.describe(sites, isCurrent);
    } catch (error) {
      if (isCurrent()) render(this.card.querySelector(".description"), errorMessage(error));
    }
  }

  build(layers) {
    const row = ({ layer, heads }) =>
      h(
        "div.thumb-row",
        { "data-layer": layer },
        h("span.quiet", String(layer)),
        h(
          "div.thumb-heads",
          { style: { "--heads": evenRowLength(heads, MAX_PER_ROW) } },
          Array.from({ length: heads }, (_, i) => thumbnail(layer, i)),
        ),
      );
    render(
      this.card,
      h("h2", "All heads"),
      h("p.quiet", "One row per layer. Select a head to enlarge it."),
      rovingFocus(markOverflow(h("div.thumbs", layers.map(row))), ".thumb"),
      h("p.note.description"),
    );
  }

  /** Paint the missing thumbnails, starting near the selected layer. */
  async paint({ kind, layers, layer: selected }, isCurrent) {
    const nearest = [...layers].sort((a, b) => Math.abs(a.layer - selected) - Math.abs(b.layer - selected));
    for (const { layer } of nearest) {
      if (!this.card.querySelector(`.thumb-row[data-layer="${layer}"] canvas[data-empty]`)) continue;
      const map = await inspect("attention", { ...inspectionInput(this.model), kind, layer });
      if (!isCurrent()) return;
      map.heads.forEach((i, n) => {
        const canvas = this.card.querySelector(`[data-at="${layer}.${i}"] canvas`);
        if (canvas) paintPixels(canvas, map.weights[n], sequential).removeAttribute("data-empty");
      });
    }
  }

  async describe({ kind, layer, head }, isCurrent) {
    const { layers, statistics } = await inspect("heads", { ...inspectionInput(this.model), kind });
    if (!isCurrent()) return;
    const statistic = (name) => statistics[name]?.[layers.indexOf(layer)]?.[head] ?? 0;
    const largest = PATTERNS.map(([name, text]) => [statistic(name), text])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 2);
    const weights = largest.map(([x, text]) => `${formatNumber(x, 2)} on ${text}`).join(", ");
    const keys = formatNumber(Math.exp(statistic("entropy")), 1);
    render(
      this.card.querySelector(".description"),
      h("b", `Head ${layer}.${head}`),
      `: mean weight ${weights}; effective number of keys ${keys}.`,
    );
  }
}

function thumbnail(layer, i) {
  const names = { "data-at": `${layer}.${i}`, "aria-label": `Layer ${layer}, head ${i}`, title: `Layer ${layer}, head ${i}` };
  return h(
    "button.thumb",
    { type: "button", ...names, onclick: () => setState({ layer, head: i }) },
    h("canvas", { "data-empty": "yes", width: "1", height: "1" }),
  );
}
