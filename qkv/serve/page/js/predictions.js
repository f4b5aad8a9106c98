// Predicted values: probabilities of a classifier or language model, scores of a regression.
import { maxAbs } from "./colour.js";
import { formatNumber, formatPercent } from "./dom.js";

/** Format a probability in percent, a score as a number. */
export const formatValue = (model, x) => (model.scores ? formatNumber(x, 2) : formatPercent(x));

/** Rows for barList. Scores are unbounded: their bars are relative to `most`. */
export function barRows(model, words, values, most = maxAbs([values])) {
  if (!model.scores) return words.map((text, i) => ({ text, probability: values[i] }));
  return words.map((text, i) => ({
    text,
    probability: Math.abs(values[i]) / most,
    note: formatValue(model, values[i]),
    negative: values[i] < 0,
  }));
}

/** Describe the change of a score: "0.12 lower". */
export function describeChange(before, after) {
  const hundredths = Math.round(100 * after) - Math.round(100 * before); // of the rounded numbers on the screen
  return hundredths ? `${formatNumber(Math.abs(hundredths) / 100, 2)} ${hundredths < 0 ? "lower" : "higher"}` : "the same";
}
