// Attention over the patches of a picture, laid on the picture.
import { edges, h, number, pointed, roving } from "./dom.js";

const SIDE = 320;

/** Where the patches are among the columns: {side, at: [column of each patch]}; null where they are no patches. */
export function patches(columns) {
  const at = columns.flatMap((name, j) => (/^\d+,\d+$/.test(name) ? [j] : []));
  const side = Math.round(Math.sqrt(at.length));
  return side > 1 && side * side === at.length ? { side, at } : null;
}

const VEIL = [12, 12, 20, 0.6]; // over a patch without weight
const TINT = [255, 170, 40, 0.6]; // over the one with the largest: an orange that is seen on black as on white

/** A picture on a canvas, dark where its patches have little weight, tinted and framed where they have much. */
export function lit(canvas, image, weights, side) {
  const [picture, context, cell] = [new Image(), canvas.getContext("2d"), SIDE / side];
  const most = Math.max(...weights, 1e-9);
  Object.assign(canvas, { width: SIDE, height: SIDE });
  picture.onload = () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, 0, 0, SIDE, SIDE);
    const faded = ([r, g, b, alpha], share) => `rgb(${r} ${g} ${b} / ${alpha * share})`;
    weights.forEach((weight, n) => {
      const [x, y, share] = [(n % side) * cell, Math.floor(n / side) * cell, weight / most];
      for (const colour of [faded(VEIL, 1 - share), faded(TINT, share)]) {
        context.fillStyle = colour;
        context.fillRect(x, y, cell, cell);
      }
      context.strokeStyle = faded(TINT, Math.max(0.2, share));
      context.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    });
  };
  picture.src = image;
  return canvas;
}

/** The query is chosen from its names; its weights tint the picture. */
export function onPicture({ rows, values, chosen, choose, label }, { side, at }, image) {
  const row = chosen < 0 ? 0 : chosen;
  const canvas = h("canvas.overlay", { role: "img", "aria-label": label });
  const readout = h("p.readout", { "aria-live": "polite" }, "The deeper the tint, the larger the weight. Point at a patch to read it.");
  lit(
    canvas,
    image,
    at.map((j) => values[row][j]),
    side,
  );
  pointed(canvas, (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (x, from, size) => Math.max(0, Math.min(side - 1, Math.floor(((x - from) / size) * side)));
    const [i, j] = [place(event.clientY, box.top, box.height), place(event.clientX, box.left, box.width)];
    readout.replaceChildren(h("b", rows[row]), ` → patch ${i},${j}: ${number(values[row][at[i * side + j]])}`);
  });
  const words = rows.map((name, i) =>
    h(
      "button.word",
      { type: "button", "data-keep": `word${i}`, "aria-pressed": i === row, onclick: () => choose(i) },
      name,
    ),
  );
  return h("figure.on-picture", canvas, h("div", h("p.quiet", "Query"), edges(roving(h("div.word-list", words), ".word"))), readout);
}
