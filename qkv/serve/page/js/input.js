// Input of the model: a text with examples, a second text, the decoder's text of an encoder-decoder, or an image.
import { debounce, emptyMessage, h, markOverflow, render } from "./dom.js";
import { drawingPad } from "./drawing.js";
import { examplesFor } from "./examples.js";
import { hasMask, isEncoderDecoder, languageName, mainTask, maskToken, readsImages, secondInput } from "./models.js";
import { setState, state } from "./state.js";

const LABELS = {
  translate: "Text",
  summarize: "Text to summarise",
  classify: "Text",
  answer: "Context",
  tag: "Sentence",
  chat: "Message",
  generate: "Prompt",
};

const SEVERAL_SENTENCES = /[.!?…]["”»)'’]*\s+[^\p{Ll}\s]|\S\s*\n\s*\S/u; // an end of a sentence with another one after it
const ONE_SEQUENCE =
  "This view reads the whole text as one sequence, but Translate splits it into sentences: inspect one sentence at a time.";

/** Fill the input card; return a function that updates it from the state. */
export function mountInput(card, model) {
  if (readsImages(model)) {
    render(card, drawingPad(model));
    return () => {};
  }
  const second = secondInput(model);
  if (!state.text.trim()) {
    const { text, pair } = examplesFor(model)[0];
    Object.assign(state, { text, pair: state.pair || (pair ?? "") });
  }
  const fields = [textField("text", labelOf(model), { target: "", token: -1 })];
  if (second) fields.push(textField("pair", second.label, { token: -1 }));
  if (isEncoderDecoder(model)) {
    const name = model.target ? languageName(model.target) : "Output";
    const label = `${name} (optional): inspect a different ${model.target ? "translation" : "output"}`;
    fields.push(textField("target", label, {}, "the model's own output"));
    fields.at(-1).classList.add("inspection-only");
  }
  const warning = h("p.quiet.inspection-only", { role: "status" });
  render(card, h("div.fields", fields), exampleChips(model), warning, model.note && h("p.note", model.note));
  return () => {
    fields.forEach(updateField);
    render(warning, mainTask(model)?.ability === "translate" && SEVERAL_SENTENCES.test(state.text) ? ONE_SEQUENCE : null);
  };
}

function labelOf(model) {
  const { ability } = mainTask(model) ?? {};
  if (ability === "translate" && model.source) return languageName(model.source);
  if (ability === "classify" && model.pairs) return "First text";
  return ability === "fill" ? `Text with masked words: ${maskToken(model)}` : (LABELS[ability] ?? "Text");
}

/** Text field for a state name; `also` are state changes that come with it. */
function textField(name, label, also, placeholder = null) {
  const publish = debounce(350, () => setState({ [name]: field.value, ...also }));
  const field = h("textarea", {
    id: name,
    rows: "1",
    spellcheck: "false",
    autocomplete: "off",
    placeholder,
    oninput: () => (fitHeight(field), publish()),
  });
  return h("label.field.grow", h("span", label), field);
}

/** Show the state in a field, unless the user is typing in it. */
function updateField(label) {
  const field = label.querySelector("textarea");
  const empty = field.id === "text" && field.value.trim() === "";
  if (document.activeElement !== field || empty) field.value = state[field.id];
  fitHeight(field);
}

function fitHeight(field) {
  if (!field.offsetParent) return;
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

function exampleChips(model) {
  const chip = ({ name, text, pair = "" }) => {
    const select = () => setState({ text, pair, target: "", token: -1 });
    const label = name ?? [text, pair].filter(Boolean).join(" / ").replace(/\n/g, " ");
    return h("button.chip", { type: "button", onclick: select }, label);
  };
  return markOverflow(h("div.chips", h("span.quiet", "Examples"), examplesFor(model).map(chip)));
}

// --- completeness of the input

/** Message about input that is still required; null if it is complete. */
export function missingInput(model) {
  const image = readsImages(model);
  if (image ? !state.image : !state.text.trim())
    return emptyMessage(`No input yet: ${image ? "draw an image" : "enter a text"} above or select an example.`);
  const second = secondInput(model);
  if (!second || state.pair.trim()) return null;
  const focus = () => document.getElementById("pair").focus();
  return emptyMessage(second.reason, h("button.link", { type: "button", onclick: focus }, second.action), " above.");
}

/** The same for a masked language model, which predicts the masked words of a text. */
export function missingMask(model) {
  if (mainTask(model)?.ability !== "fill" || hasMask(model, state.text)) return null;
  const mask = maskToken(model);
  const insert = h("button", { type: "button", onclick: () => insertMask(mask) }, `Insert ${mask} at the cursor`);
  return [emptyMessage(`No masked word: write ${mask} in place of a word to predict it.`), insert];
}

/** Insert a mask token at the cursor or in place of the selection, with spaces where needed; at the end of a sentence it goes
 * before the full stop. */
function insertMask(mask) {
  const field = document.getElementById("text");
  const stop = field.value.search(/[.!?…]*\s*$/);
  const [from, to] = field.selectionStart > stop ? [stop, stop] : [field.selectionStart, field.selectionEnd];
  const before = /\S$/.test(field.value.slice(0, from)) ? " " : "";
  const after = /^[\p{L}\p{N}]/u.test(field.value.slice(to)) ? " " : "";
  field.setRangeText(before + mask + after, from, to, "end");
  field.focus();
  setState({ text: field.value, token: -1 });
}

/** Input fields of an inspection request; null while input is missing. */
export function inspectionInput(model) {
  if (missingInput(model)) return null;
  if (readsImages(model)) return { model: model.name, image: state.image };
  return {
    model: model.name,
    text: state.text,
    ...(secondInput(model) ? { pair: state.pair } : {}),
    ...(mainTask(model)?.ability === "chat" ? { chat: true } : {}),
    ...(isEncoderDecoder(model) && state.target.trim() ? { target: state.target } : {}),
  };
}

/** State names that inspectionInput depends on. */
export const INPUT_NAMES = ["text", "pair", "target", "image"];
