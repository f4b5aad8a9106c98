// Computation of one head step by step, with the numbers of the current input: x -> q, k, v -> (rotation) -> scores -> mask ->
// softmax -> weighted sum -> output.
import { inspect } from "../api.js";
import { findSites, nameRows, siteFields } from "../attention_sites.js";
import { busyMessage, emptyMessage, errorMessage, h, keepFocus, markOverflow, render, scrollToSelected, selectField } from "../dom.js";
import { stepsOf } from "../head/steps.js";
import { INPUT_NAMES, inspectionInput, missingInput } from "../input.js";
import { hasSoftmaxAttention } from "../models.js";
import { setState, state } from "../state.js";

export const head = {
  id: "head",
  title: () => "Head details",
  supports: (model) => model !== null && hasSoftmaxAttention(model),
  usesInput: true,
  mount: (root, page) => {
    const view = new HeadView(root, page);
    return (changed) => view.update(changed);
  },
};

const OBSERVED = [...INPUT_NAMES, "kind", "layer", "head"]; // names whose change requires another request
const UNSUPPORTED = "No layer of this model computes softmax attention, which this view shows.";

class HeadView {
  constructor(root, { model }) {
    [this.model, this.requests, this.column, this.count, this.current] = [model, 0, -1, 1, -1];
    [this.toolbar, this.card] = [h("div.toolbar"), h("section.card.walk", { "aria-live": "off" })];
    render(root, this.toolbar, this.card);
    root.addEventListener("keydown", (event) => this.handleKey(event));
  }

  async update(changed) {
    const number = ++this.requests;
    if (changed && [...INPUT_NAMES, "kind"].some((name) => changed.has(name))) this.column = -1;
    if (missingInput(this.model)) return void this.showMessage(missingInput(this.model));
    if (!changed) render(this.card, busyMessage());
    try {
      const sites = await findSites(this.model, "walks");
      if (number !== this.requests) return;
      if (!sites.site) return void this.showMessage(emptyMessage(UNSUPPORTED));
      const { kind, layer, head: index } = sites;
      if (!changed || OBSERVED.some((name) => changed.has(name))) this.showToolbar(sites); // even if the next request fails
      const result = nameRows(await inspect("walk", { ...inspectionInput(this.model), kind, layer, head: index }));
      if (number !== this.requests) return;
      const { rows, predicting } = result;
      const row = state.token >= 0 && state.token < rows.length ? state.token : lastWord(predicting.length ? predicting : rows);
      const options = rows.map((name, i) => [i, `${i}: ${name}`]);
      this.showToolbar(sites, selectField("Query token", options, row, (value) => setState({ token: Number(value) })));
      this.show(result, row);
    } catch (error) {
      if (number === this.requests) render(this.card, errorMessage(error));
    }
  }

  showMessage(message) {
    render(this.toolbar);
    render(this.card, message);
  }

  showToolbar(sites, queryField = null) {
    keepFocus(this.toolbar, () => render(this.toolbar, siteFields(sites), queryField));
  }

  show(result, row) {
    const readout = h("p.readout", { "aria-live": "polite" }, "");
    const largest = result.weights[row].indexOf(Math.max(...result.weights[row]));
    const steps = stepsOf(result, {
      row,
      column: this.column >= 0 && this.column < result.columns.length ? this.column : largest,
      setReadout: (text) => (readout.textContent = text),
      selectRow: (i) => setState({ token: i }),
      selectColumn: (j) => ((this.column = j), this.show(result, row)),
    });
    this.count = steps.length;
    const current = this.clamp(state.step);
    const step = steps[current];
    const text = [
      h("h2", `${current + 1}. ${step.title}`),
      h("p.formula", step.formula),
      step.text.filter(Boolean).map((paragraph) => h("p", paragraph)),
    ];
    const numbers = h("div.step-numbers", step.numbers, readout);
    if (numbers.querySelector("canvas")) readout.textContent = "Point at a strip to read its numbers.";
    const scrolled = this.current === current ? this.tables().map((table) => table.scrollTop) : [];
    const names = steps.map(({ name }) => name);
    const parts = [stepList(names, current), h("div.step", h("div.step-text", text), numbers), navigation(current, steps.length)];
    keepFocus(this.card, () => render(this.card, parts));
    const [list, selected] = [this.card.querySelector(".trail"), this.card.querySelector("[aria-current]")];
    list.scrollLeft = selected.offsetLeft - list.offsetLeft - list.clientWidth / 2 + selected.clientWidth / 2;
    this.current = current;
    this.tables().forEach((table, i) => scrollToSelected(table, scrolled[i]));
  }

  tables() {
    return [...this.card.querySelectorAll(".lines-table")];
  }

  clamp(step) {
    return Math.max(0, Math.min(this.count - 1, step));
  }

  /** Move between steps with the arrow keys. */
  handleKey(event) {
    if (["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName)) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setState({ step: this.clamp(this.clamp(state.step) + step) });
  }
}

function stepList(names, current) {
  const item = (name, i) => {
    const attributes = { "data-focus-key": `step${i}`, "aria-current": i === current ? "step" : null };
    return h("li", h("button", { type: "button", ...attributes, onclick: () => setState({ step: i }) }, name));
  };
  return markOverflow(h("ol.trail", names.map(item)));
}

function navigation(current, count) {
  const [first, last] = [current === 0, current === count - 1];
  const goTo = (step) => () => setState({ step });
  return h(
    "div.row.steps-nav",
    h("button", { type: "button", "data-focus-key": "back", disabled: first, onclick: goTo(current - 1) }, "← Previous"),
    h("span.quiet", `Step ${current + 1} of ${count}`),
    h("span.grow"),
    h("button.main", { type: "button", "data-focus-key": "next", disabled: last, onclick: goTo(current + 1) }, "Next →"),
  );
}

/** Index of the last token that is a word: it has many keys to attend to. */
function lastWord(names) {
  const index = names.findLastIndex((name) => /^␣?\p{L}{3,}$/u.test(name));
  return index < 0 ? names.length - 1 : index;
}
