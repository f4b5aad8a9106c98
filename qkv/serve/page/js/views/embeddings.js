// Embeddings: cosine similarity of two texts, and the nearest words in embedding space.
import { inspect, request } from "../api.js";
import { barList, busyMessage, errorMessage, formatNumber, h, render } from "../dom.js";
import { examplesFor } from "../examples.js";

export const embeddings = {
  id: "embeddings",
  title: () => "Embeddings",
  supports: (model) => model !== null && model.can.includes("embed"),
  usesInput: false,
  mount: (root, { model }) => {
    render(root, similarityCard(model), neighboursCard(model));
    return () => {};
  },
};

const longestWord = (text) =>
  (text.match(/\p{L}+/gu) ?? []).reduce((longest, word) => (word.length > longest.length ? word : longest), "");

function neighboursCard(model) {
  const field = h("input", {
    type: "text",
    value: longestWord(examplesFor(model)[0].text),
    "aria-label": "Word",
    maxlength: "100",
  });
  const result = h("div", { "aria-live": "polite" });
  const search = async () => {
    try {
      const { words, cosines, pieces = [] } = await inspect("neighbours", { model: model.name, word: field.value });
      const row = (text, i) => ({ text, probability: Math.max(0, cosines[i]), note: formatNumber(cosines[i]) });
      render(result, pieces.length > 1 ? h("p.quiet", `Tokens: ${pieces.join(" · ")}`) : null, barList(words.map(row)));
    } catch (error) {
      render(result, errorMessage(error));
    }
  };
  return h(
    "section.card",
    h("h2", "Nearest words in embedding space"),
    h("p.quiet", "Cosine similarity of the token embeddings, before any context."),
    h(
      "form.row",
      { onsubmit: (event) => (event.preventDefault(), search()) },
      field,
      h("button", { type: "submit" }, "Find"),
    ),
    result,
  );
}

function similarityCard(model) {
  const [first, second] = examplesFor(model);
  const textField = (label, value) => h("input", { type: "text", value, "aria-label": label, maxlength: "1000", required: true });
  const fields = [textField("First text", first.text), textField("Second text", first.pair ?? second?.text ?? first.text)];
  const result = h("div", { "aria-live": "polite" });
  const compare = async () => {
    render(result, busyMessage());
    try {
      const [a, b] = (await request("/api/embed", { model: model.name, texts: fields.map(({ value }) => value) })).results;
      const cosine = a.reduce((sum, x, i) => sum + x * b[i], 0); // the vectors have length 1
      render(result, h("p.big", `Cosine similarity: ${formatNumber(cosine)}`));
    } catch (error) {
      render(result, errorMessage(error));
    }
  };
  return h(
    "section.card",
    h("h2", "Compare two texts"),
    h("p.quiet", "Cosine similarity of the text embeddings (mean of the last layer's token vectors); 1 = same direction."),
    h(
      "form.row.pair",
      { onsubmit: (event) => (event.preventDefault(), compare()) },
      fields,
      h("button", { type: "submit" }, "Compare"),
    ),
    result,
  );
}
