// What a model says before and after a change, side by side.
import { largest } from "./colour.js";
import { bars, h, percent, shown } from "./dom.js";
import { moved, rowsOf } from "./scored.js";

/** Both texts, the words that differ marked. */
export function texts(before, after) {
  const [a, b] = [before.split(/(\s+)/), after.split(/(\s+)/)];
  const same = common(a, b);
  const side = (words, kept, name) => words.map((word, i) => (kept.has(i) || !word.trim() ? word : h(name, word)));
  const equal = before === after;
  return h(
    "dl.change",
    h("dt", "All heads on"),
    h("dd", side(a, same.a, "del")),
    h("dt", "Without them"),
    h("dd.after", side(b, same.b, "ins")),
    h("dd.verdict", equal ? "The text is the same." : "The text has changed."),
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

/** How likely each token of the text is, with and without the heads. */
export function likelihoods(before, after) {
  const row = ({ token, probability }, i) => {
    const now = after[i].probability;
    return h(
      "tr",
      h("td", shown(token)),
      h("td.num", percent(probability)),
      h(`td.num${now < probability / 2 ? ".less" : ""}`, percent(now)),
      h(
        "td",
        h(
          "span.bar-track.twice",
          h("span.bar-fill.ghost", { style: { width: `${100 * probability}%` } }),
          h("span.bar-fill", { style: { width: `${100 * now}%` } }),
        ),
      ),
    );
  };
  return [
    h("h3", "How likely each token of the text is"),
    h(
      "div.scroll",
      h(
        "table.plain.likely",
        h("thead", h("tr", h("th", "Token"), h("th.num", "on"), h("th.num", "off"), h("th", ""))),
        h("tbody", before.map(row)),
      ),
    ),
  ];
}

/** The likeliest answers at one token, or the score, with and without the heads. */
export function answers(model, title, before, after, changed) {
  const most = largest([before.probabilities, after.probabilities]);
  const column = (name, one) =>
    h("div", h("h3", name), bars(rowsOf(model, one.words.map(shown), one.probabilities, most)));
  const both = [column("All heads on", before), column(changed ? "Without them" : "The same", after)];
  const verdict = `The score is ${moved(before.probabilities[0], after.probabilities[0])} without them.`;
  return [h("h3", title), h("div.two.even", both), model.scores && changed ? h("p.quiet.verdict", verdict) : null];
}
