// Attention over the patches of a picture, laid on the picture.
import { h, number, pointed, shown } from "./dom.js";

const SIDE = 320;

/** Where the patches are among the columns: {side, at: [column of each patch]}; null where they are no patches. */
export function patches(columns) {
  const at = columns.flatMap((name, j) => (/^\d+,\d+$/.test(name) ? [j] : []));
  const side = Math.round(Math.sqrt(at.length));
  return side > 1 && side * side === at.length ? { side, at } : null;
}

/** A picture on a canvas, darkened where its patches have little weight. */
export function lit(canvas, image, weights, side) {
  const [picture, context, cell] = [new Image(), canvas.getContext("2d"), SIDE / side];
  const most = Math.max(...weights, 1e-9);
  Object.assign(canvas, { width: SIDE, height: SIDE });
  picture.onload = () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, 0, 0, SIDE, SIDE);
    context.strokeStyle = "rgb(255 255 255 / .12)";
    weights.forEach((weight, n) => {
      const box = [(n % side) * cell, Math.floor(n / side) * cell, cell, cell];
      context.fillStyle = `rgb(12 12 20 / ${0.78 * (1 - weight / most)})`;
      context.fillRect(...box);
      context.strokeRect(...box);
    });
  };
  picture.src = image;
  return canvas;
}

/** The row that looks is chosen from its names; its weights shade the picture. */
export function onPicture({ rows, values, chosen, choose, label }, { side, at }, image) {
  const row = chosen < 0 ? 0 : chosen;
  const canvas = h("canvas.overlay", { role: "img", "aria-label": label });
  const readout = h("p.readout", { "aria-live": "polite" }, "Point at the picture.");
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
    readout.replaceChildren(h("b", shown(rows[row])), ` → patch ${i},${j}: ${number(values[row][at[i * side + j]])}`);
  });
  const words = rows.map((name, i) =>
    h(
      "button.word",
      { type: "button", "data-keep": `word${i}`, "aria-pressed": i === row, onclick: () => choose(i) },
      shown(name),
    ),
  );
  return h("figure.on-picture", canvas, h("div", h("p.quiet", "Who looks"), h("div.word-list", words)), readout);
}
