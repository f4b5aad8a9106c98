// The walk through one head, with the numbers of this very input: x -> q, k, v -> (rotation) -> scores -> mask -> softmax ->
// mix -> output.
import { look } from "../api.js";
import { busy, clear, edges, empty, failed, h, keeping, pick, revealChosen } from "../dom.js";
import { SUBJECT, missing, subject } from "../input.js";
import { walks } from "../models.js";
import { named, pickers, sitesOf } from "../sites.js";
import { set, state } from "../state.js";
import { steps } from "../steps.js";

export const walk = {
  id: "walk",
  title: () => "One head",
  fits: (model) => model !== null && walks(model),
  reads: true,
  mount: (root, page) => {
    const own = new Walk(root, page);
    return (changed) => own.update(changed);
  },
};

const HEARD = [...SUBJECT, "kind", "layer", "head"]; // what makes it another walk
const UNSEEN = "No head of this model computes softmax attention, which this view shows.";

class Walk {
  constructor(root, { model }) {
    [this.model, this.asked, this.column, this.count, this.at] = [model, 0, -1, 1, -1];
    [this.bar, this.card] = [h("div.toolbar"), h("section.card.walk", { "aria-live": "off" })];
    clear(root, this.bar, this.card);
    root.addEventListener("keydown", (event) => this.move(event));
  }

  async update(changed) {
    const mine = ++this.asked;
    if (changed && [...SUBJECT, "kind"].some((name) => changed.has(name))) this.column = -1;
    if (missing(this.model)) return void this.nothing(missing(this.model));
    if (!changed) clear(this.card, busy());
    try {
      const where = await sitesOf(this.model, "walks");
      if (mine !== this.asked) return;
      if (!where.site) return void this.nothing(empty(UNSEEN));
      const { kind, layer, head } = where;
      if (!changed || HEARD.some((name) => changed.has(name))) this.toolbar(where); // whatever comes of the walk
      const found = named(await look("walk", { ...subject(this.model), kind, layer, head }));
      if (mine !== this.asked) return;
      const { rows, predicting } = found;
      const row = state.token >= 0 && state.token < rows.length ? state.token : worthIt(predicting.length ? predicting : rows);
      const words = rows.map((name, i) => [i, `${i}: ${name}`]);
      this.toolbar(where, pick("Query", words, row, (value) => set({ token: Number(value) })));
      this.show(found, row);
    } catch (error) {
      if (mine === this.asked) clear(this.card, failed(error));
    }
  }

  nothing(why) {
    clear(this.bar);
    clear(this.card, why);
  }

  toolbar(where, looks = null) {
    keeping(this.bar, () => clear(this.bar, pickers(where), looks));
  }

  show(found, row) {
    const readout = h("p.readout", { "aria-live": "polite" }, "");
    const most = found.weights[row].indexOf(Math.max(...found.weights[row]));
    const all = steps(found, {
      row,
      column: this.column >= 0 && this.column < found.columns.length ? this.column : most,
      say: (text) => (readout.textContent = text),
      chooseRow: (i) => set({ token: i }),
      chooseColumn: (j) => ((this.column = j), this.show(found, row)),
    });
    this.count = all.length;
    const at = this.within(state.step);
    const step = all[at];
    const words = [h("h2", `${at + 1}. ${step.title}`), h("p.formula", step.formula), step.words.filter(Boolean).map((one) => h("p", one))];
    const numbers = h("div.step-numbers", step.numbers, readout);
    if (numbers.querySelector("canvas")) readout.textContent = "Point at a strip to read its numbers.";
    const scrolled = this.at === at ? this.tables().map((one) => one.scrollTop) : [];
    const names = all.map((one) => one.name);
    const parts = [trail(names, at), h("div.step", h("div.step-words", words), numbers), buttons(at, all.length)];
    keeping(this.card, () => clear(this.card, parts));
    const [list, now] = [this.card.querySelector(".trail"), this.card.querySelector("[aria-current]")];
    list.scrollLeft = now.offsetLeft - list.offsetLeft - list.clientWidth / 2 + now.clientWidth / 2;
    this.at = at;
    this.scroll(scrolled);
  }

  tables() {
    return [...this.card.querySelectorAll(".lines-table")];
  }

  /** Long tables where they were before; what is chosen in them is in sight. */
  scroll(before) {
    this.tables().forEach((table, i) => revealChosen(table, before[i]));
  }

  within(step) {
    return Math.max(0, Math.min(this.count - 1, step));
  }

  /** The arrow keys go from step to step. */
  move(event) {
    if (["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName)) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    set({ step: this.within(this.within(state.step) + step) });
  }
}

function trail(names, at) {
  const step = (name, i) => {
    const about = { "data-keep": `trail${i}`, "aria-current": i === at ? "step" : null };
    return h("li", h("button", { type: "button", ...about, onclick: () => set({ step: i }) }, name));
  };
  return edges(h("ol.trail", names.map(step)));
}

function buttons(at, count) {
  const [first, last] = [at === 0, at === count - 1];
  const to = (step) => () => set({ step });
  return h(
    "div.row.steps-nav",
    h("button", { type: "button", "data-keep": "back", disabled: first, onclick: to(at - 1) }, "← Previous"),
    h("span.quiet", `Step ${at + 1} of ${count}`),
    h("span.grow"),
    h("button.main", { type: "button", "data-keep": "next", disabled: last, onclick: to(at + 1) }, "Next →"),
  );
}

/** The last token that is a word: it has much to look at. */
function worthIt(names) {
  const found = names.findLastIndex((one) => /^␣?\p{L}{3,}$/u.test(one));
  return found < 0 ? names.length - 1 : found;
}
