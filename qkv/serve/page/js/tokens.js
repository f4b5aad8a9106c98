// Tokens that a model has written: {id, text, piece, probability, alternatives}, and of some: decided (by the reader), end.
// `text` is the token alone; `piece` is its part of the text, which differs where a character is split over several tokens.
import { h } from "./dom.js";

const LONGEST = 24; // characters of a word that is kept on one line

/** Put the tokens of an event behind others. The event's own text is right where the tokens' texts, joined, are not. Of a text with
 * several sentences, `sentence` is the number of theirs and `space` what stands between it and the one before. */
export function ofEvent(tokens, { text = "", tokens: some = [] }, sentence = 0, space = "") {
  const same = some.map((one) => one.text).join("") === text;
  some.forEach((one, i) => {
    const all = i === some.length - 1 ? text : "";
    const lead = tokens.length && (tokens.at(-1).sentence ?? 0) !== sentence ? space : "";
    tokens.push({ ...one, text: lead + one.text, piece: lead + (same ? one.text : all), lead, sentence });
  });
  if (!some.length && text && tokens.length) tokens.at(-1).piece += text;
}

export const textOf = (tokens) => tokens.map((one) => one.piece).join("");

/** The tokens as elements, those of a word together on one line; `made(token, i)` makes one of them. */
export function words(tokens, made) {
  const found = [];
  tokens.forEach((one, i) => {
    const begins = !found.length || /^\s/.test(one.text) || /\s$/.test(tokens[i - 1].text) || one.end;
    if (begins) found.push([]);
    found.at(-1).push(i);
  });
  return found.map((word) => {
    const long = word.reduce((sum, i) => sum + tokens[i].text.length, 0) > LONGEST;
    const [first, own] = [tokens[word[0]].text, word.map((i) => made(tokens[i], i))];
    const breaks = Array.from({ length: first.match(/^\s*/)[0].split("\n").length - 1 }, () => h("br"));
    const whole = long ? own : h("span.together", own);
    return first.trim() ? [/^\s/.test(first) ? " " : "", breaks, whole] : [whole, breaks];
  });
}
