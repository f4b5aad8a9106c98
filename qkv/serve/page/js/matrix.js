// A table of numbers as a picture: named rows and columns, the pair and its number told on hover and by the arrow keys.
import { h, number, shown } from "./dom.js";
import { css, named, paint, share } from "./colour.js";

const FONT = "12px system-ui, sans-serif";
const LONGEST = 14; // characters of a name beside the picture

const short = (name) => {
  const text = shown(name);
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
};

/**
 * rows, columns: names; values: numbers (rows x columns), null = masked.
 * told(i, j): what is said of a cell; chosen: a row that is marked; choose(i): a row was clicked.
 */
export function matrix({
  rows,
  columns,
  values,
  colour = share,
  told,
  label,
  chosen = -1,
  choose = null,
  largestCell = 46,
  smallestCell = 9,
}) {
  const canvas = h("canvas");
  const readout = h("p.readout", { "aria-live": "polite" }, "Point at a cell, or move with the arrow keys.");
  const stage = h("div.matrix", { tabindex: "0", role: "img", "aria-label": label }, canvas);
  const say =
    told ?? ((i, j) => [h("b", shown(rows[i])), " → ", h("b", shown(columns[j])), `: ${number(values[i][j])}`]);
  let [cell, left, top, at] = [10, 0, 0, null];

  function measure() {
    const context = canvas.getContext("2d");
    context.font = FONT;
    const width = (names) => Math.max(...names.map((name) => context.measureText(short(name)).width));
    const room = stage.clientWidth || 600;
    left = Math.ceil(width(rows)) + 10;
    cell = Math.max(smallestCell, Math.min(largestCell, Math.floor((room - left - 4) / columns.length)));
    const upright = columns.every((name) => context.measureText(short(name)).width < cell - 2);
    top = upright ? 18 : Math.ceil(width(columns)) + 10;
    return upright;
  }

  function draw() {
    const upright = measure();
    const [width, height] = [left + cell * columns.length + 2, top + cell * rows.length + 2];
    const sharp = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: width * sharp, height: height * sharp });
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    context.imageSmoothingEnabled = false;
    const pixels = paint(document.createElement("canvas"), values, colour);
    context.drawImage(pixels, left, top, cell * columns.length, cell * rows.length);
    if (cell >= 14) grid(context);
    names(context, upright);
    for (const [i, j] of [[chosen, -1], at ?? [-1, -1]]) mark(context, i, j);
  }

  function grid(context) {
    context.strokeStyle = named("line");
    context.lineWidth = 0.5;
    context.beginPath();
    for (let j = 0; j <= columns.length; j++)
      lineTo(context, left + j * cell, top, left + j * cell, top + cell * rows.length);
    for (let i = 0; i <= rows.length; i++)
      lineTo(context, left, top + i * cell, left + cell * columns.length, top + i * cell);
    context.stroke();
  }

  function names(context, upright) {
    context.font = FONT;
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(12 / cell));
    rows.forEach((name, i) => {
      if (i % every && i !== at?.[0]) return;
      context.fillStyle = named(i === at?.[0] || i === chosen ? "ink" : "quiet");
      context.textAlign = "right";
      context.fillText(short(name), left - 6, top + (i + 0.5) * cell);
    });
    columns.forEach((name, j) => {
      if (j % every && j !== at?.[1]) return;
      context.fillStyle = named(j === at?.[1] ? "ink" : "quiet");
      context.save();
      context.translate(left + (j + 0.5) * cell, top - (upright ? 9 : 6));
      context.textAlign = upright ? "center" : "left";
      if (!upright) context.rotate(-Math.PI / 2);
      context.fillText(short(name), 0, 0);
      context.restore();
    });
  }

  function mark(context, i, j) {
    if (i < 0) return;
    context.strokeStyle = named("ink");
    context.lineWidth = 1.5;
    if (j < 0) context.strokeRect(left, top + i * cell, cell * columns.length, cell);
    else context.strokeRect(left + j * cell, top + i * cell, cell, cell);
  }

  function go(i, j) {
    at = [Math.max(0, Math.min(rows.length - 1, i)), Math.max(0, Math.min(columns.length - 1, j))];
    readout.replaceChildren(...[say(...at)].flat());
    draw();
  }

  stage.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [i, j] = [
      Math.floor((event.clientY - box.top - top) / cell),
      Math.floor((event.clientX - box.left - left) / cell),
    ];
    if (i >= 0 && j >= 0 && i < rows.length && j < columns.length && (i !== at?.[0] || j !== at?.[1])) go(i, j);
  });
  stage.addEventListener("click", () => at && choose?.(at[0]));
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && at) choose?.(at[0]);
    if (!step) return;
    event.preventDefault();
    go(at ? at[0] + step[0] : 0, at ? at[1] + step[1] : 0);
  });
  new ResizeObserver(draw).observe(stage);
  return h("figure.matrix-figure", stage, readout);
}

function lineTo(context, x, y, x2, y2) {
  context.moveTo(x, y);
  context.lineTo(x2, y2);
}

/** A bar that says which colour is which number. */
export function legend(colour, from, to) {
  const steps = Array.from({ length: 24 }, (_, i) => i / 23);
  const low = colour === share ? 0 : -1;
  return h(
    "span.legend",
    from,
    h(
      "span.legend-bar",
      steps.map((x) => h("i", { style: { background: css(colour(low + x * (1 - low))) } })),
    ),
    to,
  );
}
