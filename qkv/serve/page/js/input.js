// What goes into the model: a text with examples, of some models a second one, of an encoder-decoder also what it writes, or a
// picture.
import { clear, h, later } from "./dom.js";
import { bothSides, examples, gapOf, language, main, second, sees } from "./models.js";
import { pad } from "./pad.js";
import { set, state } from "./state.js";

const LABELS = {
  translate: "Text",
  summarize: "Text to summarise",
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
  const other = second(model);
  if (other && (!state.text || main(model).ability === "answer")) state.pair ||= other.example;
  if (!state.text) state.text = examples(model)[0] ?? "";
  const fields = [area("text", labelOf(model), { target: "", token: -1 })];
  if (other) fields.push(area("pair", other.label, { token: -1 }));
  if (bothSides(model)) {
    const writes = model.target ? language(model.target) : "What it writes";
    const label = `${writes}, to look at another answer than its own`;
    fields.push(area("target", label, {}, "its own answer"));
    fields.at(-1).classList.add("wants");
  }
  clear(card, h("div.fields", fields), chips(model));
  return () => fields.forEach(follow);
}

function labelOf(model) {
  const { ability } = main(model) ?? {};
  if (ability === "translate" && model.source) return language(model.source);
  return ability === "fill" ? `Text with a gap: ${gapOf(model)}` : (LABELS[ability] ?? "Text");
}

/** A field for a part of the state; `also` is what else changes with it. */
function area(name, label, also, placeholder = null) {
  const changed = later(350, () => set({ [name]: field.value, ...also }));
  const field = h("textarea", {
    id: name,
    rows: "1",
    spellcheck: "false",
    autocomplete: "off",
    placeholder,
    oninput: () => (fit(field), changed()),
  });
  return h("label.field.grow", h("span", label), field);
}

/** Show the state, but not into what somebody is writing. */
function follow(label) {
  const field = label.querySelector("textarea");
  const empty = field.id === "text" && field.value.trim() === "";
  if (document.activeElement !== field || empty) field.value = state[field.id];
  fit(field);
}

/** As high as its text. */
function fit(field) {
  if (!field.offsetParent) return;
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

function chips(model) {
  const chip = (one) => {
    const take = () => set({ text: one, target: "", token: -1 });
    return h("button.chip", { type: "button", onclick: take }, one.replace(/\n/g, " "));
  };
  const own = examples(model);
  return own.length ? h("div.chips", h("span.quiet", "Try"), own.map(chip)) : null;
}

/** What is looked at, as the server wants it; null while there is nothing. */
export function subject(model) {
  if (sees(model)) return state.image ? { model: model.name, image: state.image } : null;
  if (!state.text.trim()) return null;
  return {
    model: model.name,
    text: state.text,
    ...(second(model) && state.pair.trim() ? { pair: state.pair } : {}),
    ...(main(model)?.ability === "chat" ? { chat: true } : {}),
    ...(bothSides(model) && state.target.trim() ? { target: state.target } : {}),
  };
}

/** The names of the state that a subject is made of. */
export const SUBJECT = ["text", "pair", "target", "image"];
