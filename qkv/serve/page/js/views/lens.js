// Logit lens: the output head applied at every point of the residual stream.
import { inspect } from "../api.js";
import { css, diverging, maxAbs, needsWhiteText, sequential } from "../colour.js";
import { barList, busyMessage, errorMessage, formatNumber, h, markOverflow, render, s, scrollToPart } from "../dom.js";
import { colourLegend } from "../heatmap.js";
import { INPUT_NAMES, inspectionInput, missingInput } from "../input.js";
import { canInspect, hasOutputHead, isEncoderDecoder } from "../models.js";
import { barRows, formatValue } from "../predictions.js";
import { setState, state } from "../state.js";

export const lens = {
  id: "lens",
  title: () => "Logit lens",
  supports: (model) => model !== null && canInspect(model) && hasOutputHead(model),
  usesInput: true,
  mount: (root, page) => {
    const view = new LensView(root, page);
    return (changed) => view.update(changed);
  },
};

const SUBLAYERS = {
  attention: "attention",
  cross: "cross-attention",
  feedforward: "feed-forward",
  hidden: "state",
  block: "block",
};

/** "1 cross" -> "1 cross-attention". */
function pointName(point) {
  const [layer, ...sublayer] = point.split(" ");
  return /^\d+$/.test(layer) ? `${layer} ${sublayer.map((name) => SUBLAYERS[name] ?? name).join(" ")}` : point;
}

/** "1 cross-attention" -> "Layer 1, cross-attention", "embedding" -> "Embedding". */
const pointTitle = (name) => (/^\d/.test(name) ? `Layer ${name.replace(" ", ", ")}` : name[0].toUpperCase() + name.slice(1));

const MAX_PRODUCTS = 1.4e10; // multiplications of one request: about half a second of a core

/** Number of columns per request. The head multiplies by the whole word matrix for each point of each column. */
function columnsPerRequest({ head, width, layers, decoder_layers, vocabulary, target_vocabulary }) {
  if (!/^(vocabulary|masked)/.test(head)) return Infinity; // few outputs
  const words = decoder_layers ? target_vocabulary : vocabulary;
  return Math.max(4, Math.floor(MAX_PRODUCTS / (2 * (decoder_layers || layers) * width * words)));
}

class LensView {
  constructor(root, { model, limits }) {
    Object.assign(this, { model, limits, requests: 0, cell: null, result: null, queue: Promise.resolve() });
    [this.table, this.details] = [h("section.card"), h("section.card")];
    this.progress = h("p.note", { role: "status" });
    render(root, h("div.two.lens", this.table, this.details));
  }

  async update(changed) {
    if (changed && !INPUT_NAMES.some((name) => changed.has(name))) return;
    const number = ++this.requests;
    render(this.details);
    if (missingInput(this.model)) return void render(this.table, missingInput(this.model));
    render(this.table, busyMessage());
    try {
      const result = await this.fetchFirst();
      if (number === this.requests) this.show(result);
    } catch (error) {
      if (number === this.requests) render(this.table, errorMessage(error));
    }
  }

  /** Fetch all columns, or of a large model those around the selected token; others are computed when they become visible. */
  async fetchFirst() {
    const count = columnsPerRequest(this.model);
    if (count >= this.limits.looked) return inspect("lens", this.requestBody());
    const { tokens } = await inspect("answers", { ...inspectionInput(this.model), top_k: 1 });
    const { length } = tokens;
    return inspect("lens", this.requestBody(count < length ? columnBlock(initialColumn(length), count, length) : undefined));
  }

  requestBody(columns) {
    return { ...inspectionInput(this.model), top_k: Math.min(6, this.limits.top), ...(columns ? { columns } : {}) };
  }

  show(result) {
    const whole = !result.columns.length; // one prediction for the whole input
    const { points } = result;
    const tokens = whole ? result.tokens : result.input_tokens;
    this.result = { points, tokens, columns: [] };
    this.most = maxAbs(result.final); // scores are unbounded
    this.store(result);
    this.buildTable(whole);
    this.fillTable();
    this.select(points.length - 1, initialColumn(tokens.length));
  }

  /** Store computed columns. */
  store({ columns, words, probabilities, final, entropy }) {
    const indices = columns.length ? columns : [0];
    const columnOf = (table, n) => table.map((row) => row[n]);
    indices.forEach((j, n) => {
      this.result.columns[j] = {
        words: columnOf(words, n),
        probabilities: columnOf(probabilities, n),
        final: columnOf(final, n),
        entropy: columnOf(entropy, n),
      };
    });
  }

  /** Build the table with row and column names; of a large model most columns are still empty. */
  buildTable(whole) {
    const { points, tokens, columns } = this.result;
    const column = (name, j) => h("th", { scope: "col", "data-column": j }, whole ? "whole input" : name);
    const row = (point) => h("tr", h("th", { scope: "row" }, pointName(point)), tokens.map(() => h("td")));
    const observer = new IntersectionObserver((entries) =>
      entries.forEach((entry) => entry.isIntersecting && this.loadColumn(entry.target)),
    );
    const table = h(
      "table.lens-table",
      { onkeydown: (event) => this.handleKey(event) },
      h("thead", h("tr", h("th", { scope: "col" }, "after layer"), tokens.map(column))),
      h("tbody", points.map(row)),
    );
    const legend = this.model.scores ? null : colourLegend(sequential, "0 %", "100 %");
    render(
      this.table,
      h("div.row.head", h("h2", "Prediction at each layer"), legend),
      h("p.quiet", this.explanation(whole)),
      markOverflow(h("div.scroll", table)),
      render(this.progress),
    );
    for (const head of this.table.querySelectorAll("[data-column]"))
      if (!columns[head.dataset.column]) observer.observe(head);
  }

  explanation(whole) {
    if (whole) return "Each row applies the output head to the residual stream at that point. The last row is the model's prediction.";
    const column = isEncoderDecoder(this.model) ? "a token that the decoder has read" : "an input token";
    const last = this.model.family === "encoder" ? "the model's prediction" : "the model's prediction of the next token";
    return `Each column is ${column}, each row a point of the residual stream to which the output head is applied. The last row is ${last}.`;
  }

  /** Add the cells of all stored columns. */
  fillTable() {
    this.table.querySelectorAll("tbody tr").forEach((row, i) =>
      row.querySelectorAll("td").forEach((parent, j) => {
        if (this.result.columns[j] && !parent.firstChild) parent.append(this.createCell(i, j));
      }),
    );
  }

  /** Queue the computation of a column that has become visible, with those around it. */
  loadColumn({ dataset }) {
    const [number, j] = [this.requests, Number(dataset.column)];
    const run = () => (number === this.requests && !this.result.columns[j] ? this.fetchColumns(j) : null);
    return (this.queue = this.queue.then(run));
  }

  async fetchColumns(j) {
    const number = this.requests;
    const { length } = this.result.tokens;
    const columns = columnBlock(j, columnsPerRequest(this.model), length);
    this.table.setAttribute("aria-busy", "true");
    this.progress.textContent = `Computing tokens ${columns[0]} to ${columns.at(-1)} of ${length}…`;
    try {
      const result = await inspect("lens", this.requestBody(columns));
      if (number !== this.requests) return;
      this.store(result);
      this.fillTable();
      render(this.progress);
    } catch (error) {
      if (number === this.requests) render(this.progress, errorMessage(error));
    } finally {
      this.table.removeAttribute("aria-busy");
    }
  }

  createCell(i, j) {
    const { points, tokens, columns } = this.result;
    const [word, p] = [columns[j].words[i][0], columns[j].probabilities[i][0]];
    const value = formatValue(this.model, p);
    const background = this.model.scores ? diverging(p / this.most) : sequential(p);
    return h(
      `button.lens-cell${needsWhiteText(background) ? ".strong" : ""}`,
      {
        type: "button",
        "aria-pressed": "false",
        "data-at": `${i}.${j}`,
        tabindex: "-1",
        "aria-label": `${pointName(points[i])}, at ${tokens[j]}: ${word} ${value}`,
        style: { background: css(background) },
        onclick: () => this.select(i, j),
      },
      this.model.scores ? h("span", value) : [h("span", word), h("small", value)],
    );
  }

  select(i, j) {
    const { tokens } = this.result;
    this.cell = [i, j];
    for (const cell of this.table.querySelectorAll(".lens-cell")) {
      const selected = cell.dataset.at === this.cell.join(".");
      cell.setAttribute("aria-pressed", selected);
      cell.tabIndex = selected ? 0 : -1;
      if (selected) this.scrollTo(cell);
    }
    if (tokens[j] !== "(all)" && state.token !== j) setState({ token: j });
    this.showDetails(i, j);
  }

  showDetails(i, j) {
    const { points, tokens, columns } = this.result;
    const { words, probabilities, entropy, final } = columns[j];
    const { scores, family } = this.model;
    const place = tokens[j] === "(all)" ? "" : [family === "encoder" ? "At " : "After ", h("b", `“${tokens[j]}”`), ". "];
    const choices = `Effective number of choices: ${formatNumber(Math.exp(entropy[i]), 1)}`;
    render(
      this.details,
      h("h2", pointTitle(pointName(points[i]))),
      h("p.quiet", place, scores ? "" : choices),
      barList(barRows(this.model, words[i], probabilities[i], this.most)),
      h("h3", scores ? "Score by layer" : ["Probability of ", h("b", `“${words.at(-1)[0]}”`), " by layer"]),
      this.curve(final, i),
    );
  }

  /** Scroll to a cell; row and column names are sticky and cover a part of the table. */
  scrollTo(cell) {
    const { width, height } = this.table.querySelector("thead th").getBoundingClientRect();
    scrollToPart(cell.closest(".scroll"), cell.getBoundingClientRect(), { left: width, top: height });
  }

  async handleKey(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = [this.cell[0] + step[0], this.cell[1] + step[1]];
    if (i < 0 || j < 0 || i >= this.result.points.length || j >= this.result.tokens.length) return;
    if (!this.result.columns[j]) await this.loadColumn(this.table.querySelector(`[data-column="${j}"]`));
    if (!this.result.columns[j]) return; // the request has failed, or the text has changed
    this.select(i, j);
    this.table.querySelector(`[data-at="${i}.${j}"]`).focus({ preventScroll: true });
  }

  /** Curve of the final prediction by layer: a probability between 0 and 1, a score between its extremes. */
  curve(values, current) {
    const [width, height] = [300, 90];
    const [low, high] = this.model.scores ? [Math.min(0, ...values), Math.max(0, ...values)] : [0, 1];
    const x = (i) => 6 + (i * (width - 12)) / Math.max(1, values.length - 1);
    const y = (p) => height - 6 - ((p - low) / (high - low || 1)) * (height - 12);
    const [first, last] = [values[0], values.at(-1)].map((p) => formatValue(this.model, p));
    return s(
      "svg.curve",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `From ${first} at the ${this.result.points[0]} to ${last} at the output`,
      },
      s("line.axis", { x1: 6, x2: width - 6, y1: y(0), y2: y(0) }),
      s("polyline", { points: values.map((p, i) => `${x(i)},${y(p)}`).join(" ") }),
      values.map((p, i) => s("circle", { cx: x(i), cy: y(p), r: i === current ? 5 : 2.5 })),
    );
  }
}

/** Column that is selected first: that of the address, else the last but one. */
const initialColumn = (length) => (state.token >= 0 && state.token < length ? state.token : Math.max(0, length - 2));

/** Columns that are computed together with column j. */
function columnBlock(j, count, length) {
  const first = j - (j % count);
  return Array.from({ length: Math.min(count, length - first) }, (_, n) => first + n);
}
