// Vectors as strips of colour: one box for each number, told on hover.
import { edges, h, number, pointed, roving } from "./dom.js";
import { paint, signed } from "./colour.js";

/** One vector. `most` is the number with the full colour; `say` is given what is under the pointer. */
export function strip(values, most, say = null, name = "") {
  const canvas = paint(
    h("canvas.strip", { role: "img", "aria-label": `${name}: ${values.length} numbers` }),
    [values.map((x) => x / most)],
    signed,
  );
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.max(
      0,
      Math.min(values.length - 1, Math.floor(((event.clientX - box.left) / box.width) * values.length)),
    );
    say?.(`${name}[${i}] = ${number(values[i])}`);
  };
  pointed(canvas, at);
  return canvas;
}

/** A letter of a formula, with what stands below it. */
export const variable = (name, below = "") => [h("var", name), below ? h("sub", below) : ""];

export const quoted = (token) => h("b", `“${token}”`);

/** The first numbers of a vector, as one writes them. */
export function written(values, count = 3) {
  return h(
    "span.written",
    `[${values
      .slice(0, count)
      .map((x) => number(x, 2))
      .join(", ")}${values.length > count ? ", …" : ""}]`,
  );
}

/** One line of a table of tokens: its name, something wide, something narrow. A token that can be chosen is a button,
 * which `keep` finds again when the table is made anew. */
export function line({ token, wide, narrow = null, on = false, faint = false, choose = null, label = "", keep = "" }) {
  const name = choose
    ? h(
        "button.token-name",
        {
          type: "button",
          "data-keep": keep,
          "aria-pressed": on,
          "aria-label": `${label}${token}`,
          onclick: choose,
        },
        token,
      )
    : h("span.token-name", token);
  return h(
    `div.line${on ? ".on" : ""}${faint ? ".faint" : ""}`,
    name,
    h("div.wide", wide),
    narrow === null ? null : h("div.narrow", narrow),
  );
}

/** Lines below each other, in a box that scrolls where there are many; `long`: their names are those of decoder steps. */
export const table = (lines, long = false) => roving(edges(h(`div.lines-table${long ? ".long" : ""}`, lines)), "button.token-name");

/** The places of numbers, the largest first; what is not finite is last. */
export const ranked = (values) => {
  const of = (j) => values[j] ?? -Infinity;
  return values.map((_, j) => j).sort((a, b) => of(b) - of(a) || a - b);
};

/** A number as a bar from 0 to 1. */
export const weight = (x) => h("span.bar-track", h("span.bar-fill", { style: { width: `${100 * x}%` } }));
