// The logit lens: what the model would answer if it stopped here, at every point of the residual stream.
import { look } from "../api.js";
import { css, share } from "../colour.js";
import { bars, busy, clear, empty, failed, h, number, percent, s, shown } from "../dom.js";
import { subject } from "../input.js";
import { answers, looks } from "../models.js";
import { set, state } from "../state.js";

export const lens = {
  id: "lens",
  title: () => "Layers",
  fits: (model) => model !== null && looks(model) && answers(model),
  reads: true,
  mount,
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

function mount(root, { model, limits }) {
  let [asked, at] = [0, null];
  const table = h("section.card");
  const side = h("section.card");
  clear(root, h("div.two.lens", table, side));

  async function update(changed) {
    if (changed && !["text", "target", "image"].some((name) => changed.has(name))) return;
    const mine = ++asked;
    if (!subject(model))
      return void (clear(side), clear(table, empty("There is nothing to look at yet: write something above.")));
    clear(table, busy());
    try {
      const found = await look("lens", { ...subject(model), top_k: Math.min(6, limits.top) });
      if (mine !== asked) return;
      const column =
        state.token >= 0 && state.token < found.tokens.length ? state.token : Math.max(0, found.tokens.length - 2);
      at = [found.points.length - 1, column];
      show(found);
    } catch (error) {
      if (mine === asked) (clear(side), clear(table, failed(error)));
    }
  }

  function show(found) {
    const cell = (i, j) => {
      const p = found.probabilities[i][j][0];
      return h(
        "td",
        h(
          "button.lens-cell",
          {
            type: "button",
            "aria-pressed": "false",
            "data-at": `${i}.${j}`,
            tabindex: "-1",
            "aria-label": `${pointName(found.points[i])}, at ${shown(found.tokens[j])}: ${found.words[i][j][0]} ${percent(p)}`,
            style: { background: css(share(p)) },
            class: p > 0.5 ? "lens-cell strong" : "lens-cell",
            onclick: () => choose(found, i, j),
          },
          h("span", shown(found.words[i][j][0])),
          h("small", percent(p)),
        ),
      );
    };
    const head = h(
      "tr",
      h("th", "after"),
      found.tokens.map((token) => h("th", shown(token))),
    );
    const rows = found.points.map((label, i) =>
      h(
        "tr",
        h("th", pointName(label)),
        found.tokens.map((_, j) => cell(i, j)),
      ),
    );
    const whole = found.tokens.length === 1 && found.tokens[0] === "(all)";
    clear(
      table,
      h("h2", "What it would answer if it stopped here"),
      h(
        "p.quiet",
        whole
          ? "Read downwards: each line is a point of the residual stream; the last one is the model's answer."
          : `Each column is a token that was read; read downwards, from its embedding to the answer of the last layer${model.family === "encoder" ? "" : ": the token that comes next"}.`,
      ),
      h(
        "div.scroll",
        h("table.lens-table", { onkeydown: (event) => move(event, found) }, h("thead", head), h("tbody", rows)),
      ),
    );
    choose(found, ...at);
  }

  function choose(found, i, j) {
    at = [i, j];
    for (const one of table.querySelectorAll(".lens-cell")) {
      const on = one.dataset.at === at.join(".");
      one.setAttribute("aria-pressed", on);
      one.tabIndex = on ? 0 : -1;
    }
    if (state.token !== j) set({ token: j });
    const rows = found.words[i][j].map((text, n) => ({ text: shown(text), probability: found.probabilities[i][j][n] }));
    const last = found.words.at(-1)[j][0];
    clear(
      side,
      h("h2", pointName(found.points[i])),
      h(
        "p.quiet",
        found.tokens[j] === "(all)" ? "" : ["After ", h("b", shown(found.tokens[j])), "; "],
        `its probability is spread over ${number(Math.exp(found.entropy[i][j]), 1)} answers.`,
      ),
      bars(rows),
      h("h3", "How sure of ", h("b", shown(last)), " on the way"),
      course(
        found.final.map((row) => row[j]),
        i,
        found.points,
      ),
    );
  }

  function move(event, found) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = [at[0] + step[0], at[1] + step[1]];
    if (i < 0 || j < 0 || i >= found.points.length || j >= found.tokens.length) return;
    choose(found, i, j);
    table.querySelector(`[data-at="${i}.${j}"]`).focus();
  }

  return update;
}

/** The probability of the final answer from layer to layer. */
function course(values, now, points) {
  const [width, height] = [300, 90];
  const x = (i) => 6 + (i * (width - 12)) / Math.max(1, values.length - 1);
  const y = (p) => height - 6 - p * (height - 12);
  return s(
    "svg.course",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `From ${percent(values[0])} at the ${points[0]} to ${percent(values.at(-1))} at the end`,
    },
    s("line.axis", { x1: 6, x2: width - 6, y1: y(0), y2: y(0) }),
    s("polyline", { points: values.map((p, i) => `${x(i)},${y(p)}`).join(" ") }),
    values.map((p, i) => s("circle", { cx: x(i), cy: y(p), r: i === now ? 5 : 2.5 })),
  );
}
