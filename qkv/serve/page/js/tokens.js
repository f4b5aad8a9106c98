// Generated tokens: {id, text, piece, probability, alternatives}; some also have forced (selected by the user) and end.
// `text` is the token alone; `piece` is its part of the output, which differs if a character is split over several tokens.
import { h } from "./dom.js";

const LONGEST_WORD = 24; // characters of a word that is not broken over lines

/** Append the tokens of an event. The text of the event is authoritative: token texts joined may differ from it. For a text of
 * several sentences, `sentence` is the sentence number and `space` the separator before it. */
export function appendEvent(tokens, { text = "", tokens: added = [] }, sentence = 0, space = "") {
  const same = added.map((token) => token.text).join("") === text;
  added.forEach((token, i) => {
    const whole = i === added.length - 1 ? text : "";
    const lead = tokens.length && (tokens.at(-1).sentence ?? 0) !== sentence ? space : "";
    tokens.push({ ...token, text: lead + token.text, piece: lead + (same ? token.text : whole), lead, sentence });
  });
  if (!added.length && text && tokens.length) tokens.at(-1).piece += text;
}

export const joinTokens = (tokens) => tokens.map((token) => token.piece).join("");

/** Elements of tokens, grouped so that lines break between words only; `create(token, i)` makes an element. */
export function groupWords(tokens, create) {
  const words = [];
  tokens.forEach((token, i) => {
    const begins = !words.length || /^\s/.test(token.text) || /\s$/.test(tokens[i - 1].text) || token.end;
    if (begins) words.push([]);
    words.at(-1).push(i);
  });
  return words.map((word) => {
    const long = word.reduce((sum, i) => sum + tokens[i].text.length, 0) > LONGEST_WORD;
    const [first, elements] = [tokens[word[0]].text, word.map((i) => create(tokens[i], i))];
    const breaks = Array.from({ length: first.match(/^\s*/)[0].split("\n").length - 1 }, () => h("br"));
    const whole = long ? elements : h("span.together", elements);
    return first.trim() ? [/^\s/.test(first) ? " " : "", breaks, whole] : [whole, breaks];
  });
}
