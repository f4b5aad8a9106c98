// What goes into the model: a text with examples, of some models a second one, of an encoder-decoder also what it writes, or a
// picture.
import { clear, edges, empty, h, later } from "./dom.js";
import { examples } from "./examples.js";
import { bothSides, gapOf, gapped, language, main, second, sees } from "./models.js";
import { pad } from "./pad.js";
import { set, state } from "./state.js";

const LABELS = {
  translate: "Text",
  summarize: "Text to summarise",
  classify: "Text",
  answer: "Context",
  tag: "Sentence",
  chat: "Message",
  generate: "Prompt",
};

const SEVERAL = /[.!?…]["”»)'’]*\s+[^\p{Ll}\s]|\S\s*\n\s*\S/u; // an end of a sentence, and another one behind it
const AS_ONE =
  "This view reads the whole text as one sequence, while Translate splits it into sentences: inspect one sentence at a time.";

/** Fill the card; gives a function that follows the state. */
export function input(card, model) {
  if (sees(model)) {
    clear(card, pad(model));
    return () => {};
  }
  const other = second(model);
  if (!state.text.trim()) {
    const { text, pair } = examples(model)[0];
    Object.assign(state, { text, pair: state.pair || (pair ?? "") });
  }
  const fields = [area("text", labelOf(model), { target: "", token: -1 })];
  if (other) fields.push(area("pair", other.label, { token: -1 }));
  if (bothSides(model)) {
    const name = model.target ? language(model.target) : "Output";
    const label = `${name} (optional): inspect a different ${model.target ? "translation" : "output"}`;
    fields.push(area("target", label, {}, "the model's own output"));
    fields.at(-1).classList.add("wants");
  }
  const whole = h("p.quiet.wants", { role: "status" });
  clear(card, h("div.fields", fields), chips(model), whole, model.note && h("p.note", model.note));
  return () => {
    fields.forEach(follow);
    clear(whole, main(model)?.ability === "translate" && SEVERAL.test(state.text) ? AS_ONE : null);
  };
}

function labelOf(model) {
  const { ability } = main(model) ?? {};
  if (ability === "translate" && model.source) return language(model.source);
  if (ability === "classify" && model.pairs) return "First text";
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
  const chip = ({ name, text, pair = "" }) => {
    const take = () => set({ text, pair, target: "", token: -1 });
    const label = name ?? [text, pair].filter(Boolean).join(" / ").replace(/\n/g, " ");
    return h("button.chip", { type: "button", onclick: take }, label);
  };
  return edges(h("div.chips", h("span.quiet", "Try"), examples(model).map(chip)));
}

// --- what the model is asked

/** What a reader has yet to give before the model can be asked anything, in words; null where nothing is missing. */
export function missing(model) {
  if (sees(model) ? !state.image : !state.text.trim())
    return empty(`No input yet: ${sees(model) ? "draw a picture" : "type a text"} above, or choose an example.`);
  const other = second(model);
  if (!other || state.pair.trim()) return null;
  const write = () => document.getElementById("pair").focus();
  return empty(other.why, h("button.link", { type: "button", onclick: write }, other.wanted), " above.");
}

/** The same of a model that fills gaps, and is asked what stands there: a text without one is no question. */
export function missingGap(model) {
  if (main(model)?.ability !== "fill" || gapped(model, state.text)) return null;
  const gap = gapOf(model);
  const put = h("button", { type: "button", onclick: () => putGap(gap) }, `Put ${gap} at the cursor`);
  return [empty(`Write ${gap} where a word is missing.`), put];
}

/** A gap where the cursor was last, in place of what is selected there, with a space to either side that needs one; at the
 * end of a sentence it stands before the full stop. */
function putGap(gap) {
  const field = document.getElementById("text");
  const close = field.value.search(/[.!?…]*\s*$/);
  const [from, to] = field.selectionStart > close ? [close, close] : [field.selectionStart, field.selectionEnd];
  const before = /\S$/.test(field.value.slice(0, from)) ? " " : "";
  const after = /^[\p{L}\p{N}]/u.test(field.value.slice(to)) ? " " : "";
  field.setRangeText(before + gap + after, from, to, "end");
  field.focus();
  set({ text: field.value, token: -1 });
}

/** What is looked at, as the server wants it; null while something is missing. */
export function subject(model) {
  if (missing(model)) return null;
  if (sees(model)) return { model: model.name, image: state.image };
  return {
    model: model.name,
    text: state.text,
    ...(second(model) ? { pair: state.pair } : {}),
    ...(main(model)?.ability === "chat" ? { chat: true } : {}),
    ...(bothSides(model) && state.target.trim() ? { target: state.target } : {}),
  };
}

/** The names of the state that a subject is made of. */
export const SUBJECT = ["text", "pair", "target", "image"];
