// Text generation: streamed tokens with their probabilities, alternatives for each token, and beam hypotheses.
import { request, streamEvents } from "../api.js";
import { barList, errorMessage, formatNumber, formatPercent, h, markOverflow, render } from "../dom.js";
import { missingInput } from "../input.js";
import { generatesText, isEncoderDecoder, isEndToken, languageName, mainTask } from "../models.js";
import { samplingControls } from "../sampling.js";
import { setState, state } from "../state.js";
import { appendEvent, groupWords, joinTokens } from "../tokens.js";

const ALTERNATIVES = 8;

export const generation = {
  id: "generate",
  title: (model) => mainTask(model).title,
  supports: (model) => model !== null && generatesText(model),
  usesInput: true,
  generates: true,
  mount: (root, page) => {
    const view = new GenerationView(root, page);
    return (changed) => view.update(changed);
  },
};

/** Model name -> its last output, restored when the user returns from another view. */
const outputs = new Map();

class GenerationView {
  constructor(root, { model, limits, onUnmount }) {
    const sampled = !isEncoderDecoder(model) && mainTask(model).ability !== "summarize";
    const max_tokens = Math.min(isEncoderDecoder(model) ? 200 : 80, limits.tokens);
    Object.assign(this, { root, model, limits, ability: mainTask(model).ability });
    const defaults = { max_tokens, temperature: sampled ? 0.8 : 0, top_k: 0, top_p: 1, seed: 1 };
    this.settings = outputs.get(model.name)?.settings ?? defaults;
    [this.tokens, this.selected, this.running, this.finish, this.used] = [[], -1, null, "", null];
    this.build();
    onUnmount(() => this.abort());
  }

  build() {
    const { ability, model } = this;
    this.output = h("div.output", { "aria-live": "polite", onkeydown: (event) => this.handleKey(event) });
    [this.side, this.note, this.hypotheses] = [h("div.side"), h("p.note"), h("div.more")];
    this.sampling = samplingControls(this.settings, this.limits, () => this.generate());
    const onclick = () => (this.running ? this.stop() : this.generate());
    this.button = h("button.main", { type: "button", onclick }, mainTask(model).button);
    const append = () => setState({ text: state.text + joinTokens(this.tokens), token: -1 });
    const appendButton = h("button", { type: "button", onclick: append }, "Append to prompt");
    const title = ability === "translate" && model.target ? languageName(model.target) : "Output";
    const continues = ability === "generate" && !isEncoderDecoder(model);
    const head = h("div.row.head", h("h2", title), legend(), h("span.grow"), continues ? appendButton : null, this.button);
    render(
      this.root,
      h(
        "div.two.generation",
        h("section.card", head, this.output, this.note),
        h("section.card.beside", this.side),
        isEncoderDecoder(model) ? this.hypotheses : this.sampling.card,
      ),
    );
  }

  update(changed) {
    if (changed && !changed.has("text")) return;
    if (missingInput(this.model)) return void this.clear();
    const typing = document.activeElement.id === "text";
    if (this.restore() || (changed && typing && !isEncoderDecoder(this.model))) return;
    this.generate();
  }

  // --- generation

  abort() {
    this.running?.abort();
    this.running = null;
    this.button.textContent = mainTask(this.model).button;
    this.output.querySelector(".caret")?.remove();
    this.root.removeAttribute("aria-busy");
  }

  /** Abort and keep the tokens so far as the output. */
  stop() {
    this.abort();
    this.complete();
  }

  /** Generate from the beginning, or after the tokens of a prefix. */
  async generate(prefix = []) {
    this.abort();
    if (missingInput(this.model)) return void this.clear();
    const controller = (this.running = new AbortController());
    [this.tokens, this.selected, this.finish, this.used] = [[...prefix], -1, "", { ...this.settings }];
    this.sampling.setUsed(this.used);
    this.button.textContent = "Stop";
    this.root.setAttribute("aria-busy", "true");
    render(this.hypotheses);
    render(this.side, h("p.quiet", "Select a token to see its alternatives."));
    this.draw();
    try {
      const sentences = await this.fetchSentences(controller.signal);
      for (let n = prefix.at(-1)?.sentence ?? 0; n < sentences.length; n++)
        await this.generateSentence(sentences, n, prefix, controller);
      if (controller === this.running) this.stop();
    } catch (error) {
      if (controller !== this.running) return;
      this.abort();
      render(this.output, errorMessage(error));
    }
  }

  /** Split the text into sentences for a translator; all other models read it as a whole. */
  async fetchSentences(signal) {
    if (this.ability !== "translate") return [{ text: state.text, translated: true, space: "" }];
    const { sentences } = await request("/api/sentences", { text: state.text }, signal);
    return sentences;
  }

  /** Generate the n-th sentence; one without words is copied. */
  async generateSentence(sentences, n, prefix, controller) {
    const [{ text, translated }, space] = [sentences[n], sentences[n - 1]?.space ?? ""];
    const copy = { id: null, text, display: text, probability: 1, alternatives: [] };
    if (!translated && text && controller === this.running) appendEvent(this.tokens, { text, tokens: [copy] }, n, space);
    if (!translated) return;
    const own = prefix.filter((token) => token.sentence === n);
    for await (const event of streamEvents("/api/generate", this.requestBody(text, own), controller.signal)) {
      if (controller !== this.running) return;
      appendEvent(this.tokens, event, n, space);
      this.finish = this.finish === "length" ? "length" : (event.finish ?? this.finish);
      this.draw();
    }
  }

  requestBody(text, prefix) {
    return {
      model: this.model.name,
      prompt: text,
      chat: this.ability === "chat",
      prefix: prefix.map((token) => token.id),
      alternatives: Math.min(ALTERNATIVES, this.limits.top),
      ...this.settings,
    };
  }

  /** Without input, show a message and nothing of an earlier output. */
  clear() {
    this.abort();
    [this.tokens, this.selected] = [[], -1];
    render(this.output, missingInput(this.model));
    this.sampling.setUsed(null);
    for (const part of [this.side, this.note, this.hypotheses]) render(part);
  }

  /** Store the finished output; if the user has selected tokens, the other views inspect it too. */
  complete() {
    const { tokens, model } = this;
    const forced = tokens.some((token) => token.forced);
    if (isEncoderDecoder(model) && forced) setState({ target: joinTokens(tokens) });
    const { text, target } = state;
    outputs.set(model.name, { text, target, tokens, finish: this.finish, settings: this.settings, used: this.used });
    this.showSummary(forced);
  }

  /** Restore the last output if it is of the same text; return whether it is. */
  restore() {
    const last = outputs.get(this.model.name);
    if (!last || last.text !== state.text || last.target !== state.target) return false;
    this.abort();
    [this.tokens, this.finish, this.selected, this.used] = [last.tokens, last.finish, -1, last.used];
    this.sampling.setUsed(this.used);
    this.draw();
    this.showSummary(this.tokens.some((token) => token.forced));
    return true;
  }

  /** Show length, log-probability and reason of the end, and select the least likely token. */
  showSummary(forced) {
    const { tokens } = this;
    const least = tokens.reduce((index, token, i) => (token.probability < tokens[index].probability ? i : index), 0);
    if (this.selected < 0 && tokens.length) this.select(least);
    if (!tokens.length) this.draw();
    const logprob = tokens.reduce((sum, token) => sum + Math.log(Math.max(token.probability, 1e-12)), 0);
    const reset = () => (setState({ target: "" }), this.generate());
    render(
      this.note,
      `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}, log-probability ${formatNumber(logprob, 2)}. `,
      { length: "Stopped at the token limit. ", "": "Stopped by the user. " }[this.finish] ?? "",
      state.target && !forced ? ["The other views inspect ", h("b", `“${state.target}”`), ". "] : null,
      state.target || forced ? h("button.link", { type: "button", onclick: reset }, "Reset to the model's output") : null,
    );
    if (this.ability === "translate") this.showHypotheses();
  }

  // --- tokens

  draw() {
    const hadFocus = this.output.contains(document.activeElement);
    const empty = !this.tokens.length && !this.running;
    render(
      this.output,
      groupWords(this.tokens, (token, i) => this.tokenButton(token, i)),
      this.running ? h("span.caret", { "aria-hidden": "true" }) : null,
      empty ? h("p.state", "The output is empty.") : null,
    );
    if (hadFocus) this.output.querySelectorAll(".tok")[this.selected]?.focus();
  }

  tokenButton(token, i) {
    const [space, rest] = [token.text.match(/^\s*/)[0], token.text.trimStart()];
    const blank = rest ? "" : space.includes("\n") ? "↵" : "\u00a0";
    return h(
      `button.tok${token.forced ? ".forced" : ""}${rest && !token.end ? "" : ".blank"}`,
      {
        type: "button",
        tabindex: i === Math.max(0, this.selected) ? "0" : "-1",
        "aria-pressed": i === this.selected,
        "aria-label": `${rest || "space"}, ${formatPercent(token.probability)}`,
        title: `${token.display} ${formatPercent(token.probability)}`,
        style: { "--uncertainty": Math.round(100 * (1 - token.probability)) + "%" },
        onclick: () => this.select(i),
      },
      rest || blank,
    );
  }

  handleKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(this.tokens.length - 1, Math.max(0, this.selected) + step)));
    this.output.querySelectorAll(".tok")[this.selected].focus();
  }

  // --- alternatives

  select(i) {
    this.selected = i;
    this.output.querySelectorAll(".tok").forEach((button, j) => {
      button.setAttribute("aria-pressed", j === i);
      button.tabIndex = j === i ? 0 : -1;
    });
    const token = this.tokens[i];
    const alternatives = alternativesOf(token);
    const rows = alternatives.map(({ id, display, probability }) => ({
      text: isEndToken(this.model, { id }) ? `${display} (end)` : display,
      probability,
      selected: id === token.id,
    }));
    render(
      this.side,
      h("h2", "Alternatives to ", h("b", `“${token.display}”`)),
      h("p.quiet", "Select another token to continue from it."),
      rows.length ? barList(rows, (j) => this.replaceToken(i, alternatives[j])) : null,
    );
  }

  /** Continue from another token at position i; an end token ends the output. */
  replaceToken(i, { id, text, display, probability }) {
    const before = this.tokens.slice(0, i);
    const lead = this.tokens[i].lead ?? ""; // space between two sentences
    const token = { ...this.tokens[i], id, display, probability, text: lead + text, piece: lead + text, end: false, forced: true };
    if (!isEndToken(this.model, token)) return void this.generate([...before, token]);
    this.abort();
    [this.tokens, this.finish, this.selected] = [[...before, { ...token, piece: "", end: true }], "stop", -1];
    render(this.hypotheses);
    this.draw();
    this.complete();
  }

  // --- beam search

  async showHypotheses() {
    const { tokens } = this;
    const { text } = state;
    const isCurrent = () => text === state.text && tokens === this.tokens;
    try {
      const beam = Math.min(4, this.limits.beam, this.limits.alternatives + 1);
      const body = { model: this.model.name, texts: text, beam, n_best: beam };
      const result = (await request("/api/translate", body)).results[0];
      if (isCurrent()) render(this.hypotheses, hypothesesCard(result.n_best ?? [result], beam));
    } catch (error) {
      if (isCurrent()) render(this.hypotheses, errorMessage(error));
    }
  }
}

/** Most likely tokens at a position; the generated one is always among them. */
function alternativesOf({ id, text, display, probability, alternatives }) {
  if (!alternatives.length || alternatives.some((other) => other.id === id)) return alternatives;
  return [...alternatives, { id, text, display, probability }];
}

const legend = () => h("span.legend", "certain", h("span.legend-bar.uncertainty"), "uncertain");

function hypothesesCard(hypotheses, beam) {
  const row = ({ text, score }) => h("tr", h("td", text || "(empty)"), h("td.num", formatNumber(score, 3)));
  const head = h("tr", h("th", "Translation"), h("th.num", "Score"));
  return h(
    "section.card",
    h("h2", "Beam hypotheses"),
    h(
      "p.quiet",
      `Beam size ${beam}. The score is the log-probability per token. The text above is decoded greedily, except for tokens that you selected.`,
    ),
    markOverflow(h("div.scroll", h("table.plain", h("thead", head), h("tbody", hypotheses.map(row))))),
  );
}
