// The numbers of answers: how likely they are, or of a regression the number itself.
import { largest } from "./colour.js";
import { number, percent } from "./dom.js";

/** One of them as it is written: a share of 1 in percent, a score as it is. */
export const told = (model, x) => (model.scores ? number(x, 2) : percent(x));

/** Rows for bars. A score may be any number: it is drawn beside the largest one on show, `most`. */
export function rowsOf(model, words, values, most = largest([values])) {
  if (!model.scores) return words.map((text, i) => ({ text, probability: values[i] }));
  return words.map((text, i) => ({
    text,
    probability: Math.abs(values[i]) / most,
    note: told(model, values[i]),
    below: values[i] < 0,
  }));
}

/** What a change does to a score: "0.12 lower". */
export function moved(before, after) {
  const by = Math.round(100 * after) - Math.round(100 * before); // as both are written
  return by ? `${number(Math.abs(by) / 100, 2)} ${by < 0 ? "lower" : "higher"}` : "the same";
}
