// Image input: drawn by hand, loaded from a file, or one of the examples.
import { h } from "./dom.js";
import { setState, state } from "./state.js";

const SIDE = 224; // pixels of the drawing area
const MAX_SENT = 256; // pixels of the image that is sent
const COLOURS = {
  red: "#dc2828",
  green: "#28aa46",
  blue: "#325aeb",
  yellow: "#f0e13c",
  purple: "#a03cc8",
  orange: "#fa8c1e",
  cyan: "#46d7e1",
  white: "#f0f0f0",
};

export function drawingPad(model) {
  const board = new Board(model.channels === 1);
  const example = ([name, draw]) => h("button.chip", { type: "button", onclick: () => board.replace(draw) }, name);
  const clearButton = h("button", { type: "button", onclick: () => board.replace(() => {}) }, "Clear");
  const file = h("input", {
    type: "file",
    accept: "image/*",
    "aria-label": "Image file",
    onchange: () => file.files[0] && board.load(file.files[0]),
  });
  return h(
    "div.pad-card",
    board.canvas,
    h(
      "div.pad-side",
      h("p.quiet", `Draw with the mouse or a finger. The image is resized to ${model.image_size} × ${model.image_size} pixels.`),
      board.grey ? null : colourButtons(board),
      h("div.row", clearButton, h("label.file", "Load an image", file)),
      h("div.chips", h("span.quiet", "Examples"), board.examples.map(example)),
    ),
  );
}

function colourButtons(board) {
  const button = ([name, colour]) =>
    h("button.paint", {
      type: "button",
      "aria-label": name,
      title: name,
      style: { background: colour },
      onclick: () => (board.colour = colour),
    });
  return h("div.paints", { role: "group", "aria-label": "Colour" }, Object.entries(COLOURS).map(button));
}

/** Canvas that is drawn on. */
class Board {
  constructor(grey) {
    [this.grey, this.examples] = [grey, grey ? DIGITS : SHAPES];
    [this.colour, this.drawing] = [grey ? "#fff" : COLOURS.red, false];
    this.canvas = h("canvas.pad", {
      width: SIDE,
      height: SIDE,
      tabindex: "0",
      role: "img",
      "aria-label": "Drawing area. With the keyboard, select an example or load an image.",
    });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.listen();
    this.erase();
    if (state.image) return void restore(this.context, state.image);
    this.examples[0][1](this.context);
    state.image = encode(this.canvas);
  }

  listen() {
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drawing = true;
      this.canvas.setPointerCapture(event.pointerId);
      this.context.beginPath();
      this.context.moveTo(...this.locate(event));
      this.stroke(event);
    });
    this.canvas.addEventListener("pointermove", (event) => this.stroke(event));
    this.canvas.addEventListener("pointerup", () => this.drawing && ((this.drawing = false), this.publish()));
  }

  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * SIDE) / box.width, ((event.clientY - box.top) * SIDE) / box.height];
  }

  stroke(event) {
    if (!this.drawing) return;
    const pen = { lineWidth: SIDE / 13, lineCap: "round", lineJoin: "round", strokeStyle: this.colour };
    Object.assign(this.context, pen).lineTo(...this.locate(event));
    this.context.stroke();
  }

  erase() {
    this.context.fillStyle = this.grey ? "#000" : "#121218";
    this.context.fillRect(0, 0, SIDE, SIDE);
  }

  /** Replace the image. */
  replace(draw) {
    this.erase();
    draw(this.context);
    this.publish();
  }

  async load(file) {
    const image = await createImageBitmap(file);
    const scale = SIDE / Math.max(image.width, image.height);
    const [width, height] = [image.width * scale, image.height * scale];
    this.replace((context) => context.drawImage(image, (SIDE - width) / 2, (SIDE - height) / 2, width, height));
  }

  publish() {
    setState({ image: encode(this.canvas), token: -1 });
  }
}

function restore(context, image) {
  const source = new Image();
  source.onload = () => context.drawImage(source, 0, 0, SIDE, SIDE);
  source.src = image;
}

/** Data URL of the image, at most MAX_SENT pixels wide. */
function encode(canvas) {
  const copy = h("canvas", { width: Math.min(MAX_SENT, SIDE), height: Math.min(MAX_SENT, SIDE) });
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
    "digit 3",
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
    "digit 7",
    curve([
      [0.3, 0.25],
      [0.68, 0.25],
      [0.58, 0.45],
      [0.47, 0.8],
    ]),
  ],
  [
    "digit 2",
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
    "digit 4",
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
const combine =
  (...parts) =>
  (context) =>
    parts.forEach((part) => part(context));

const SHAPES = [
  ["a circle and a square", combine(disc(0.28, 0.5, 0.185, COLOURS.red), box(0.75, 0.5, 0.1, COLOURS.blue))],
  ["a green square", box(0.2, 0.2, 0.17, COLOURS.green)],
  ["a small yellow circle", disc(0.8, 0.8, 0.11, COLOURS.yellow)],
];
