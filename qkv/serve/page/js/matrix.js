// A table of numbers as a picture: named rows and columns, the pair and its number told on hover, by a tap and by the arrow keys.
import { edges, h, number, pointed, reveal } from "./dom.js";
import { css, named, paint, share } from "./colour.js";

const FONT = "12px system-ui, sans-serif";
const LONGEST = 14; // characters of a name beside the picture
const STEP = 36; // of the name of a decoder step
const ROOMY = 480; // pixels of a picture that has room for those
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const short = (name, longest = LONGEST) => (name.length > longest ? `${name.slice(0, longest - 1)}…` : name);

/**
 * rows, columns: names (brief: shorter ones of the rows, where they are those of decoder steps); values: numbers (rows x columns), null = masked.
 * told(i, j): what is said of a cell; chosen: a row that is marked; choose(i): a row was clicked.
 * cursor: {at: [i, j], scrolled: [x, y]}: the cell that is told, and where the picture is scrolled to; whoever makes the picture
 * anew hands over the same one.
 */
export function matrix(given) {
  return new Matrix(given).figure;
}

class Matrix {
  constructor({ label, rows, columns, values, told, cursor = { at: null }, ...more }) {
    Object.assign(this, { rows, columns, values, cursor });
    Object.assign(this, { brief: null, colour: share, chosen: -1, choose: null, largestCell: 46, smallestCell: 9 }, more);
    this.told =
      told ?? ((i, j) => [h("b", rows[i]), " → ", h("b", columns[j]), `: ${number(values[i][j])}`]);
    [this.cell, this.left, this.top] = [10, 0, 0];
    this.canvas = h("canvas");
    this.readout = h("p.readout", { "aria-live": "polite" }, "Point at a cell, or move with the arrow keys.");
    this.stage = edges(
      h("div.matrix", { tabindex: "0", role: "img", "aria-label": label, "data-keep": "matrix" }, this.canvas),
    );
    this.figure = h("figure.matrix-figure", this.stage, this.readout);
    if (cursor.at && !(cursor.at[0] < rows.length && cursor.at[1] < columns.length)) cursor.at = null;
    if (cursor.at) this.tell();
    this.hear();
    this.stage.addEventListener("scroll", () => (cursor.scrolled = [this.stage.scrollLeft, this.stage.scrollTop]));
    let scrolled = cursor.scrolled; // where the picture was when it was last made
    new ResizeObserver(() => {
      this.draw();
      if (scrolled) this.stage.scrollTo(...scrolled);
      scrolled = null;
      if (this.chosen >= 0) this.reveal(this.chosen, this.cursor.at?.[1] ?? 0);
    }).observe(this.stage);
  }

  hear() {
    pointed(this.stage, (event) => {
      const cell = this.locate(event);
      if (cell && String(cell) !== String(this.cursor.at)) this.go(...cell);
    });
    this.stage.addEventListener("click", (event) => {
      const cell = this.locate(event);
      if (cell) this.choose?.(cell[0]);
    });
    this.stage.addEventListener("keydown", (event) => {
      const { at } = this.cursor;
      if (event.key === "Enter" && at) this.choose?.(at[0]);
      const step = ARROWS[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      this.go(at ? at[0] + step[0] : 0, at ? at[1] + step[1] : 0);
      this.reveal(...this.cursor.at);
    });
  }

  /** Scroll to a cell, where the table does not fit its box. */
  reveal(i, j) {
    const box = this.canvas.getBoundingClientRect();
    const [left, top] = [box.left + this.left + j * this.cell, box.top + this.top + i * this.cell];
    reveal(this.stage, { left, top, width: this.cell, height: this.cell });
  }

  /** The cell under a pointer, [row, column]; null beside the table. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - this.top) / this.cell);
    const j = Math.floor((event.clientX - box.left - this.left) / this.cell);
    return i >= 0 && j >= 0 && i < this.rows.length && j < this.columns.length ? [i, j] : null;
  }

  go(i, j) {
    const within = (x, count) => Math.max(0, Math.min(count - 1, x));
    this.cursor.at = [within(i, this.rows.length), within(j, this.columns.length)];
    this.tell();
    this.draw();
  }

  tell() {
    this.readout.replaceChildren(...[this.told(...this.cursor.at)].flat());
  }

  // --- the picture

  measure() {
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const size = (name) => context.measureText(name).width;
    const widest = (names) => Math.ceil(Math.max(...names.map(size))) + 10;
    const room = this.stage.clientWidth || 600;
    const steps = this.brief && (room < ROOMY ? this.brief : this.rows);
    this.beside = steps ? steps.map((name) => short(name, STEP)) : this.rows.map((name) => short(name));
    this.above = this.columns.map((name) => short(name));
    const tallest = parseFloat(getComputedStyle(this.stage).maxHeight) || Infinity;
    this.left = widest(this.beside);
    const fitting = (space, count) => Math.max(this.smallestCell, Math.floor((space - 4) / count));
    const set = (cell) => {
      this.cell = cell;
      this.upright = this.above.every((name) => size(name) < cell - 2);
      this.top = this.upright ? 18 : widest(this.above);
    };
    set(Math.min(this.largestCell, fitting(room - this.left, this.columns.length)));
    // all rows in sight; smaller cells may turn the names of the columns, which takes height again
    for (let i = 0; i < 2; i++) set(Math.min(this.cell, fitting(tallest - this.top, this.rows.length)));
  }

  draw() {
    this.measure();
    const { canvas, cell, left, top } = this;
    const [wide, high] = [cell * this.columns.length, cell * this.rows.length];
    const sharp = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: (left + wide + 2) * sharp, height: (top + high + 2) * sharp });
    canvas.style.width = `${left + wide + 2}px`;
    canvas.style.height = `${top + high + 2}px`;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    context.imageSmoothingEnabled = false;
    context.drawImage(paint(document.createElement("canvas"), this.values, this.colour), left, top, wide, high);
    if (cell >= 14) this.grid(context, wide, high);
    this.names(context);
    if (this.chosen >= 0) this.mark(context, this.chosen, 0, wide);
    if (this.cursor.at) this.mark(context, ...this.cursor.at, cell);
  }

  grid(context, wide, high) {
    const { cell, left, top } = this;
    context.strokeStyle = named("line");
    context.lineWidth = 0.5;
    context.beginPath();
    this.columns.concat("").forEach((_, j) => lineTo(context, left + j * cell, top, left + j * cell, top + high));
    this.rows.concat("").forEach((_, i) => lineTo(context, left, top + i * cell, left + wide, top + i * cell));
    context.stroke();
  }

  names(context) {
    const { cell, left, top, upright, cursor } = this;
    const every = Math.max(1, Math.ceil(12 / cell)); // where cells are small, not all names have room
    context.font = FONT;
    context.textBaseline = "middle";
    this.beside.forEach((name, i) => {
      if (i % every && i !== cursor.at?.[0]) return;
      context.fillStyle = named(i === cursor.at?.[0] || i === this.chosen ? "ink" : "quiet");
      context.textAlign = "right";
      context.fillText(name, left - 6, top + (i + 0.5) * cell);
    });
    this.above.forEach((name, j) => {
      if (j % every && j !== cursor.at?.[1]) return;
      context.fillStyle = named(j === cursor.at?.[1] ? "ink" : "quiet");
      context.save();
      context.translate(left + (j + 0.5) * cell, top - (upright ? 9 : 6));
      context.textAlign = upright ? "center" : "left";
      if (!upright) context.rotate(-Math.PI / 2);
      context.fillText(name, 0, 0);
      context.restore();
    });
  }

  mark(context, i, j, width) {
    context.strokeStyle = named("ink");
    context.lineWidth = 1.5;
    context.strokeRect(this.left + j * this.cell, this.top + i * this.cell, width, this.cell);
  }
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
