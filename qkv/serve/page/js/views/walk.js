// The walk through one head, with the numbers of this very input: x -> q, k, v -> scores -> mask -> softmax -> mix -> output.
import { look } from "../api.js";
import { busy, clear, edges, empty, failed, h, keeping, pick, shown } from "../dom.js";
import { SUBJECT, missing, subject } from "../input.js";
import { walks } from "../models.js";
import { pickers, sitesOf } from "../sites.js";
import { set, state } from "../state.js";
import { STEPS, steps } from "../steps.js";

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
const UNSEEN = "None of its heads can be walked through: they weigh tokens in another way.";
const within = (step) => Math.max(0, Math.min(STEPS.length - 1, step));

class Walk {
  constructor(root, { model }) {
    [this.model, this.asked, this.column] = [model, 0, -1];
    [this.bar, this.card] = [h("div.toolbar"), h("section.card.walk", { "aria-live": "off" })];
    clear(root, this.bar, this.card);
    root.addEventListener("keydown", move);
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
      const found = await look("walk", { ...subject(this.model), kind, layer, head });
      if (mine !== this.asked) return;
      const { rows } = found;
      const row = state.token >= 0 && state.token < rows.length ? state.token : worthIt(rows);
      const words = rows.map((name, i) => [i, `${i}: ${shown(name)}`]);
      this.toolbar(where, pick("The token that looks", words, row, (value) => set({ token: Number(value) })));
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
    const at = within(state.step);
    const readout = h("p.readout", { "aria-live": "polite" }, "");
    const most = found.weights[row].indexOf(Math.max(...found.weights[row]));
    const step = steps(found, {
      row,
      column: this.column >= 0 && this.column < found.columns.length ? this.column : most,
      say: (text) => (readout.textContent = text),
      chooseRow: (i) => set({ token: i }),
      chooseColumn: (j) => ((this.column = j), this.show(found, row)),
    })[at];
    const words = [h("h2", `${at + 1}. ${step.title}`), h("p.formula", step.formula), step.words.map((one) => h("p", one))];
    const numbers = h("div.step-numbers", step.numbers, readout);
    if (numbers.querySelector("canvas")) readout.textContent = "Point at a strip to read its numbers.";
    keeping(this.card, () => clear(this.card, trail(at), h("div.step", h("div.step-words", words), numbers), buttons(at)));
    const [list, now] = [this.card.querySelector(".trail"), this.card.querySelector("[aria-current]")];
    list.scrollLeft = now.offsetLeft - list.offsetLeft - list.clientWidth / 2 + now.clientWidth / 2;
  }
}

/** The arrow keys go from step to step. */
function move(event) {
  if (["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName)) return;
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  set({ step: within(state.step + step) });
}

function trail(at) {
  const step = (name, i) => {
    const about = { "data-keep": `trail${i}`, "aria-current": i === at ? "step" : null };
    return h("li", h("button", { type: "button", ...about, onclick: () => set({ step: i }) }, name));
  };
  return edges(h("ol.trail", STEPS.map(step)));
}

function buttons(at) {
  const [first, last] = [at === 0, at === STEPS.length - 1];
  const to = (step) => () => set({ step });
  return h(
    "div.row.steps-nav",
    h("button", { type: "button", "data-keep": "back", disabled: first, onclick: to(at - 1) }, "← Previous"),
    h("span.quiet", `Step ${at + 1} of ${STEPS.length}`),
    h("span.grow"),
    h("button.main", { type: "button", "data-keep": "next", disabled: last, onclick: to(at + 1) }, "Next →"),
  );
}

/** The last token that is a word: it has much to look at. */
function worthIt(names) {
  const found = names.findLastIndex((one) => /^\p{L}{3,}$/u.test(shown(one)));
  return found < 0 ? names.length - 1 : found;
}
