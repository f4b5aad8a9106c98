// Temperature and the like, of a model that draws its tokens.
import { clear, h } from "./dom.js";

const NAMES = { temperature: "temperature", top_k: "top-k", top_p: "top-p", seed: "seed", max_tokens: "max tokens" };

/** how: {temperature, top_k, top_p, seed, max_tokens}, which the sliders change; again(): draw another text with them.
 * {card, drawn}: drawn(values) says which values the text on show was drawn with; null = there is no text. */
export function settings(how, limits, again) {
  const note = h("p.note", { role: "status" });
  let last = null;
  const tell = () => clear(note, last && difference(how, last, again));
  const field = (name, label, least, most, step) => {
    const value = h("output", String(how[name]));
    const range = h("input", {
      type: "range",
      min: least,
      max: most,
      step,
      value: how[name],
      "aria-label": label,
      oninput: () => ((how[name] = Number(range.value)), (value.textContent = range.value), tell()),
    });
    return h("label.field", h("span", label, " ", value), range);
  };
  const card = h(
    "section.card",
    h("h2", "Sampling"),
    h(
      "div.fields.even",
      field("temperature", "Temperature", 0, 2, 0.05),
      field("top_k", "Top-k (0 = all)", 0, 50, 1),
      field("top_p", "Top-p (nucleus)", 0.05, 1, 0.05),
      field("seed", "Seed", 0, 100, 1),
      field("max_tokens", "Max tokens", 1, Math.min(400, limits.tokens), 1),
    ),
    note,
    h("p.quiet", "Temperature 0 is greedy decoding: always the most likely token. The same seed gives the same text."),
  );
  return { card, drawn: (values) => ((last = values), tell()) };
}

/** Whether the text was drawn with the values on show, in words; where it was not, with which, and a button to draw it anew. */
function difference(how, last, again) {
  const others = Object.keys(NAMES).filter((name) => how[name] !== last[name]);
  if (!others.length) return "The text above was sampled with these values.";
  const values = others.map((name) => `${NAMES[name]} ${last[name]}`).join(", ");
  const apply = h("button.link", { type: "button", onclick: again }, "Sample again with these values");
  return [`Not applied yet: the text above was sampled with ${values}. `, apply];
}
