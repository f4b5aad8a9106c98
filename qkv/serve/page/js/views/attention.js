// Attention weights: all heads as thumbnails, and one head as a matrix, as lines, or on the image.
import { inspect } from "../api.js";
import { attentionLines } from "../attention_lines.js";
import { findSites, nameRows, siteFields } from "../attention_sites.js";
import { sequential } from "../colour.js";
import { busyMessage, emptyMessage, errorMessage, h, keepFocus, render, scrollToSelected, segmentedControl } from "../dom.js";
import { HeadGrid } from "../head_grid.js";
import { colourLegend, heatmap } from "../heatmap.js";
import { imageOverlay, patchGrid } from "../image_overlay.js";
import { INPUT_NAMES, inspectionInput, missingInput } from "../input.js";
import { hasAttention, readsImages } from "../models.js";
import { setState, state } from "../state.js";

export const attention = {
  id: "attention",
  title: () => "Attention",
  supports: (model) => model !== null && hasAttention(model),
  usesInput: true,
  mount: (root, page) => {
    const view = new AttentionView(root, page);
    return (changed) => view.update(changed);
  },
};

const TOKEN_ROWS = "Each row is a query token, each column a key token.";
const STEP_ROWS =
  "Each row is a decoder step, named by the last token read and the token predicted; each column is a key token.";
const OBSERVED = [...INPUT_NAMES, "kind", "layer", "head", "as", "token"];

class AttentionView {
  constructor(root, { model }) {
    [this.model, this.requests, this.cursor] = [model, 0, { at: null }];
    [this.toolbar, this.card] = [h("div.toolbar"), h("section.card.wide-card")];
    this.grid = new HeadGrid(model);
    render(root, this.toolbar, h("div.heads-and-head", this.grid.card, this.card));
  }

  async update(changed) {
    if (changed && !OBSERVED.some((name) => changed.has(name))) return;
    const number = ++this.requests;
    const isCurrent = () => number === this.requests;
    const rebuild = !changed || [...INPUT_NAMES, "kind"].some((name) => changed.has(name));
    if (rebuild) Object.assign(this.cursor, { at: null, scrolled: null });
    if (missingInput(this.model)) return void this.showMessage(missingInput(this.model));
    if (!changed) render(this.card, busyMessage());
    try {
      const sites = await findSites(this.model, "weighs");
      if (!isCurrent()) return;
      if (!sites.site) return void this.showMessage(emptyMessage("No layer of this model has attention weights."));
      this.showToolbar(sites);
      const { kind, layer } = sites;
      const map = nameRows(await inspect("attention", { ...inspectionInput(this.model), kind, layer }));
      if (!isCurrent()) return;
      const list = () => this.card.querySelector(".lines-scroll, .word-list");
      const scrolled = list()?.scrollTop;
      keepFocus(this.card, () => this.show(map, sites));
      if (list()) scrollToSelected(list(), scrolled);
      await this.grid.update(sites, isCurrent, rebuild);
    } catch (error) {
      if (isCurrent()) this.showMessage(errorMessage(error)); // do not leave the heads of another text
    }
  }

  showMessage(message) {
    render(this.toolbar);
    render(this.grid.card);
    render(this.card, message);
  }

  showToolbar(sites) {
    const styles = [["matrix", "Matrix"], ["lines", "Lines"]];
    if (readsImages(this.model)) styles.push(["picture", "On the image"]);
    const style = segmentedControl("Show as", styles, state.as, (value) => setState({ as: value }));
    keepFocus(this.toolbar, () => render(this.toolbar, siteFields(sites), style));
  }

  show(map, { site, layer, head }) {
    const row = state.token >= 0 && state.token < map.rows.length ? state.token : -1;
    const options = {
      rows: map.rows,
      shortRows: map.shortRows,
      columns: map.columns,
      values: map.weights[map.heads.indexOf(head)] ?? map.weights[0],
      selected: row,
      onSelect: (i) => setState({ token: i === state.token ? -1 : i }),
      cursor: this.cursor,
      label: `Attention weights of layer ${layer}, head ${head}: ${map.rows.length} rows, ${map.columns.length} columns`,
    };
    const openHead = () => setState({ view: "head", layer, head, token: row, step: 0 }, true);
    const button = site.walks === false ? null : h("button", { type: "button", onclick: openHead }, "Show step by step");
    render(
      this.card,
      h("div.row.head", h("h2", `Layer ${layer}, head ${head}`), colourLegend(sequential, "0", "1"), h("span.grow"), button),
      h("p.quiet", `${map.predicting.length ? STEP_ROWS : TOKEN_ROWS} The weights of a row sum to 1.`),
      figureOf(options),
    );
  }
}

/** Figure of one head in the selected style. */
function figureOf(options) {
  const grid = patchGrid(options.columns);
  if (state.as === "lines") return attentionLines(options);
  return state.as === "picture" && grid ? imageOverlay(options, grid, state.image) : heatmap(options);
}
