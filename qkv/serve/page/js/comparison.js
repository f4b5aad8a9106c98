// Side-by-side comparison of a model's output without and with ablated heads.
import { maxAbs } from "./colour.js";
import { barList, formatPercent, h, markOverflow } from "./dom.js";
import { barRows, describeChange } from "./predictions.js";

const [ORIGINAL, ABLATED] = ["Original", "With ablated heads"];

/** Both texts with the differing words marked; one text while nothing is ablated. */
export function compareTexts(before, after, ablated) {
  if (!ablated) return h("dl.change", h("dt", "Output"), h("dd", before));
  const [a, b] = [before.split(/(\s+)/), after.split(/(\s+)/)];
  const same = commonWords(a, b);
  const side = (words, kept, tag) => words.map((word, i) => (kept.has(i) || !word.trim() ? word : h(tag, word)));
  return h(
    "dl.change",
    h("dt", ORIGINAL),
    h("dd", side(a, same.a, "del")),
    h("dt", ABLATED),
    h("dd.after", side(b, same.b, "ins")),
    h("dd.verdict", before === after ? "The output is unchanged." : "The output has changed."),
  );
}

/** Indices of the longest common subsequence of two lists. */
function commonWords(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const common = { a: new Set(), b: new Set() };
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) (common.a.add(i++), common.b.add(j++));
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return common;
}

/** Table of the probability of each token of a `side` ("input" or "output"); with a second column once heads are ablated. */
export function compareProbabilities(side, before, after, ablated) {
  const fill = (name, p) => h(name, { style: { width: `${100 * p}%` } });
  const row = ({ token, probability }, i) => {
    const current = after[i].probability;
    const ghost = ablated ? fill("span.bar-fill.ghost", probability) : null;
    return h(
      "tr",
      h("td", token),
      h("td.num", formatPercent(probability)),
      ablated ? h(`td.num${current < probability / 2 ? ".less" : ""}`, formatPercent(current)) : null,
      h("td", h("span.bar-track.twice", ghost, fill("span.bar-fill", current))),
    );
  };
  const head = h(
    "tr",
    h("th", "Token"),
    h("th.num", ablated ? "Original" : "Probability"),
    ablated ? h("th.num", "Ablated") : null,
    h("th", h("span.visually-hidden", "Bar")),
  );
  return [
    h("h3", `Probability of each ${side} token`),
    markOverflow(h("div.scroll", h("table.plain.likely", h("thead", head), h("tbody", before.map(row))))),
  ];
}

/** Top predictions at one token, or the score; side by side once heads are ablated. */
export function comparePredictions(model, title, before, after, ablated) {
  const most = maxAbs([before.probabilities, after.probabilities]);
  const column = (name, { words, probabilities }) =>
    h("div", ablated ? h("h3", name) : null, barList(barRows(model, words, probabilities, most)));
  const columns = [column(ORIGINAL, before), ablated ? column(ABLATED, after) : null];
  const verdict = `The score is ${describeChange(before.probabilities[0], after.probabilities[0])} with the selected heads ablated.`;
  return [h("h3", title), h("div.two.even", columns), model.scores && ablated ? h("p.quiet.verdict", verdict) : null];
}
