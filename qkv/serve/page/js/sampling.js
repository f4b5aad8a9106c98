// Controls for sampling: temperature, top-k, top-p, seed and the number of tokens.
import { h, render } from "./dom.js";

const NAMES = { temperature: "temperature", top_k: "top-k", top_p: "top-p", seed: "seed", max_tokens: "max tokens" };

/** Card with sliders that change `settings` {temperature, top_k, top_p, seed, max_tokens}; `resample()` generates again.
 * Returns {card, setUsed}: setUsed(values) records the settings of the text on the screen, null if there is no text. */
export function samplingControls(settings, limits, resample) {
  const note = h("p.note", { role: "status" });
  let used = null;
  const updateNote = () => render(note, used && describeUsed(settings, used, resample));
  const slider = (name, label, min, max, step) => {
    const output = h("output", String(settings[name]));
    const oninput = () => {
      settings[name] = Number(range.value);
      output.textContent = range.value;
      updateNote();
    };
    const range = h("input", { type: "range", min, max, step, value: settings[name], "aria-label": label, oninput });
    return h("label.field", h("span", label, " ", output), range);
  };
  const card = h(
    "section.card",
    h("h2", "Sampling"),
    h(
      "div.fields.even",
      slider("temperature", "Temperature", 0, 2, 0.05),
      slider("top_k", "Top-k (0 = all)", 0, 50, 1),
      slider("top_p", "Top-p (nucleus)", 0.05, 1, 0.05),
      slider("seed", "Seed", 0, 100, 1),
      slider("max_tokens", "Max tokens", 1, Math.min(400, limits.tokens), 1),
    ),
    note,
    h("p.quiet", "Temperature 0 is greedy decoding: always the most likely token. The same seed gives the same text."),
  );
  return { card, setUsed: (values) => ((used = values), updateNote()) };
}

/** State whether the text was sampled with the current settings; if not, with which, and offer to sample again. */
function describeUsed(settings, used, resample) {
  const changed = Object.keys(NAMES).filter((name) => settings[name] !== used[name]);
  if (!changed.length) return "The text above was sampled with these values.";
  const values = changed.map((name) => `${NAMES[name]} ${used[name]}`).join(", ");
  const button = h("button.link", { type: "button", onclick: resample }, "Sample again with these values");
  return [`Not applied yet: the text above was sampled with ${values}. `, button];
}
