// Attention over image patches, drawn as a tint on the image.
import { formatNumber, h, markOverflow, onPointer, rovingFocus } from "./dom.js";

const SIDE = 320;

/** Find the patches among the columns: {side, columns: [column of each patch]}; null if there are none. */
export function patchGrid(names) {
  const columns = names.flatMap((name, j) => (/^\d+,\d+$/.test(name) ? [j] : []));
  const side = Math.round(Math.sqrt(columns.length));
  return side > 1 && side * side === columns.length ? { side, columns } : null;
}

const SHADE = [12, 12, 20, 0.6]; // over a patch with weight 0
const TINT = [255, 170, 40, 0.6]; // over the patch with the largest weight: an orange that is visible on black and on white

/** Draw an image on a canvas, darkened where patches have small weights, tinted and framed where they have large ones. */
export function drawOverlay(canvas, source, weights, side) {
  const [image, context, cell] = [new Image(), canvas.getContext("2d"), SIDE / side];
  const most = Math.max(...weights, 1e-9);
  Object.assign(canvas, { width: SIDE, height: SIDE });
  image.onload = () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, SIDE, SIDE);
    const fade = ([r, g, b, alpha], ratio) => `rgb(${r} ${g} ${b} / ${alpha * ratio})`;
    weights.forEach((weight, n) => {
      const [x, y, ratio] = [(n % side) * cell, Math.floor(n / side) * cell, weight / most];
      for (const colour of [fade(SHADE, 1 - ratio), fade(TINT, ratio)]) {
        context.fillStyle = colour;
        context.fillRect(x, y, cell, cell);
      }
      context.strokeStyle = fade(TINT, Math.max(0.2, ratio));
      context.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    });
  };
  image.src = source;
  return canvas;
}

/** Figure with the weights of one query on the image, and a list to select the query from. */
export function imageOverlay({ rows, values, selected, onSelect, label }, { side, columns }, source) {
  const row = selected < 0 ? 0 : selected;
  const canvas = h("canvas.overlay", { role: "img", "aria-label": label });
  const hint = "Stronger tint: larger attention weight. Point at a patch to read its weight.";
  const readout = h("p.readout", { "aria-live": "polite" }, hint);
  const weights = columns.map((j) => values[row][j]);
  drawOverlay(canvas, source, weights, side);
  onPointer(canvas, (event) => {
    const box = canvas.getBoundingClientRect();
    const index = (x, from, size) => Math.max(0, Math.min(side - 1, Math.floor(((x - from) / size) * side)));
    const [i, j] = [index(event.clientY, box.top, box.height), index(event.clientX, box.left, box.width)];
    readout.replaceChildren(h("b", rows[row]), ` → patch ${i},${j}: ${formatNumber(weights[i * side + j])}`);
  });
  const queries = rows.map((name, i) =>
    h(
      "button.word",
      { type: "button", "data-focus-key": `word${i}`, "aria-pressed": i === row, onclick: () => onSelect(i) },
      name,
    ),
  );
  const list = markOverflow(rovingFocus(h("div.word-list", queries), ".word"));
  return h("figure.image-overlay", canvas, h("div", h("p.quiet", "Query"), list), readout);
}
