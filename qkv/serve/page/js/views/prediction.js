// Prediction: classes, tags, masked words, answers, image descriptions, and an attribution of the result to the input.
import { inspect, request } from "../api.js";
import { barList, busyMessage, emptyMessage, errorMessage, formatNumber, formatPercent, h, render } from "../dom.js";
import { drawOverlay } from "../image_overlay.js";
import { INPUT_NAMES, inspectionInput, missingInput, missingMask } from "../input.js";
import { generatesText, mainTask, readsImages, secondInput } from "../models.js";
import { formatValue } from "../predictions.js";
import { state } from "../state.js";

export const prediction = {
  id: "predict",
  title: (model) => mainTask(model).title,
  supports: (model) => model !== null && mainTask(model) !== null && !generatesText(model),
  usesInput: true,
  mount,
};

const MAX_ROWS = 10;
const TASKS = { classify, tag, fill, answer, describe };

function mount(root, { model, limits }) {
  const { ability } = mainTask(model);
  const result = h("section.card", { "aria-live": "polite" });
  const explanation = h("section.card");
  render(root, h("div.two", result, explanation));
  let requests = 0;

  return async function update(changed) {
    if (changed && !INPUT_NAMES.some((name) => changed.has(name))) return;
    const number = ++requests;
    const isCurrent = () => number === requests;
    render(explanation);
    const missing = missingInput(model) ?? missingMask(model);
    if (missing) return void render(result, missing);
    render(result, busyMessage());
    try {
      const content = await TASKS[ability](model, limits);
      if (isCurrent()) render(result, content);
      if (isCurrent() && ["classify", "fill"].includes(ability))
        await (readsImages(model) ? showRollout : showAttribution)(explanation, model, isCurrent);
    } catch (error) {
      if (isCurrent()) render(result, errorMessage(error));
    }
  };
}

// --- tasks

async function classify(model) {
  const texts = [secondInput(model) ? [state.text, state.pair] : state.text];
  const input = readsImages(model) ? { images: [state.image] } : { texts };
  const [result] = (await request("/api/classify", { model: model.name, ...input })).results;
  const truncated = result.cut ? h("p.quiet", "The text was too long and has been truncated.") : null;
  if (model.scores) return [h("h2", "Score"), h("p.big", formatValue(model, result.score)), truncated];
  const rows = Object.entries(result.probabilities)
    .map(([text, probability]) => ({ text, probability }))
    .sort((a, b) => b.probability - a.probability);
  return [h("h2", "Class"), h("p.big", result.label), barList(rows.slice(0, MAX_ROWS)), truncated];
}

async function tag(model) {
  const [words] = (await request("/api/tag", { model: model.name, texts: [state.text] })).results;
  const tagged = words.map((item) =>
    h("span.tagged", h("b", item.word), h("small", item.tag), h("small.quiet", formatPercent(item.probability))),
  );
  return [h("h2", "Tags"), h("p.tags", tagged)];
}

async function fill(model, limits) {
  const body = { model: model.name, texts: [state.text], top_k: Math.min(MAX_ROWS, limits.top) };
  const [result] = (await request("/api/fill", body)).results;
  if (result.problem) return emptyMessage(result.problem);
  const rows = (words) => words.map(({ display, probability }) => ({ text: display, probability }));
  return [h("h2", "Filled text"), h("p.big", result.text), result.gaps.map((words) => barList(rows(words)))];
}

async function describe(model) {
  const body = { model: model.name, images: [state.image], n_best: 3, beam: 4 };
  const [result] = (await request("/api/describe", body)).results;
  const rows = (result.n_best ?? [result]).map(({ text, score }) => h("tr", h("td", text), h("td.num", formatNumber(score))));
  return [
    h("h2", "Description"),
    h("p.big", result.text),
    h("table.plain", h("thead", h("tr", h("th", "Beam hypotheses"), h("th.num", "Score"))), h("tbody", rows)),
  ];
}

async function answer(model) {
  const [text, question] = [state.text, state.pair.trim()];
  const result = await request("/api/answer", { model: model.name, question, context: text });
  return [
    h("h2", "Answer"),
    h("p.big", result.text || "No answer"),
    h("p", text.slice(0, result.start), h("mark", text.slice(result.start, result.end)), text.slice(result.end)),
    h("p.quiet", `Probability ${formatPercent(result.score)}`),
  ];
}

// --- explanation

async function showAttribution(card, model, isCurrent) {
  render(card, busyMessage("Computing the attribution…"));
  try {
    const result = await inspect("attribution", { ...inspectionInput(model), method: "occlusion" });
    if (isCurrent()) render(card, attributionText(result, model));
  } catch {
    if (isCurrent()) render(card); // some heads have no single prediction to explain
  }
}

function attributionText({ scores: [row], tokens, answers }, { scores }) {
  const most = Math.max(...row.map(Math.abs), 1e-9);
  const mark = (token, i) =>
    h(
      `span.attributed${row[i] < 0 ? ".negative" : ""}`,
      { title: formatNumber(row[i]), style: { "--attribution": `${Math.round((45 * Math.abs(row[i])) / most)}%` } },
      token,
    );
  const [title, lower, higher, positive, negative] = scores
    ? ["Attribution of the score", "the score is lower", "higher", "raises it", "lowers it"]
    : [["Attribution of ", h("b", answers[0])], "the prediction is less likely", "more likely", "supports it", "opposes it"];
  const sample = (name, text) => h(name, { style: { "--attribution": "45%" } }, text);
  return [
    h("h2", title),
    h("p.attribution-text", tokens.map(mark)),
    h(
      "p.quiet",
      `Occlusion: each token is masked in turn; without it ${lower} (`,
      sample("span.attributed", positive),
      `) or ${higher} (`,
      sample("span.attributed.negative", negative),
      ").",
    ),
  ];
}

async function showRollout(card, model, isCurrent) {
  const { grid } = await inspect("rollout", inspectionInput(model));
  if (!isCurrent() || !grid) return;
  const canvas = h("canvas.overlay", { role: "img", "aria-label": "Input image, tinted by the weights of attention rollout" });
  render(
    card,
    h("h2", "Attention rollout"),
    drawOverlay(canvas, state.image, grid.flat(), grid.length),
    h(
      "p.quiet",
      "The product of the attention weights of all layers estimates how much each patch contributes to the prediction. Stronger tint: larger weight.",
    ),
  );
}
