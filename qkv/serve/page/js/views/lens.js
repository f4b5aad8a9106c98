// The logit lens: what the model would answer if it stopped here, at every point of the residual stream.
import { look } from "../api.js";
import { css, largest, share, signed, strong } from "../colour.js";
import { bars, busy, clear, edges, failed, h, number, s, shown } from "../dom.js";
import { SUBJECT, missing, subject } from "../input.js";
import { answers, looks } from "../models.js";
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

/** "1 cross" -> "layer 1, cross-attention". */
function pointName(label) {
  const [layer, ...what] = label.split(" ");
  return /^\d+$/.test(layer) ? `${layer} ${what.map((one) => NAMES[one] ?? one).join(" ")}` : label;
}

class Lens {
  constructor(root, { model, limits }) {
    Object.assign(this, { model, limits, asked: 0, at: null, found: null });
    [this.table, this.side] = [h("section.card"), h("section.card")];
    clear(root, h("div.two.lens", this.table, this.side));
  }

  async update(changed) {
    if (changed && !SUBJECT.some((name) => changed.has(name))) return;
    const mine = ++this.asked;
    clear(this.side);
    if (missing(this.model)) return void clear(this.table, missing(this.model));
    clear(this.table, busy());
    try {
      const found = await look("lens", { ...subject(this.model), top_k: Math.min(6, this.limits.top) });
      if (mine === this.asked) this.show(found);
    } catch (error) {
      if (mine === this.asked) clear(this.table, failed(error));
    }
  }

  show(found) {
    const { points, tokens } = (this.found = found);
    this.most = largest(found.final); // of a score, which has no bound
    const whole = tokens.length === 1 && tokens[0] === "(all)";
    const next = this.model.family === "encoder" ? "" : ": the token that comes next";
    const column = (name) => h("th", shown(name));
    const cells = (i) => tokens.map((_, j) => h("td", this.cell(i, j)));
    const row = (label, i) => h("tr", h("th", pointName(label)), cells(i));
    clear(
      this.table,
      h("h2", "What it would answer if it stopped here"),
      h(
        "p.quiet",
        whole
          ? "Read downwards: each line is a point of the residual stream; the last one is the model's answer."
          : `Each column is a token that was read; read downwards, from its embedding to the answer of the last layer${next}.`,
      ),
      edges(
        h(
          "div.scroll",
          h(
            "table.lens-table",
            { onkeydown: (event) => this.move(event) },
            h("thead", h("tr", h("th", "after"), tokens.map(column))),
            h("tbody", points.map(row)),
          ),
        ),
      ),
    );
    const kept = state.token >= 0 && state.token < tokens.length;
    this.choose(points.length - 1, kept ? state.token : Math.max(0, tokens.length - 2));
  }

  cell(i, j) {
    const { points, tokens, words, probabilities } = this.found;
    const [word, p] = [words[i][j][0], probabilities[i][j][0]];
    const said = told(this.model, p);
    const ground = this.model.scores ? signed(p / this.most) : share(p);
    return h(
      `button.lens-cell${strong(ground) ? ".strong" : ""}`,
      {
        type: "button",
        "aria-pressed": "false",
        "data-at": `${i}.${j}`,
        tabindex: "-1",
        "aria-label": `${pointName(points[i])}, at ${shown(tokens[j])}: ${word} ${said}`,
        style: { background: css(ground) },
        onclick: () => this.choose(i, j),
      },
      this.model.scores ? h("span", said) : [h("span", shown(word)), h("small", said)],
    );
  }

  choose(i, j) {
    const { points, tokens, words, probabilities, entropy, final } = this.found;
    const whole = tokens[j] === "(all)";
    this.at = [i, j];
    for (const one of this.table.querySelectorAll(".lens-cell")) {
      const on = one.dataset.at === this.at.join(".");
      one.setAttribute("aria-pressed", on);
      one.tabIndex = on ? 0 : -1;
    }
    if (!whole && state.token !== j) set({ token: j });
    const rows = rowsOf(this.model, words[i][j].map(shown), probabilities[i][j], this.most);
    const spread = `${whole ? "Its" : "its"} probability is spread over ${number(Math.exp(entropy[i][j]), 1)} answers.`;
    const last = words.at(-1)[j][0];
    clear(
      this.side,
      h("h2", pointName(points[i])),
      h(
        "p.quiet",
        whole ? "" : ["After ", h("b", shown(tokens[j])), "; "],
        this.model.scores ? "" : spread,
      ),
      bars(rows),
      h("h3", this.model.scores ? "The score on the way" : ["How sure of ", h("b", shown(last)), " on the way"]),
      this.course(final.map((row) => row[j]), i),
    );
  }

  move(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = [this.at[0] + step[0], this.at[1] + step[1]];
    if (i < 0 || j < 0 || i >= this.found.points.length || j >= this.found.tokens.length) return;
    this.choose(i, j);
    this.table.querySelector(`[data-at="${i}.${j}"]`).focus();
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
