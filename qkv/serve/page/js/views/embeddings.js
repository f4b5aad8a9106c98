// Embeddings: the words nearest to a word, and the similarity of two texts.
import { ask, look } from "../api.js";
import { bars, busy, clear, failed, h, number } from "../dom.js";
import { examples } from "../examples.js";

export const embeddings = {
  id: "embeddings",
  title: () => "Embeddings",
  fits: (model) => model !== null && model.can.includes("embed"),
  reads: false,
  mount: (root, { model }) => {
    clear(root, similarity(model), neighbours(model));
    return () => {};
  },
};

/** The longest word of a text. */
const longest = (text) => (text.match(/\p{L}+/gu) ?? []).reduce((best, one) => (one.length > best.length ? one : best), "");

/** The words nearest to a word. */
function neighbours(model) {
  const word = h("input", {
    type: "text",
    value: longest(examples(model)[0].text),
    "aria-label": "Word",
    maxlength: "100",
  });
  const said = h("div", { "aria-live": "polite" });
  const go = async () => {
    try {
      const found = await look("neighbours", { model: model.name, word: word.value });
      const { pieces = [] } = found;
      clear(
        said,
        pieces.length > 1 ? h("p.quiet", `Tokens: ${pieces.join(" · ")}`) : null,
        bars(
          found.words.map((text, i) => ({
            text,
            probability: Math.max(0, found.cosines[i]),
            note: number(found.cosines[i]),
          })),
        ),
      );
    } catch (error) {
      clear(said, failed(error));
    }
  };
  return h(
    "section.card",
    h("h2", "Nearest words in embedding space"),
    h("p.quiet", "Cosine similarity of the token embeddings, before any context."),
    h(
      "form.row",
      { onsubmit: (event) => (event.preventDefault(), go()) },
      word,
      h("button", { type: "submit" }, "Find"),
    ),
    said,
  );
}

/** How alike two texts are: the cosine of their vectors, each the mean over its tokens. */
function similarity(model) {
  const [first, other] = examples(model);
  const field = (label, value) => h("input", { type: "text", value, "aria-label": label, maxlength: "1000", required: true });
  const fields = [field("First text", first.text), field("Second text", first.pair ?? other?.text ?? first.text)];
  const said = h("div", { "aria-live": "polite" });
  const go = async () => {
    clear(said, busy());
    try {
      const [a, b] = (await ask("/api/embed", { model: model.name, texts: fields.map((one) => one.value) })).results;
      const cosine = a.reduce((sum, x, i) => sum + x * b[i], 0); // their length is 1
      clear(said, h("p.big", `Cosine similarity: ${number(cosine)}`));
    } catch (error) {
      clear(said, failed(error));
    }
  };
  return h(
    "section.card",
    h("h2", "Compare two texts"),
    h("p.quiet", "Cosine similarity of the text vectors, each the mean over the tokens of the last layer. 1 = the same direction."),
    h(
      "form.row.pair",
      { onsubmit: (event) => (event.preventDefault(), go()) },
      fields,
      h("button", { type: "submit" }, "Compare"),
    ),
    said,
  );
}
