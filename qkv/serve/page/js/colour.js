// Colours of numbers, taken from the style sheet, so that light and dark are right in pictures too.

let scales = null;

/** Forget them: the colours of the page have changed. */
export function refresh() {
  scales = null;
}

function colours() {
  if (scales) return scales;
  const probe = document.createElement("span");
  document.body.append(probe);
  const of = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number);
  };
  scales = {
    zero: of("--zero"),
    more: of("--more"),
    less: of("--less"),
    ink: of("--ink"),
    quiet: of("--quiet"),
    line: of("--line"),
    masked: of("--masked"),
  };
  probe.remove();
  return scales;
}

const mix = (a, b, share) => a.map((x, i) => Math.round(x + (b[i] - x) * share));

/** 0 … 1 -> [r, g, b], from the ground to the accent. */
export const share = (x) => mix(colours().zero, colours().more, Math.sqrt(Math.min(1, Math.max(0, x))));

/** −1 … 1 -> [r, g, b]: below zero one colour, above another. */
export function signed(x) {
  const size = Math.min(1, Math.abs(x)) ** 0.75;
  return mix(colours().zero, x < 0 ? colours().less : colours().more, size);
}

/** How bright a colour is, 0 … 1, as eyes see it (WCAG). */
function brightness(rgb) {
  const [r, g, b] = rgb.map((x) => (x <= 10 ? x / 3295 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Whether white letters can be read better on a colour than black ones; the better of both has a contrast of 4.5 on any. */
export function strong(rgb) {
  const contrast = (letters) => {
    const [low, high] = [brightness(rgb), brightness(letters)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return contrast([255, 255, 255]) > contrast([0, 0, 0]);
}

export const css = (rgb) => `rgb(${rgb.join(" ")})`;
export const named = (name) => css(colours()[name]);
export const masked = () => colours().masked;

/** A table of numbers as pixels on a canvas, one for each; the style sheet stretches them. */
export function paint(canvas, rows, colour) {
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  if (!height || !width) return canvas;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  let at = 0;
  for (const row of rows) {
    for (const x of row) {
      const [r, g, b] = x === null ? masked() : colour(x);
      image.data.set([r, g, b, 255], at);
      at += 4;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The largest size of any number in a table: what a colour scale is measured by. */
export function largest(rows) {
  let most = 1e-9;
  for (const row of rows) for (const x of row) if (x !== null && Math.abs(x) > most) most = Math.abs(x);
  return most;
}

const TYPICAL = 3; // times the median size: of numbers with a normal distribution one in twenty is larger

/** What a colour scale is measured by where single numbers may be far larger than all others, which would leave the rest
 * without colour: the largest size of any number, but at most a few times the median one. */
export function typical(rows) {
  const sizes = Float32Array.from(rows.flat().filter(Boolean), Math.abs).sort();
  return sizes.length ? Math.min(sizes.at(-1), TYPICAL * sizes[sizes.length >> 1]) : 1e-9;
}
