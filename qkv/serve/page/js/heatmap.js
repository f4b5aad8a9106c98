// Heatmap: a table of numbers as colours with row and column names; hover, tap or arrow keys print the value of a cell.
import { css, namedColour, paintPixels, sequential } from "./colour.js";
import { formatNumber, h, markOverflow, onPointer, scrollToPart } from "./dom.js";

const FONT = "12px system-ui, sans-serif";
const LONGEST_NAME = 14; // characters
const LONGEST_STEP = 36; // characters of the name of a decoder step
const WIDE = 480; // pixels from which on there is room for those
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const shorten = (name, longest = LONGEST_NAME) => (name.length > longest ? `${name.slice(0, longest - 1)}…` : name);

/**
 * rows, columns: names (shortRows: shorter row names, if rows are decoder steps); values: (rows x columns), null = masked.
 * describe(i, j): readout of a cell; selected: a row that is marked; onSelect(i): a row was clicked.
 * cursor: {at: [i, j], scrolled: [x, y]}: the current cell and the scroll position, kept by the caller when it redraws.
 */
export function heatmap(options) {
  return new Heatmap(options).figure;
}

class Heatmap {
  constructor({ label, rows, columns, values, describe, cursor = { at: null }, ...options }) {
    Object.assign(this, { rows, columns, values, cursor });
    const defaults = { shortRows: null, colour: sequential, selected: -1, onSelect: null, largestCell: 46, smallestCell: 9 };
    Object.assign(this, defaults, options);
    this.describe =
      describe ?? ((i, j) => [h("b", rows[i]), " → ", h("b", columns[j]), `: ${formatNumber(values[i][j])}`]);
    [this.cell, this.left, this.top] = [10, 0, 0];
    this.canvas = h("canvas");
    this.readout = h("p.readout", { "aria-live": "polite" }, "Point at a cell or use the arrow keys to read its value.");
    this.stage = markOverflow(
      h("div.matrix", { tabindex: "0", role: "img", "aria-label": label, "data-focus-key": "matrix" }, this.canvas),
    );
    this.figure = h("figure.matrix-figure", this.stage, this.readout);
    if (cursor.at && !(cursor.at[0] < rows.length && cursor.at[1] < columns.length)) cursor.at = null;
    if (cursor.at) this.updateReadout();
    this.listen();
    this.stage.addEventListener("scroll", () => (cursor.scrolled = [this.stage.scrollLeft, this.stage.scrollTop]));
    let scrolled = cursor.scrolled; // scroll position before the figure was redrawn
    new ResizeObserver(() => {
      this.draw();
      if (scrolled) this.stage.scrollTo(...scrolled);
      scrolled = null;
      if (this.selected >= 0) this.scrollTo(this.selected, this.cursor.at?.[1] ?? 0);
    }).observe(this.stage);
  }

  listen() {
    onPointer(this.stage, (event) => {
      const cell = this.locate(event);
      if (cell && String(cell) !== String(this.cursor.at)) this.moveCursor(...cell);
    });
    this.stage.addEventListener("click", (event) => {
      const cell = this.locate(event);
      if (cell) this.onSelect?.(cell[0]);
    });
    this.stage.addEventListener("keydown", (event) => {
      const { at } = this.cursor;
      if (event.key === "Enter" && at) this.onSelect?.(at[0]);
      const step = ARROWS[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      this.moveCursor(at ? at[0] + step[0] : 0, at ? at[1] + step[1] : 0);
      this.scrollTo(...this.cursor.at);
    });
  }

  /** Scroll to a cell if the table does not fit its box. */
  scrollTo(i, j) {
    const box = this.canvas.getBoundingClientRect();
    const [left, top] = [box.left + this.left + j * this.cell, box.top + this.top + i * this.cell];
    scrollToPart(this.stage, { left, top, width: this.cell, height: this.cell });
  }

  /** Cell under a pointer, [row, column]; null outside of the table. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - this.top) / this.cell);
    const j = Math.floor((event.clientX - box.left - this.left) / this.cell);
    return i >= 0 && j >= 0 && i < this.rows.length && j < this.columns.length ? [i, j] : null;
  }

  moveCursor(i, j) {
    const clamp = (x, count) => Math.max(0, Math.min(count - 1, x));
    this.cursor.at = [clamp(i, this.rows.length), clamp(j, this.columns.length)];
    this.updateReadout();
    this.draw();
  }

  updateReadout() {
    this.readout.replaceChildren(...[this.describe(...this.cursor.at)].flat());
  }

  // --- drawing

  measure() {
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const widthOf = (name) => context.measureText(name).width;
    const widest = (names) => Math.ceil(Math.max(...names.map(widthOf))) + 10;
    const room = this.stage.clientWidth || 600;
    const steps = this.shortRows && (room < WIDE ? this.shortRows : this.rows);
    this.rowNames = steps ? steps.map((name) => shorten(name, LONGEST_STEP)) : this.rows.map((name) => shorten(name));
    this.columnNames = this.columns.map((name) => shorten(name));
    const tallest = parseFloat(getComputedStyle(this.stage).maxHeight) || Infinity;
    this.left = widest(this.rowNames);
    const fit = (space, count) => Math.max(this.smallestCell, Math.floor((space - 4) / count));
    const setCell = (cell) => {
      this.cell = cell;
      this.horizontal = this.columnNames.every((name) => widthOf(name) < cell - 2);
      this.top = this.horizontal ? 18 : widest(this.columnNames);
    };
    setCell(Math.min(this.largestCell, fit(room - this.left, this.columns.length)));
    // make all rows visible; smaller cells may rotate the column names, which then need more height
    for (let i = 0; i < 2; i++) setCell(Math.min(this.cell, fit(tallest - this.top, this.rows.length)));
  }

  draw() {
    this.measure();
    const { canvas, cell, left, top } = this;
    const [width, height] = [cell * this.columns.length, cell * this.rows.length];
    const ratio = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: (left + width + 2) * ratio, height: (top + height + 2) * ratio });
    canvas.style.width = `${left + width + 2}px`;
    canvas.style.height = `${top + height + 2}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(paintPixels(document.createElement("canvas"), this.values, this.colour), left, top, width, height);
    if (cell >= 14) this.drawGrid(context, width, height);
    this.drawNames(context);
    if (this.selected >= 0) this.drawFrame(context, this.selected, 0, width);
    if (this.cursor.at) this.drawFrame(context, ...this.cursor.at, cell);
  }

  drawGrid(context, width, height) {
    const { cell, left, top } = this;
    context.strokeStyle = namedColour("line");
    context.lineWidth = 0.5;
    context.beginPath();
    this.columns.concat("").forEach((_, j) => drawLine(context, left + j * cell, top, left + j * cell, top + height));
    this.rows.concat("").forEach((_, i) => drawLine(context, left, top + i * cell, left + width, top + i * cell));
    context.stroke();
  }

  drawNames(context) {
    const { cell, left, top, horizontal, cursor } = this;
    const every = Math.max(1, Math.ceil(12 / cell)); // small cells have no room for all names
    context.font = FONT;
    context.textBaseline = "middle";
    this.rowNames.forEach((name, i) => {
      if (i % every && i !== cursor.at?.[0]) return;
      context.fillStyle = namedColour(i === cursor.at?.[0] || i === this.selected ? "ink" : "quiet");
      context.textAlign = "right";
      context.fillText(name, left - 6, top + (i + 0.5) * cell);
    });
    this.columnNames.forEach((name, j) => {
      if (j % every && j !== cursor.at?.[1]) return;
      context.fillStyle = namedColour(j === cursor.at?.[1] ? "ink" : "quiet");
      context.save();
      context.translate(left + (j + 0.5) * cell, top - (horizontal ? 9 : 6));
      context.textAlign = horizontal ? "center" : "left";
      if (!horizontal) context.rotate(-Math.PI / 2);
      context.fillText(name, 0, 0);
      context.restore();
    });
  }

  drawFrame(context, i, j, width) {
    context.strokeStyle = namedColour("ink");
    context.lineWidth = 1.5;
    context.strokeRect(this.left + j * this.cell, this.top + i * this.cell, width, this.cell);
  }
}

function drawLine(context, x, y, x2, y2) {
  context.moveTo(x, y);
  context.lineTo(x2, y2);
}

/** Legend of a colour scale between two labels. */
export function colourLegend(colour, from, to) {
  const steps = Array.from({ length: 24 }, (_, i) => i / 23);
  const low = colour === sequential ? 0 : -1;
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
