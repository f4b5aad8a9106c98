// What goes into the model: a text with examples, of an encoder-decoder also what it writes, or a picture.
import { clear, h, later } from "./dom.js";
import { bothSides, examples, language, main, sees } from "./models.js";
import { pad } from "./pad.js";
import { set, state } from "./state.js";

const LABELS = {
  translate: "Text",
  summarize: "Text to summarise",
  fill: "Text with a gap: [MASK]",
  classify: "Text",
  answer: "Text that has the answer",
  tag: "Sentence",
  chat: "Message",
  generate: "Beginning",
};

/** Fill the card; gives a function that follows the state. */
export function input(card, model) {
  if (sees(model)) {
    clear(card, pad(model));
    return () => {};
  }
  const ability = main(model)?.ability;
  const label = ability === "translate" && model.source ? language(model.source) : (LABELS[ability] ?? "Text");
  if (!state.text) state.text = examples(model)[0] ?? "";
  const changed = later(350, () => set({ text: text.value, target: "", token: -1 }));
  const text = h("textarea", {
    id: "text",
    rows: "1",
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => (fit(text), changed()),
  });
  const parts = [h("label.field.grow", h("span", label), text)];
  let target = null;
  if (bothSides(model)) {
    const written = later(350, () => set({ target: target.value }));
    target = h("textarea", {
      id: "target",
      rows: "1",
      spellcheck: "false",
      placeholder: "its own answer",
      oninput: () => (fit(target), written()),
    });
    parts.push(
      h(
        "label.field.grow.wants",
        h(
          "span",
          `${model.target ? language(model.target) : "What it writes"}, to look at another answer than its own`,
        ),
        target,
      ),
    );
  }
  const chips = examples(model).map((one) =>
    h(
      "button.chip",
      { type: "button", onclick: () => set({ text: one, target: "", token: -1 }) },
      one.replace(/\n/g, " "),
    ),
  );
  clear(card, h("div.fields", parts), chips.length ? h("div.chips", h("span.quiet", "Try"), chips) : null);
  return () => {
    if (document.activeElement !== text || text.value.trim() === "") text.value = state.text;
    if (target && document.activeElement !== target) target.value = state.target;
    for (const one of [text, target]) if (one) fit(one);
  };
}

/** As high as its text. */
function fit(area) {
  if (!area.offsetParent) return;
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 240)}px`;
}

/** What is looked at, as the server wants it; null while there is nothing. */
export function subject(model) {
  if (sees(model)) return state.image ? { model: model.name, image: state.image } : null;
  if (!state.text.trim()) return null;
  return {
    model: model.name,
    text: state.text,
    ...(bothSides(model) && state.target.trim() ? { target: state.target } : {}),
  };
}
