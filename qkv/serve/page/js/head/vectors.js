// Tables of tokens with vectors drawn as strips of colour, one box per number.
import { diverging, paintPixels } from "../colour.js";
import { formatNumber, h, markOverflow, onPointer, rovingFocus } from "../dom.js";

/** Strip of one vector. `most` is the number with the full colour; `setReadout` gets the number under the pointer. */
export function vectorStrip(values, most, setReadout = null, name = "") {
  const canvas = paintPixels(
    h("canvas.strip", { role: "img", "aria-label": `${name}: ${values.length} numbers` }),
    [values.map((x) => x / most)],
    diverging,
  );
  onPointer(canvas, (event) => {
    const box = canvas.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * values.length);
    const i = Math.max(0, Math.min(values.length - 1, index));
    setReadout?.(`${name}[${i}] = ${formatNumber(values[i])}`);
  });
  return canvas;
}

/** Symbol of a formula, with a subscript. */
export const symbol = (name, subscript = "") => [h("var", name), subscript ? h("sub", subscript) : ""];

export const quote = (token) => h("b", `“${token}”`);

/** First numbers of a vector: [0.12, −0.50, 1.03, …]. */
export function formatVector(values, count = 3) {
  const numbers = values.slice(0, count).map((x) => formatNumber(x, 2));
  return h("span.vector", `[${numbers.join(", ")}${values.length > count ? ", …" : ""}]`);
}

/** Row of a token table: name, a wide and a narrow part. With `onSelect` the name is a button; `focusKey` identifies it when the
 * table is rendered again. */
export function tokenRow({ token, wide, narrow = null, selected = false, faint = false, onSelect = null, label = "", focusKey = "" }) {
  const attributes = {
    type: "button",
    "data-focus-key": focusKey,
    "aria-pressed": selected,
    "aria-label": `${label}${token}`,
    onclick: onSelect,
  };
  const name = onSelect ? h("button.token-name", attributes, token) : h("span.token-name", token);
  return h(
    `div.line${selected ? ".on" : ""}${faint ? ".faint" : ""}`,
    name,
    h("div.wide", wide),
    narrow === null ? null : h("div.narrow", narrow),
  );
}

/** Scrolling table of rows; `long`: the names are those of decoder steps. */
export const tokenTable = (rows, long = false) =>
  rovingFocus(markOverflow(h(`div.lines-table${long ? ".long" : ""}`, rows)), "button.token-name");

/** Indices of numbers in descending order; masked ones are last. */
export const descendingOrder = (values) => {
  const value = (j) => values[j] ?? -Infinity;
  return values.map((_, j) => j).sort((a, b) => value(b) - value(a) || a - b);
};

/** Bar of a number between 0 and 1. */
export const weightBar = (x) => h("span.bar-track", h("span.bar-fill", { style: { width: `${100 * x}%` } }));
