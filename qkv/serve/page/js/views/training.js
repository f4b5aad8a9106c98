// Training curves of a run, updated while it trains.
import { request } from "../api.js";
import { lineChart } from "../chart.js";
import { emptyMessage, errorMessage, h, render } from "../dom.js";

export const training = {
  id: "training",
  title: () => "Training",
  supports: (model, page) => Boolean(page.run) && (model === null || model.name === page.run_model),
  usesInput: false,
  mount: (root, page) => {
    new TrainingView(root, page).poll();
    return () => {};
  },
};

const INTERVAL = 2000; // milliseconds between two requests
const TIMEOUT = 60_000; // milliseconds without a new step after which the run may have stopped
const MAX_RECORDS = 4000;
const TITLES = {
  loss: "Training loss",
  learning_rate: "Learning rate",
  valid_loss: "Validation loss",
  valid_bleu: "Validation BLEU",
};
const HIDDEN = ["step", "epoch", "time", "seconds"];
const titleOf = (name) => TITLES[name] ?? name.replace(/^valid_/, "validation ").replaceAll("_", " ");

class TrainingView {
  constructor(root, { run, onUnmount }) {
    [this.records, this.status, this.charts] = [[], h("span.live"), h("div.charts")];
    [this.timer, this.last, this.cuts, this.received, this.stopped] = [0, 0, null, Date.now(), false];
    render(root, h("section.card", h("div.row.head", h("h2", "Run ", h("b", run)), this.status), this.charts));
    onUnmount(() => ((this.stopped = true), clearTimeout(this.timer)));
  }

  async poll() {
    try {
      let log = await this.fetchLog();
      if (this.cuts !== null && (log.last < this.last || log.cuts !== this.cuts)) {
        this.records.length = this.last = 0; // resumed from an earlier step: later records are replaced
        log = await this.fetchLog();
      }
      if (this.stopped) return;
      this.add(log);
    } catch (error) {
      if (!this.stopped) render(this.charts, errorMessage(error));
    }
    if (!this.stopped) this.timer = setTimeout(() => this.poll(), INTERVAL);
  }

  fetchLog() {
    return request(`/api/run?since=${this.last}&points=1500`);
  }

  add({ lines, last, cuts, ended }) {
    const redraw = lines.length || !this.last;
    this.records.push(...lines);
    if (this.records.length > MAX_RECORDS) this.thin();
    [this.last, this.cuts] = [last, cuts];
    if (lines.length) this.received = Date.now();
    const silent = !ended && Date.now() - this.received > TIMEOUT;
    const status = ended ? "finished" : silent ? `no new update for ${TIMEOUT / 1000} s` : "training";
    this.status.className = `live${ended || silent ? " ended" : ""}`;
    this.status.textContent = `${status} · update ${last.toLocaleString("en")}`;
    if (redraw) this.draw();
  }

  /** Drop every second record, except those with validation metrics. */
  thin() {
    const validates = (record) => Object.keys(record).some((name) => name.startsWith("valid_"));
    this.records = this.records.filter((record, i) => i % 2 || validates(record));
  }

  /** Draw a chart for each metric; both losses share one. */
  draw() {
    const all = new Set(this.records.flatMap((record) => Object.keys(record)));
    const names = [...all].filter((name) => !HIDDEN.includes(name) && this.pointsOf(name).length);
    if (!names.length) return void render(this.charts, emptyMessage("No updates logged yet."));
    const both = names.includes("loss") && names.includes("valid_loss");
    const curves = (some) => some.map((name) => ({ name: titleOf(name), points: this.pointsOf(name) }));
    const chart = (name) =>
      both && name === "loss" ? lineChart("Loss", curves(["loss", "valid_loss"])) : lineChart(titleOf(name), curves([name]));
    render(this.charts, names.filter((name) => !(both && name === "valid_loss")).map(chart));
  }

  pointsOf(name) {
    return this.records.filter((record) => typeof record[name] === "number").map((record) => [record.step, record[name]]);
  }
}
