// The walk through one head, with the numbers of this very input: x -> q, k, v -> scores -> mask -> softmax -> mix -> output.
import { look } from "../api.js";
import { busy, clear, empty, failed, h, pick, shown } from "../dom.js";
import { subject } from "../input.js";
import { walks } from "../models.js";
import { set, state } from "../state.js";
import { pickers, sitesOf } from "./attention.js";
import { STEPS, steps } from "../steps.js";

export const walk = {
  id: "walk",
  title: () => "One head",
  fits: (model) => model !== null && walks(model),
  reads: true,
  mount,
};

function mount(root, { model }) {
  let [asked, column] = [0, -1];
  const bar = h("div.toolbar");
  const card = h("section.card.walk", { "aria-live": "off" });
  clear(root, bar, card);

  async function update(changed) {
    const mine = ++asked;
    if (!subject(model))
      return void (clear(bar), clear(card, empty("There is nothing to walk through yet: write something above.")));
    if (!changed) clear(card, busy());
    if (changed && ["text", "target", "kind", "image"].some((name) => changed.has(name))) column = -1;
    try {
      const where = await sitesOf(model);
      const found = await look("walk", { ...subject(model), kind: where.kind, layer: where.layer, head: where.head });
      if (mine !== asked) return;
      const row = state.token >= 0 && state.token < found.rows.length ? state.token : worthIt(found.rows);
      toolbar(where, found, row);
      show(found, row);
    } catch (error) {
      if (mine === asked) clear(card, failed(error));
    }
  }

  function toolbar(where, found, row) {
    const held = bar.contains(document.activeElement)
      ? [...bar.querySelectorAll("select")].indexOf(document.activeElement)
      : -1;
    const words = found.rows.map((name, i) => [i, `${i}: ${shown(name)}`]);
    clear(
      bar,
      pickers(where),
      pick("The token that looks", words, row, (value) => set({ token: Number(value) })),
    );
    if (held >= 0) bar.querySelectorAll("select")[held]?.focus();
  }

  function show(found, row) {
    const at = Math.max(0, Math.min(STEPS.length - 1, state.step));
    const within = card.contains(document.activeElement) && document.activeElement.dataset.keep;
    const readout = h("p.readout", { "aria-live": "polite" }, "");
    const other =
      column >= 0 && column < found.columns.length
        ? column
        : found.weights[row].indexOf(Math.max(...found.weights[row]));
    const pages = {
      row,
      column: other,
      say: (text) => (readout.textContent = text),
      chooseRow: (i) => set({ token: i }),
      chooseColumn: (j) => ((column = j), show(found, row)),
    };
    const step = steps(found, pages)[at];
    if ([step.numbers].flat(2).some((one) => one.querySelector?.("canvas")))
      readout.textContent = "Point at a strip to read its numbers.";
    clear(
      card,
      trail(at),
      h(
        "div.step",
        h(
          "div.step-words",
          h("h2", `${at + 1}. ${step.title}`),
          h("p.formula", step.formula),
          step.words.map((one) => h("p", one)),
        ),
        h("div.step-numbers", step.numbers, readout),
      ),
      buttons(at),
    );
    const [list, now] = [card.querySelector(".trail"), card.querySelector("[aria-current]")];
    list.scrollLeft = now.offsetLeft - list.offsetLeft - list.clientWidth / 2 + now.clientWidth / 2;
    if (within) card.querySelector(`[data-keep="${within}"]:not(:disabled)`)?.focus();
  }

  function trail(at) {
    return h(
      "ol.trail",
      STEPS.map((name, i) =>
        h(
          "li",
          h(
            "button",
            {
              type: "button",
              "data-keep": `trail${i}`,
              "aria-current": i === at ? "step" : null,
              onclick: () => set({ step: i }),
            },
            name,
          ),
        ),
      ),
    );
  }

  function buttons(at) {
    return h(
      "div.row.steps-nav",
      h(
        "button",
        { type: "button", "data-keep": "back", disabled: at === 0, onclick: () => set({ step: at - 1 }) },
        "← Previous",
      ),
      h("span.quiet", `Step ${at + 1} of ${STEPS.length}`),
      h("span.grow"),
      h(
        "button.main",
        {
          type: "button",
          "data-keep": "next",
          disabled: at === STEPS.length - 1,
          onclick: () => set({ step: at + 1 }),
        },
        "Next →",
      ),
    );
  }

  /** The last token that is a word: it has much to look at. */
  function worthIt(names) {
    const found = names.findLastIndex((one) => /^\p{L}{3,}$/u.test(shown(one)));
    return found < 0 ? names.length - 1 : found;
  }

  root.addEventListener("keydown", (event) => {
    if (["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName)) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    set({ step: Math.max(0, Math.min(STEPS.length - 1, state.step + step)) });
  });
  return update;
}
