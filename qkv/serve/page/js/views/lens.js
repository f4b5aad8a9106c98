// The logit lens: what the model would answer if it stopped here, at every point of the residual stream.
import { look } from "../api.js";
import { css, largest, share, signed, strong } from "../colour.js";
import { bars, busy, clear, edges, failed, h, number, reveal, s } from "../dom.js";
import { SUBJECT, missing, subject } from "../input.js";
import { legend } from "../matrix.js";
import { answers, bothSides, looks } from "../models.js";
import { rowsOf, told } from "../scored.js";
import { set, state } from "../state.js";

export const lens = {
  id: "lens",
  title: () => "Layers",
  fits: (model) => model !== null && looks(model) && answers(model),
  reads: true,
  mount: (root, page) => {
    const own = new Lens(root, page);
    return (changed) => own.update(changed);
  },
};

const NAMES = {
  attention: "attention",
  cross: "cross-attention",
  feedforward: "feed-forward",
  hidden: "state",
  block: "block",
};

/** "1 cross" -> "1 cross-attention". */
function pointName(label) {
  const [layer, ...what] = label.split(" ");
  return /^\d+$/.test(layer) ? `${layer} ${what.map((one) => NAMES[one] ?? one).join(" ")}` : label;
}

/** "1 cross-attention" -> "Layer 1, cross-attention", "embedding" -> "Embedding". */
const sentence = (point) => (/^\d/.test(point) ? `Layer ${point.replace(" ", ", ")}` : point[0].toUpperCase() + point.slice(1));

const WORK = 1.4e10; // products of one request: about half a second of a core

/** How many columns one request computes. The head reads its whole word matrix for each point of each column. */
function together({ head, width, layers, decoder_layers, vocabulary, target_vocabulary }) {
  if (!/^(vocabulary|masked)/.test(head)) return Infinity; // few answers
  const words = decoder_layers ? target_vocabulary : vocabulary;
  return Math.max(4, Math.floor(WORK / (2 * (decoder_layers || layers) * width * words)));
}

class Lens {
  constructor(root, { model, limits }) {
    Object.assign(this, { model, limits, asked: 0, at: null, found: null, work: Promise.resolve() });
    [this.table, this.side] = [h("section.card"), h("section.card")];
    this.progress = h("p.note", { role: "status" });
    clear(root, h("div.two.lens", this.table, this.side));
  }

  async update(changed) {
    if (changed && !SUBJECT.some((name) => changed.has(name))) return;
    const mine = ++this.asked;
    clear(this.side);
    if (missing(this.model)) return void clear(this.table, missing(this.model));
    clear(this.table, busy());
    try {
      const found = await this.first();
      if (mine === this.asked) this.show(found);
    } catch (error) {
      if (mine === this.asked) clear(this.table, failed(error));
    }
  }

  /** All columns, or of a large model those around the chosen token; the others are computed when they come into sight. */
  async first() {
    const count = together(this.model);
    if (count >= this.limits.looked) return look("lens", this.question());
    const { tokens } = await look("answers", { ...subject(this.model), top_k: 1 });
    const { length } = tokens;
    return look("lens", this.question(count < length ? block(beginning(length), count, length) : undefined));
  }

  question(columns) {
    return { ...subject(this.model), top_k: Math.min(6, this.limits.top), ...(columns ? { columns } : {}) };
  }

  show(found) {
    const whole = !found.columns.length;
    const { points } = found;
    const tokens = whole ? found.tokens : found.input_tokens;
    this.found = { points, tokens, columns: [] };
    this.most = largest(found.final); // of a score, which has no bound
    this.take(found);
    this.frame(whole);
    this.fill();
    this.choose(points.length - 1, beginning(tokens.length));
  }

  /** Keep what was computed, column by column. */
  take({ columns, words, probabilities, final, entropy }) {
    const own = columns.length ? columns : [0];
    const of = (table, n) => table.map((row) => row[n]);
    own.forEach((j, n) => {
      const [likeliest, numbers] = [of(words, n), of(probabilities, n)];
      this.found.columns[j] = { words: likeliest, probabilities: numbers, final: of(final, n), entropy: of(entropy, n) };
    });
  }

  /** The table, with the names of its rows and columns; of a large model most columns are still empty. */
  frame(whole) {
    const { points, tokens, columns } = this.found;
    const next = this.model.family === "encoder" ? "" : ": the next token";
    const column = (name, j) => h("th", { scope: "col", "data-column": j }, whole ? "whole input" : name);
    const row = (label) => h("tr", h("th", { scope: "row" }, pointName(label)), tokens.map(() => h("td")));
    const seen = new IntersectionObserver((all) => all.forEach((one) => one.isIntersecting && this.need(one.target)));
    clear(
      this.table,
      h(
        "div.row.head",
        h("h2", "Logit lens: the prediction at each layer"),
        this.model.scores ? null : legend(share, "0 %", "100 %"),
      ),
      h(
        "p.quiet",
        whole
          ? "Each row applies the output head to the residual stream at that point. The last row is the model's answer."
          : `Each column is ${bothSides(this.model) ? "a token that the decoder has read" : "an input token"}, each row a point of the residual stream to which the output head is applied. The last row is the model's answer${next}.`,
      ),
      edges(
        h(
          "div.scroll",
          h(
            "table.lens-table",
            { onkeydown: (event) => this.move(event) },
            h("thead", h("tr", h("th", { scope: "col" }, "after"), tokens.map(column))),
            h("tbody", points.map(row)),
          ),
        ),
      ),
      clear(this.progress),
    );
    for (const head of this.table.querySelectorAll("[data-column]"))
      if (!columns[head.dataset.column]) seen.observe(head);
  }

  /** Cells for all columns that are known by now. */
  fill() {
    this.table.querySelectorAll("tbody tr").forEach((row, i) =>
      row.querySelectorAll("td").forEach((place, j) => {
        if (this.found.columns[j] && !place.firstChild) place.append(this.cell(i, j));
      }),
    );
  }

  /** A column has come into sight: it is computed with those around it, one request after the other. */
  need({ dataset }) {
    const [mine, j] = [this.asked, Number(dataset.column)];
    const run = () => (mine === this.asked && !this.found.columns[j] ? this.load(j) : null);
    return (this.work = this.work.then(run));
  }

  async load(j) {
    const mine = this.asked;
    const { length } = this.found.tokens;
    const columns = block(j, together(this.model), length);
    this.table.setAttribute("aria-busy", "true");
    this.progress.textContent = `Computing tokens ${columns[0]} to ${columns.at(-1)} of ${length}…`;
    try {
      const found = await look("lens", this.question(columns));
      if (mine !== this.asked) return;
      this.take(found);
      this.fill();
      clear(this.progress);
    } catch (error) {
      if (mine === this.asked) clear(this.progress, failed(error));
    } finally {
      this.table.removeAttribute("aria-busy");
    }
  }

  cell(i, j) {
    const { points, tokens, columns } = this.found;
    const [word, p] = [columns[j].words[i][0], columns[j].probabilities[i][0]];
    const said = told(this.model, p);
    const ground = this.model.scores ? signed(p / this.most) : share(p);
    return h(
      `button.lens-cell${strong(ground) ? ".strong" : ""}`,
      {
        type: "button",
        "aria-pressed": "false",
        "data-at": `${i}.${j}`,
        tabindex: "-1",
        "aria-label": `${pointName(points[i])}, at ${tokens[j]}: ${word} ${said}`,
        style: { background: css(ground) },
        onclick: () => this.choose(i, j),
      },
      this.model.scores ? h("span", said) : [h("span", word), h("small", said)],
    );
  }

  choose(i, j) {
    const { points, tokens, columns } = this.found;
    const { words, probabilities, entropy, final } = columns[j];
    const whole = tokens[j] === "(all)";
    this.at = [i, j];
    for (const one of this.table.querySelectorAll(".lens-cell")) {
      const on = one.dataset.at === this.at.join(".");
      one.setAttribute("aria-pressed", on);
      one.tabIndex = on ? 0 : -1;
      if (on) this.reveal(one);
    }
    if (!whole && state.token !== j) set({ token: j });
    const rows = rowsOf(this.model, words[i], probabilities[i], this.most);
    const choices = `Effective number of choices: ${number(Math.exp(entropy[i]), 1)}`;
    const last = words.at(-1)[0];
    clear(
      this.side,
      h("h2", sentence(pointName(points[i]))),
      h(
        "p.quiet",
        whole ? "" : [this.model.family === "encoder" ? "At " : "After ", h("b", `“${tokens[j]}”`), ". "],
        this.model.scores ? "" : choices,
      ),
      bars(rows),
      h("h3", this.model.scores ? "Score by layer" : ["Probability of ", h("b", `“${last}”`), " by layer"]),
      this.course(final, i),
    );
  }

  /** A cell is chosen where it can be seen: the names of rows and columns stay in place over the table. */
  reveal(cell) {
    const { width, height } = this.table.querySelector("thead th").getBoundingClientRect();
    reveal(cell.closest(".scroll"), cell.getBoundingClientRect(), { left: width, top: height });
  }

  async move(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = [this.at[0] + step[0], this.at[1] + step[1]];
    if (i < 0 || j < 0 || i >= this.found.points.length || j >= this.found.tokens.length) return;
    if (!this.found.columns[j]) await this.need(this.table.querySelector(`[data-column="${j}"]`));
    if (!this.found.columns[j]) return; // it could not be computed, or another text is shown by now
    this.choose(i, j);
    this.table.querySelector(`[data-at="${i}.${j}"]`).focus({ preventScroll: true });
  }

  /** The probability of the final answer from layer to layer, between 0 and 1; a score between its least and its most. */
  course(values, now) {
    const [width, height] = [300, 90];
    const [low, high] = this.model.scores ? [Math.min(0, ...values), Math.max(0, ...values)] : [0, 1];
    const x = (i) => 6 + (i * (width - 12)) / Math.max(1, values.length - 1);
    const y = (p) => height - 6 - ((p - low) / (high - low || 1)) * (height - 12);
    const [first, last] = [values[0], values.at(-1)].map((p) => told(this.model, p));
    return s(
      "svg.course",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `From ${first} at the ${this.found.points[0]} to ${last} at the end`,
      },
      s("line.axis", { x1: 6, x2: width - 6, y1: y(0), y2: y(0) }),
      s("polyline", { points: values.map((p, i) => `${x(i)},${y(p)}`).join(" ") }),
      values.map((p, i) => s("circle", { cx: x(i), cy: y(p), r: i === now ? 5 : 2.5 })),
    );
  }
}

/** The column that is chosen first: that of the address, or the last but one. */
const beginning = (length) => (state.token >= 0 && state.token < length ? state.token : Math.max(0, length - 2));

/** The columns that are computed together with column j. */
function block(j, count, length) {
  const first = j - (j % count);
  return Array.from({ length: Math.min(count, length - first) }, (_, n) => first + n);
}
