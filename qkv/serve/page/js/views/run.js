// A run in training: its curves, as they grow.
import { ask } from "../api.js";
import { chart } from "../chart.js";
import { clear, empty, failed, h } from "../dom.js";

export const run = {
  id: "run",
  title: () => "Training",
  fits: (model, page) => Boolean(page.run) && (model === null || model.name === page.run_model),
  reads: false,
  mount: (root, page) => {
    new Run(root, page).again();
    return () => {};
  },
};

const EVERY = 2000; // milliseconds between two questions
const SILENCE = 60_000; // after so many a run may have stopped
const MOST = 4000; // lines that are kept
const NAMES = {
  loss: "Training loss",
  learning_rate: "Learning rate",
  valid_loss: "Validation loss",
  valid_bleu: "Validation BLEU",
};
const HIDDEN = ["step", "epoch", "time", "seconds"];
const named = (one) => NAMES[one] ?? one.replace(/^valid_/, "validation ").replaceAll("_", " ");

class Run {
  constructor(root, { run: name, onDrop }) {
    [this.lines, this.status, this.charts] = [[], h("span.live"), h("div.charts")];
    [this.timer, this.last, this.cuts, this.heard, this.stopped] = [0, 0, null, Date.now(), false];
    clear(root, h("section.card", h("div.row.head", h("h2", "Run ", h("b", name)), this.status), this.charts));
    onDrop(() => ((this.stopped = true), clearTimeout(this.timer)));
  }

  async again() {
    try {
      let found = await this.news();
      if (this.cuts !== null && (found.last < this.last || found.cuts !== this.cuts)) {
        this.lines.length = this.last = 0; // it was resumed from an earlier update: what came after is done anew
        found = await this.news();
      }
      if (this.stopped) return;
      this.take(found);
    } catch (error) {
      if (!this.stopped) clear(this.charts, failed(error));
    }
    if (!this.stopped) this.timer = setTimeout(() => this.again(), EVERY);
  }

  news() {
    return ask(`/api/run?since=${this.last}&points=1500`);
  }

  take({ lines, last, cuts, ended }) {
    const fresh = lines.length || !this.last;
    this.lines.push(...lines);
    if (this.lines.length > MOST) this.thin();
    [this.last, this.cuts] = [last, cuts];
    if (lines.length) this.heard = Date.now();
    const still = !ended && Date.now() - this.heard > SILENCE;
    this.status.className = `live${ended || still ? " ended" : ""}`;
    this.status.textContent = `${ended ? "ended" : still ? "no update for a while" : "in training"} · update ${last.toLocaleString("en")}`;
    if (fresh) this.draw();
  }

  /** Every second line goes; those with a look at the held-out set stay. */
  thin() {
    this.lines = this.lines.filter((line, i) => i % 2 || Object.keys(line).some((one) => one.startsWith("valid_")));
  }

  /** A chart for each number; both losses are in one. */
  draw() {
    const all = new Set(this.lines.flatMap((line) => Object.keys(line)));
    const names = [...all].filter((one) => !HIDDEN.includes(one) && this.series(one).length);
    if (!names.length) return void clear(this.charts, empty("No updates logged yet."));
    const both = names.includes("loss") && names.includes("valid_loss");
    const curves = (some) => some.map((one) => ({ name: named(one), points: this.series(one) }));
    clear(
      this.charts,
      names
        .filter((one) => !(both && one === "valid_loss"))
        .map((one) =>
          both && one === "loss" ? chart("Loss", curves(["loss", "valid_loss"])) : chart(named(one), curves([one])),
        ),
    );
  }

  series(one) {
    return this.lines.filter((line) => typeof line[one] === "number").map((line) => [line.step, line[one]]);
  }
}
