// A picture for the model: drawn by hand, taken from a file, or one of the examples.
import { h } from "./dom.js";
import { set, state } from "./state.js";

const SIDE = 224; // of the drawing area
const SENT = 256; // the longest side of what is sent
const COLOURS = ["#dc2828", "#28aa46", "#325aeb", "#f0e13c", "#a03cc8", "#fa8c1e", "#46d7e1", "#f0f0f0"];

export function pad(model) {
  const board = new Board(model.channels === 1);
  const example = ([name, draw]) => h("button.chip", { type: "button", onclick: () => board.take(draw) }, name);
  const clearing = h("button", { type: "button", onclick: () => board.take(() => {}) }, "Clear");
  const file = h("input", {
    type: "file",
    accept: "image/*",
    "aria-label": "A picture from a file",
    onchange: () => file.files[0] && board.open(file.files[0]),
  });
  const seen = `${model.image_size} × ${model.image_size} pixels`;
  return h(
    "div.pad-card",
    board.canvas,
    h(
      "div.pad-side",
      h("p.quiet", `Draw with the mouse or a finger; the model sees ${seen}.`),
      board.grey ? null : paints(board),
      h("div.row", clearing, h("label.file", "From a file", file)),
      h("div.chips", h("span.quiet", "Try"), board.examples.map(example)),
    ),
  );
}

function paints(board) {
  const paint = (one) =>
    h("button.paint", {
      type: "button",
      "aria-label": `colour ${one}`,
      style: { background: one },
      onclick: () => (board.colour = one),
    });
  return h("div.paints", { role: "group", "aria-label": "Colour" }, COLOURS.map(paint));
}

/** What is drawn on. */
class Board {
  constructor(grey) {
    [this.grey, this.examples] = [grey, grey ? DIGITS : SHAPES];
    [this.colour, this.drawing] = [grey ? "#fff" : COLOURS[0], false];
    this.canvas = h("canvas.pad", {
      width: SIDE,
      height: SIDE,
      tabindex: "0",
      role: "img",
      "aria-label": "A picture to draw on; the examples and a file can be chosen by keyboard",
    });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.hear();
    this.empty();
    if (state.image) return void restore(this.context, state.image);
    this.examples[0][1](this.context);
    state.image = small(this.canvas);
  }

  hear() {
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drawing = true;
      this.canvas.setPointerCapture(event.pointerId);
      this.context.beginPath();
      this.context.moveTo(...this.place(event));
      this.stroke(event);
    });
    this.canvas.addEventListener("pointermove", (event) => this.stroke(event));
    this.canvas.addEventListener("pointerup", () => this.drawing && ((this.drawing = false), this.done()));
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * SIDE) / box.width, ((event.clientY - box.top) * SIDE) / box.height];
  }

  stroke(event) {
    if (!this.drawing) return;
    const pen = { lineWidth: SIDE / 13, lineCap: "round", lineJoin: "round", strokeStyle: this.colour };
    Object.assign(this.context, pen).lineTo(...this.place(event));
    this.context.stroke();
  }

  empty() {
    this.context.fillStyle = this.grey ? "#000" : "#121218";
    this.context.fillRect(0, 0, SIDE, SIDE);
  }

  /** A picture in place of what was there. */
  take(draw) {
    this.empty();
    draw(this.context);
    this.done();
  }

  async open(file) {
    const image = await createImageBitmap(file);
    const size = SIDE / Math.max(image.width, image.height);
    const [wide, high] = [image.width * size, image.height * size];
    this.take((context) => context.drawImage(image, (SIDE - wide) / 2, (SIDE - high) / 2, wide, high));
  }

  done() {
    set({ image: small(this.canvas), token: -1 });
  }
}

function restore(context, image) {
  const kept = new Image();
  kept.onload = () => context.drawImage(kept, 0, 0, SIDE, SIDE);
  kept.src = image;
}

function small(canvas) {
  const copy = h("canvas", { width: Math.min(SENT, SIDE), height: Math.min(SENT, SIDE) });
  copy.getContext("2d").drawImage(canvas, 0, 0, copy.width, copy.height);
  return copy.toDataURL("image/png");
}

// --- examples

function curve(points) {
  return (context) => {
    Object.assign(context, { lineWidth: SIDE / 12, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x * SIDE, y * SIDE) : context.moveTo(x * SIDE, y * SIDE)));
    context.stroke();
  };
}

const DIGITS = [
  [
    "a three",
    curve([
      [0.32, 0.27],
      [0.45, 0.2],
      [0.6, 0.24],
      [0.63, 0.35],
      [0.55, 0.45],
      [0.45, 0.48],
      [0.58, 0.51],
      [0.67, 0.62],
      [0.62, 0.75],
      [0.48, 0.8],
      [0.33, 0.74],
    ]),
  ],
  [
    "a seven",
    curve([
      [0.3, 0.25],
      [0.68, 0.25],
      [0.58, 0.45],
      [0.47, 0.8],
    ]),
  ],
  [
    "a two",
    curve([
      [0.33, 0.33],
      [0.4, 0.23],
      [0.56, 0.22],
      [0.64, 0.33],
      [0.58, 0.47],
      [0.33, 0.77],
      [0.69, 0.76],
    ]),
  ],
  [
    "a four",
    curve([
      [0.37, 0.22],
      [0.31, 0.52],
      [0.66, 0.52],
      [0.61, 0.3],
      [0.62, 0.8],
    ]),
  ],
];

const disc = (x, y, radius, colour) => (context) => {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x * SIDE, y * SIDE, radius * SIDE, 0, 2 * Math.PI);
  context.fill();
};
const box = (x, y, radius, colour) => (context) => {
  context.fillStyle = colour;
  context.fillRect((x - radius) * SIDE, (y - radius) * SIDE, 2 * radius * SIDE, 2 * radius * SIDE);
};
const all =
  (...parts) =>
  (context) =>
    parts.forEach((part) => part(context));

const SHAPES = [
  ["a circle and a square", all(disc(0.28, 0.5, 0.185, COLOURS[0]), box(0.75, 0.5, 0.1, COLOURS[2]))],
  ["a green square", box(0.2, 0.2, 0.17, COLOURS[1])],
  ["a small yellow circle", disc(0.8, 0.8, 0.11, COLOURS[3])],
];
