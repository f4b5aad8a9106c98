// Colour scales for numbers, taken from the style sheet so that canvases follow the light and dark themes.

let colours = null;

/** Discard the cached colours after a theme change. */
export function resetColours() {
  colours = null;
}

function palette() {
  if (colours) return colours;
  const probe = document.createElement("span");
  document.body.append(probe);
  const resolve = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number);
  };
  const names = ["zero", "more", "less", "ink", "quiet", "line", "masked"];
  colours = Object.fromEntries(names.map((name) => [name, resolve(`--${name}`)]));
  probe.remove();
  return colours;
}

const mix = (a, b, ratio) => a.map((x, i) => Math.round(x + (b[i] - x) * ratio));

/** Map 0 … 1 to [r, g, b], from the neutral colour to the accent. */
export const sequential = (x) => mix(palette().zero, palette().more, Math.sqrt(Math.min(1, Math.max(0, x))));

/** Map −1 … 1 to [r, g, b], with one hue for negative and one for positive numbers. */
export function diverging(x) {
  const size = Math.min(1, Math.abs(x)) ** 0.75;
  return mix(palette().zero, x < 0 ? palette().less : palette().more, size);
}

/** Relative luminance of a colour, 0 … 1 (WCAG). */
function luminance(rgb) {
  const [r, g, b] = rgb.map((x) => (x <= 10 ? x / 3295 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Return whether white text has more contrast than black on a colour; the better of both always reaches 4.5. */
export function needsWhiteText(rgb) {
  const contrast = (text) => {
    const [low, high] = [luminance(rgb), luminance(text)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return contrast([255, 255, 255]) > contrast([0, 0, 0]);
}

export const css = (rgb) => `rgb(${rgb.join(" ")})`;
export const namedColour = (name) => css(palette()[name]);

/** Draw a table of numbers on a canvas, one pixel each (the style sheet scales them); null = masked. */
export function paintPixels(canvas, rows, colour) {
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  if (!height || !width) return canvas;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  let offset = 0;
  for (const row of rows) {
    for (const x of row) {
      const [r, g, b] = x === null ? palette().masked : colour(x);
      image.data.set([r, g, b, 255], offset);
      offset += 4;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Largest absolute value of a table: the end of its colour scale. */
export function maxAbs(rows) {
  let most = 1e-9;
  for (const row of rows) for (const x of row) if (x !== null && Math.abs(x) > most) most = Math.abs(x);
  return most;
}

const MEDIANS = 3; // of normally distributed numbers one in twenty is larger than three times the median

/** End of a colour scale that ignores outliers, which would leave all other numbers pale: the largest absolute value, but at
 * most a few times the median. */
export function robustMax(rows) {
  const sizes = Float32Array.from(rows.flat().filter(Boolean), Math.abs).sort();
  return sizes.length ? Math.min(sizes.at(-1), MEDIANS * sizes[sizes.length >> 1]) : 1e-9;
}
