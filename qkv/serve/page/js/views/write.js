// A model that writes: its text as it comes, every token with its probability, and what could have stood there.
import { ask, stream } from "../api.js";
import { bars, clear, edges, failed, h, number, percent } from "../dom.js";
import { missing } from "../input.js";
import { bothSides, ends, language, main, writes } from "../models.js";
import { settings } from "../settings.js";
import { set, state } from "../state.js";
import { ofEvent, textOf, words } from "../tokens.js";

const ALTERNATIVES = 8;

export const writing = {
  id: "write",
  title: (model) => main(model).title,
  fits: (model) => model !== null && writes(model),
  reads: true,
  writes: true,
  mount: (root, page) => {
    const own = new Writing(root, page);
    return (changed) => own.update(changed);
  },
};

/** Name of a model -> what it wrote last: whoever comes back from another view finds it again. */
const remembered = new Map();

class Writing {
  constructor(root, { model, limits, onDrop }) {
    const drawn = !bothSides(model) && main(model).ability !== "summarize";
    const most = Math.min(bothSides(model) ? 200 : 80, limits.tokens);
    Object.assign(this, { root, model, limits, ability: main(model).ability });
    this.how = remembered.get(model.name)?.how ?? {
      max_tokens: most,
      temperature: drawn ? 0.8 : 0,
      top_k: 0,
      top_p: 1,
      seed: 1,
    };
    [this.tokens, this.chosen, this.running, this.finish, this.drawn] = [[], -1, null, "", null];
    this.parts();
    onDrop(() => this.stop());
  }

  parts() {
    const { ability, model } = this;
    this.output = h("div.output", { "aria-live": "polite", onkeydown: (event) => this.move(event) });
    [this.side, this.note, this.more] = [h("div.side"), h("p.note"), h("div.more")];
    this.values = settings(this.how, this.limits, () => this.write());
    const press = () => (this.running ? this.halt() : this.write());
    this.go = h("button.main", { type: "button", onclick: press }, main(model).button);
    const onwards = h(
      "button",
      { type: "button", onclick: () => set({ text: state.text + textOf(this.tokens), token: -1 }) },
      "Append to prompt",
    );
    const title = ability === "translate" && model.target ? language(model.target) : "Output";
    const goesOn = ability === "generate" && !bothSides(model);
    const head = h("div.row.head", h("h2", title), legend(), h("span.grow"), goesOn ? onwards : null, this.go);
    clear(
      this.root,
      h(
        "div.two.write",
        h("section.card", head, this.output, this.note),
        h("section.card.beside", this.side),
        bothSides(model) ? this.more : this.values.card,
      ),
    );
  }

  update(changed) {
    if (changed && !changed.has("text")) return;
    if (missing(this.model)) return void this.empty();
    const typing = document.activeElement.id === "text";
    if (this.recall() || (changed && typing && !bothSides(this.model))) return;
    this.write();
  }

  // --- writing

  /** Nothing more is written. */
  stop() {
    this.running?.abort();
    this.running = null;
    this.go.textContent = main(this.model).button;
    this.output.querySelector(".caret")?.remove();
    this.root.removeAttribute("aria-busy");
  }

  /** The same, wanted by the reader: what is there so far is what it wrote. */
  halt() {
    this.stop();
    this.ended();
  }

  /** Write, from the beginning or behind the tokens that are kept. */
  async write(kept = []) {
    this.stop();
    if (missing(this.model)) return void this.empty();
    const own = (this.running = new AbortController());
    [this.tokens, this.chosen, this.finish, this.drawn] = [[...kept], -1, "", { ...this.how }];
    this.values.drawn(this.drawn);
    this.go.textContent = "Stop";
    this.root.setAttribute("aria-busy", "true");
    clear(this.more);
    clear(this.side, h("p.quiet", "Choose a token to see its alternatives."));
    this.draw();
    try {
      const parts = await this.sentences(own.signal);
      for (let n = kept.at(-1)?.sentence ?? 0; n < parts.length; n++) await this.sentence(parts, n, kept, own);
      if (own === this.running) this.halt();
    } catch (error) {
      if (own !== this.running) return;
      this.stop();
      clear(this.output, failed(error));
    }
  }

  /** A translator reads one sentence at a time, anything else the whole text. */
  async sentences(signal) {
    if (this.ability !== "translate") return [{ text: state.text, translated: true, space: "" }];
    const { sentences } = await ask("/api/sentences", { text: state.text }, signal);
    return sentences;
  }

  /** Write the n-th sentence behind those before it; what has no words in it stays as it is. */
  async sentence(parts, n, kept, own) {
    const [{ text, translated }, space] = [parts[n], parts[n - 1]?.space ?? ""];
    const copied = { id: null, text, display: text, probability: 1, alternatives: [] };
    if (!translated && text && own === this.running) ofEvent(this.tokens, { text, tokens: [copied] }, n, space);
    if (!translated) return;
    const begun = kept.filter((one) => one.sentence === n);
    for await (const event of stream("/api/generate", this.question(text, begun), own.signal)) {
      if (own !== this.running) return;
      ofEvent(this.tokens, event, n, space);
      this.finish = this.finish === "length" ? "length" : (event.finish ?? this.finish);
      this.draw();
    }
  }

  question(text, kept) {
    return {
      model: this.model.name,
      prompt: text,
      chat: this.ability === "chat",
      prefix: kept.map((one) => one.id),
      alternatives: Math.min(ALTERNATIVES, this.limits.top),
      ...this.how,
    };
  }

  /** Nothing is written from nothing, and nothing of before stays on show. */
  empty() {
    this.stop();
    [this.tokens, this.chosen] = [[], -1];
    clear(this.output, missing(this.model));
    this.values.drawn(null);
    for (const part of [this.side, this.note, this.more]) clear(part);
  }

  /** It is written: the other views look at it if the reader had a say in it. */
  ended() {
    const { tokens, model } = this;
    const decided = tokens.some((one) => one.decided);
    if (bothSides(model) && decided) set({ target: textOf(tokens) });
    const { text, target } = state;
    remembered.set(model.name, { text, target, tokens, finish: this.finish, how: this.how, drawn: this.drawn });
    this.tell(decided);
  }

  /** What was written when the reader was last here, if it was from the same text; whether it was. */
  recall() {
    const last = remembered.get(this.model.name);
    if (!last || last.text !== state.text || last.target !== state.target) return false;
    this.stop();
    [this.tokens, this.finish, this.chosen, this.drawn] = [last.tokens, last.finish, -1, last.drawn];
    this.values.drawn(this.drawn);
    this.draw();
    this.tell(this.tokens.some((one) => one.decided));
    return true;
  }

  /** What is said of the whole, and of the token at which the model was least sure. */
  tell(decided) {
    const { tokens } = this;
    const least = tokens.reduce((worst, one, i) => (one.probability < tokens[worst].probability ? i : worst), 0);
    if (this.chosen < 0 && tokens.length) this.choose(least);
    if (!tokens.length) this.draw();
    const sure = tokens.reduce((sum, one) => sum + Math.log(Math.max(one.probability, 1e-12)), 0);
    const back = () => (set({ target: "" }), this.write());
    clear(
      this.note,
      `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}, log-probability ${number(sure, 2)}. `,
      { length: "Stopped at the token limit. ", "": "Stopped by you. " }[this.finish] ?? "",
      state.target && !decided ? ["The other views show ", h("b", state.target), ". "] : null,
      state.target || decided ? h("button.link", { type: "button", onclick: back }, "Back to the model's own output") : null,
    );
    if (this.ability === "translate") this.beam();
  }

  // --- the text

  draw() {
    const within = this.output.contains(document.activeElement);
    const nothing = !this.tokens.length && !this.running;
    clear(
      this.output,
      words(this.tokens, (one, i) => this.button(one, i)),
      this.running ? h("span.caret", { "aria-hidden": "true" }) : null,
      nothing ? h("p.state", "The output is empty.") : null,
    );
    if (within) this.output.querySelectorAll(".tok")[this.chosen]?.focus();
  }

  button(one, i) {
    const [space, rest] = [one.text.match(/^\s*/)[0], one.text.trimStart()];
    const blank = rest ? "" : space.includes("\n") ? "↵" : "\u00a0";
    return h(
      `button.tok${one.decided ? ".forced" : ""}${rest && !one.end ? "" : ".blank"}`,
      {
        type: "button",
        tabindex: i === Math.max(0, this.chosen) ? "0" : "-1",
        "aria-pressed": i === this.chosen,
        "aria-label": `${rest || "a space"}, ${percent(one.probability)}`,
        title: `${one.display} ${percent(one.probability)}`,
        style: { "--unsure": Math.round(100 * (1 - one.probability)) + "%" },
        onclick: () => this.choose(i),
      },
      rest || blank,
    );
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(this.tokens.length - 1, Math.max(0, this.chosen) + step)));
    this.output.querySelectorAll(".tok")[this.chosen].focus();
  }

  // --- what could have stood there

  choose(i) {
    this.chosen = i;
    this.output.querySelectorAll(".tok").forEach((one, j) => {
      one.setAttribute("aria-pressed", j === i);
      one.tabIndex = j === i ? 0 : -1;
    });
    const one = this.tokens[i];
    const others = withItself(one);
    const rows = others.map(({ id, display, probability }) => ({
      text: ends(this.model, { id }) ? `${display} (the end)` : display,
      probability,
      on: id === one.id,
    }));
    clear(
      this.side,
      h("h2", "Instead of ", h("b", one.display)),
      h("p.quiet", "Choose another token to continue from it."),
      rows.length ? bars(rows, (j) => this.decide(i, others[j])) : null,
    );
  }

  /** Go on from another token in the i-th place; from the one that ends a text there is nothing to go on. */
  decide(i, { id, text, display, probability }) {
    const before = this.tokens.slice(0, i);
    const [own, lead] = [this.tokens[i], this.tokens[i].lead ?? ""]; // a space between two sentences
    const changed = { text: lead + text, piece: lead + text, end: false, decided: true };
    const other = { ...own, id, display, probability, ...changed };
    if (!ends(this.model, other)) return void this.write([...before, other]);
    this.stop();
    [this.tokens, this.finish, this.chosen] = [[...before, { ...other, piece: "", end: true }], "stop", -1];
    clear(this.more);
    this.draw();
    this.ended();
  }

  // --- the other translations

  async beam() {
    const [own, tokens] = [state.text, this.tokens];
    const current = () => own === state.text && tokens === this.tokens;
    try {
      const size = Math.min(4, this.limits.beam, this.limits.alternatives + 1);
      const body = { model: this.model.name, texts: own, beam: size, n_best: size };
      const found = (await ask("/api/translate", body)).results[0];
      if (current()) clear(this.more, hypotheses(found.n_best ?? [found], size));
    } catch (error) {
      if (current()) clear(this.more, failed(error));
    }
  }
}

/** The likeliest tokens in one place; the one that stands there is among them, however unlikely it was. */
function withItself(one) {
  const { id, text, display, probability, alternatives } = one;
  if (!alternatives.length || alternatives.some((other) => other.id === id)) return alternatives;
  return [...alternatives, { id, text, display, probability }];
}

const legend = () => h("span.legend", "sure", h("span.legend-bar.unsure"), "unsure");

function hypotheses(found, size) {
  const rows = found.map((one) => h("tr", h("td", one.text || "(empty)"), h("td.num", number(one.score, 3))));
  const head = h("tr", h("th", "Translation"), h("th.num", "Score"));
  return h(
    "section.card",
    h("h2", "Beam search"),
    h(
      "p.quiet",
      `Beam of ${size} hypotheses. The score is the log-probability per token. The text above is decoded greedily, except for tokens that you chose.`,
    ),
    edges(h("div.scroll", h("table.plain", h("thead", head), h("tbody", rows)))),
  );
}
