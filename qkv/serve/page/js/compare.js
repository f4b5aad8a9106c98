// What a model says before and after a change, side by side.
import { largest } from "./colour.js";
import { bars, edges, h, percent } from "./dom.js";
import { moved, rowsOf } from "./scored.js";

/** Both texts, the words that differ marked; the one text while nothing has changed. */
export function texts(before, after, changed) {
  if (!changed) return h("dl.change", h("dt", "Output"), h("dd", before));
  const [a, b] = [before.split(/(\s+)/), after.split(/(\s+)/)];
  const same = common(a, b);
  const side = (words, kept, name) => words.map((word, i) => (kept.has(i) || !word.trim() ? word : h(name, word)));
  const equal = before === after;
  return h(
    "dl.change",
    h("dt", "All heads on"),
    h("dd", side(a, same.a, "del")),
    h("dt", "Selected heads off"),
    h("dd.after", side(b, same.b, "ins")),
    h("dd.verdict", equal ? "The output is the same." : "The output has changed."),
  );
}

/** Where two lists agree: the longest common subsequence. */
function common(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const found = { a: new Set(), b: new Set() };
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) (found.a.add(i++), found.b.add(j++));
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return found;
}

/** The probability of each token of a `side` ("input", "output"), with and, once some are off, without the heads. */
export function likelihoods(side, before, after, changed) {
  const fill = (name, p) => h(name, { style: { width: `${100 * p}%` } });
  const row = ({ token, probability }, i) => {
    const now = after[i].probability;
    const ghost = changed ? fill("span.bar-fill.ghost", probability) : null;
    return h(
      "tr",
      h("td", token),
      h("td.num", percent(probability)),
      changed ? h(`td.num${now < probability / 2 ? ".less" : ""}`, percent(now)) : null,
      h("td", h("span.bar-track.twice", ghost, fill("span.bar-fill", now))),
    );
  };
  return [
    h("h3", `Probability of each ${side} token`),
    edges(
      h(
        "div.scroll",
        h(
          "table.plain.likely",
          h("thead", h("tr", h("th", "Token"), h("th.num", changed ? "Heads on" : "Probability"), changed ? h("th.num", "Heads off") : null, h("th", h("span.unseen", "as a bar")))),
          h("tbody", before.map(row)),
        ),
      ),
    ),
  ];
}

/** The likeliest answers at one token, or the score, with and, once some are off, without the heads. */
export function answers(model, title, before, after, changed) {
  const most = largest([before.probabilities, after.probabilities]);
  const column = (name, one) =>
    h("div", changed ? h("h3", name) : null, bars(rowsOf(model, one.words, one.probabilities, most)));
  const both = [column("All heads on", before), changed ? column("Selected heads off", after) : null];
  const verdict = `The score is ${moved(before.probabilities[0], after.probabilities[0])} with the selected heads off.`;
  return [h("h3", title), h("div.two.even", both), model.scores && changed ? h("p.quiet.verdict", verdict) : null];
}
