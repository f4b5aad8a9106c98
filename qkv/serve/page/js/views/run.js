// A run in training: its curves, as they grow.
import { ask } from "../api.js";
import { clear, empty, failed, h, number, s } from "../dom.js";

export const run = { id: "run", title: () => "Training", fits: (_, page) => Boolean(page.run), reads: false, mount };

const EVERY = 2000; // milliseconds between two questions
const SILENCE = 60_000; // after so many a run may have stopped
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 220, 48, 22];
const NAMES = {
  loss: "Training loss",
  learning_rate: "Learning rate",
  valid_loss: "Loss on held-out data",
  valid_bleu: "BLEU on held-out data",
};
const HIDDEN = ["step", "epoch", "time", "seconds"];

function mount(root, { run: name, onDrop }) {
  const [lines, status, charts] = [[], h("span.live"), h("div.charts")];
  let [timer, last, heard, stopped] = [0, 0, Date.now(), false];
  clear(root, h("section.card", h("div.row.head", h("h2", "Run ", h("b", name)), status), charts));
  onDrop(() => ((stopped = true), clearTimeout(timer)));

  async function again() {
    try {
      const found = await ask(`/api/run?since=${last}&points=1500`);
      if (stopped) return;
      if (found.last < last) lines.length = 0; // it was resumed from an earlier update
      lines.push(...found.lines);
      if (lines.length > 4000) thin();
      const fresh = found.lines.length || !last;
      last = found.last;
      if (found.lines.length) heard = Date.now();
      const still = !found.ended && Date.now() - heard > SILENCE;
      status.className = `live${found.ended || still ? " ended" : ""}`;
      status.textContent = `${found.ended ? "ended" : still ? "no news for a while" : "in training"} · update ${last.toLocaleString("en")}`;
      if (fresh) draw();
    } catch (error) {
      if (!stopped) clear(charts, failed(error));
    }
    if (!stopped) timer = setTimeout(again, EVERY);
  }

  /** Every second line goes; those with a look at the held-out set stay. */
  function thin() {
    const kept = lines.filter((line, i) => i % 2 || Object.keys(line).some((one) => one.startsWith("valid_")));
    lines.splice(0, lines.length, ...kept);
  }

  function draw() {
    const names = [...new Set(lines.flatMap((line) => Object.keys(line)))].filter(
      (one) => !HIDDEN.includes(one) && lines.some((line) => typeof line[one] === "number"),
    );
    if (!names.length) return void clear(charts, empty("Nothing is written yet: the first update is under way."));
    const both = names.includes("valid_loss");
    const shown = names.filter((one) => !(both && one === "valid_loss"));
    clear(
      charts,
      shown.map((one) =>
        chart(
          one === "loss" && both ? "Loss" : (NAMES[one] ?? named(one)),
          one === "loss" && both ? ["loss", "valid_loss"] : [one],
        ),
      ),
    );
  }

  const series = (one) => lines.filter((line) => typeof line[one] === "number").map((line) => [line.step, line[one]]);

  function chart(title, names) {
    const all = names.map(series);
    const points = all.flat();
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const [x0, x1, low, high] = [0, Math.max(...xs, 1), Math.min(...ys), Math.max(...ys)];
    const pad = (high - low || Math.abs(high) || 1) * 0.05;
    const x = (step) => LEFT + ((step - x0) / (x1 - x0)) * (WIDTH - LEFT - 8);
    const y = (value) => HEIGHT - BOTTOM - ((value - low + pad) / (high - low + 2 * pad)) * (HEIGHT - BOTTOM - 8);
    const now = all.map((own) => own.at(-1)?.[1]);
    const label = `${title}: now ${number(now[0], 4)}`;
    const readout = h("p.readout", latest(names, now));
    const picture = s(
      "svg.chart",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      ticks(low, high).map((value) => [
        s("line.grid", { x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
        s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
      ]),
      ticks(x0, x1).map((step) =>
        s("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, step.toLocaleString("en")),
      ),
      all.map((own, i) =>
        [
          s(`polyline.curve${i}`, { points: own.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }),
          own.length < 60 ? own.map(([a, b]) => s(`circle.curve${i}`, { cx: x(a), cy: y(b), r: 3 })) : null,
        ].flat(),
      ),
    );
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const step = x0 + ((((event.clientX - box.left) * WIDTH) / box.width - LEFT) / (WIDTH - LEFT - 8)) * (x1 - x0);
      const near = all.map((own) =>
        own.reduce((best, one) => (Math.abs(one[0] - step) < Math.abs(best[0] - step) ? one : best), own[0]),
      );
      readout.textContent = `update ${near[0][0].toLocaleString("en")}: ${latest(
        names,
        near.map((one) => one[1]),
      )}`;
    });
    const key =
      names.length > 1
        ? h(
            "span.legend",
            names.map((one, i) => [h(`i.swatch.swatch${i}`), NAMES[one] ?? named(one)]),
          )
        : null;
    return h("figure.chart-figure", h("figcaption.row", h("b", title), key), picture, readout);
  }

  again();
  return () => {};
}

const latest = (names, values) => names.map((one, i) => `${NAMES[one] ?? named(one)} ${short(values[i])}`).join(" · ");
const named = (one) => one.replace(/^valid_/, "held-out ").replaceAll("_", " ");
const short = (value) =>
  value === 0
    ? "0"
    : Math.abs(value) >= 100
      ? value.toFixed(0)
      : Math.abs(value) >= 0.01
        ? String(Number(value.toPrecision(3)))
        : value.toExponential(1);

/** About four round numbers between two. */
function ticks(low, high) {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(Number(value.toPrecision(6)));
  return found;
}
