// Temperature and the like, of a model that draws its tokens.
import { h } from "./dom.js";

/** how: {temperature, top_k, top_p, seed, max_tokens}, which the sliders change. */
export function settings(how, limits) {
  const field = (name, label, least, most, step) => {
    const value = h("output", String(how[name]));
    const range = h("input", {
      type: "range",
      min: least,
      max: most,
      step,
      value: how[name],
      "aria-label": label,
      oninput: () => ((how[name] = Number(range.value)), (value.textContent = range.value)),
    });
    return h("label.field", h("span", label, " ", value), range);
  };
  return h(
    "section.card",
    h("h2", "How tokens are chosen"),
    h(
      "div.fields.even",
      field("temperature", "Temperature", 0, 2, 0.05),
      field("top_k", "Only the top k (0 = all)", 0, 50, 1),
      field("top_p", "Only the top share p", 0.05, 1, 0.05),
      field("seed", "Seed", 0, 100, 1),
      field("max_tokens", "Tokens", 1, Math.min(400, limits.tokens), 1),
    ),
    h("p.quiet", "Temperature 0 always takes the likeliest. The same seed gives the same text."),
  );
}
