// A model that reads: classes, tags, words for gaps, answers, descriptions of pictures; and what made it say so.
import { ask, look } from "../api.js";
import { bars, busy, clear, empty, failed, h, number, percent } from "../dom.js";
import { SUBJECT, missing, missingGap, subject } from "../input.js";
import { main, second, sees, writes } from "../models.js";
import { lit } from "../picture.js";
import { told } from "../scored.js";
import { state } from "../state.js";

export const reading = {
  id: "read",
  title: (model) => main(model).title,
  fits: (model) => model !== null && main(model) !== null && !writes(model),
  reads: true,
  mount,
};

const SHOWN = 10;
const READERS = { classify, tag, fill, answer, describe };

function mount(root, { model, limits }) {
  const { ability } = main(model);
  const said = h("section.card", { "aria-live": "polite" });
  const why = h("section.card");
  clear(root, h("div.two", said, why));
  let asked = 0;

  return async function update(changed) {
    if (changed && !SUBJECT.some((name) => changed.has(name))) return;
    const mine = ++asked;
    const current = () => mine === asked;
    clear(why);
    const lacking = missing(model) ?? missingGap(model);
    if (lacking) return void clear(said, lacking);
    clear(said, busy());
    try {
      const found = await READERS[ability](model, limits);
      if (current()) clear(said, found);
      if (current() && ["classify", "fill"].includes(ability))
        await (sees(model) ? where(why, model, current) : explain(why, model, current));
    } catch (error) {
      if (current()) clear(said, failed(error));
    }
  };
}

// --- one for each ability

async function classify(model) {
  const texts = [second(model) ? [state.text, state.pair] : state.text];
  const given = sees(model) ? { images: [state.image] } : { texts };
  const [one] = (await ask("/api/classify", { model: model.name, ...given })).results;
  const cut = one.cut ? h("p.quiet", "The text was too long: only its beginning was read.") : null;
  if (model.scores) return [h("h2", "Score"), h("p.big", told(model, one.score)), cut];
  const rows = Object.entries(one.probabilities)
    .map(([text, probability]) => ({ text, probability }))
    .sort((a, b) => b.probability - a.probability);
  return [h("h2", "Class"), h("p.big", one.label), bars(rows.slice(0, SHOWN)), cut];
}

async function tag(model) {
  const [words] = (await ask("/api/tag", { model: model.name, texts: [state.text] })).results;
  const tagged = words.map((one) => h("span.tagged", h("b", one.word), h("small", one.tag), h("small.quiet", percent(one.probability))));
  return [h("h2", "Tags"), h("p.tags", tagged)];
}

async function fill(model, limits) {
  const body = { model: model.name, texts: [state.text], top_k: Math.min(SHOWN, limits.top) };
  const [one] = (await ask("/api/fill", body)).results;
  if (one.problem) return empty(one.problem);
  const gaps = one.gaps.map((words) => bars(words.map(({ display, probability }) => ({ text: display, probability }))));
  return [h("h2", "Filled text"), h("p.big", one.text), gaps];
}

async function describe(model) {
  const body = { model: model.name, images: [state.image], n_best: 3, beam: 4 };
  const [one] = (await ask("/api/describe", body)).results;
  const rows = (one.n_best ?? [one]).map((each) => h("tr", h("td", each.text), h("td.num", number(each.score))));
  return [
    h("h2", "Description"),
    h("p.big", one.text),
    h("table.plain", h("thead", h("tr", h("th", "Beam search"), h("th.num", "Score"))), h("tbody", rows)),
  ];
}

async function answer(model) {
  const [text, question] = [state.text, state.pair.trim()];
  const one = await ask("/api/answer", { model: model.name, question, context: text });
  return [
    h("h2", "Answer"),
    h("p.big", one.text || "No answer"),
    h("p", text.slice(0, one.start), h("mark", text.slice(one.start, one.end)), text.slice(one.end)),
    h("p.quiet", `Probability ${percent(one.score)}`),
  ];
}

// --- what made it say so

async function explain(why, model, current) {
  clear(why, busy("Measuring the effect of each token…"));
  try {
    const found = await look("attribution", { ...subject(model), method: "occlusion" });
    if (current()) clear(why, felt(found, model));
  } catch {
    if (current()) clear(why); // some heads have no single answer to explain
  }
}

function felt({ scores: [row], tokens, answers }, { scores }) {
  const most = Math.max(...row.map(Math.abs), 1e-9);
  const mark = (token, i) =>
    h(
      `span.felt${row[i] < 0 ? ".against" : ""}`,
      { title: number(row[i]), style: { "--felt": `${Math.round((45 * Math.abs(row[i])) / most)}%` } },
      token,
    );
  const [title, falls, rises, up, down] = scores
    ? ["Attribution of the score", "the score is lower", "higher", "raises it", "lowers it"]
    : [["Attribution of ", h("b", answers[0])], "the answer is less likely", "more", "for it", "against it"];
  return [
    h("h2", title),
    h("p.felt-text", tokens.map(mark)),
    h(
      "p.quiet",
      `Occlusion: each token is blanked out in turn; without it ${falls} (`,
      h("span.felt", { style: { "--felt": "45%" } }, up),
      `) or ${rises} (`,
      h("span.felt.against", { style: { "--felt": "45%" } }, down),
      ").",
    ),
  ];
}

/** All layers together: which patches the answer comes from. */
async function where(why, model, current) {
  const { grid } = await look("rollout", subject(model));
  if (!current() || !grid) return;
  clear(
    why,
    h("h2", "Attention rollout"),
    lit(
      h("canvas.overlay", { role: "img", "aria-label": "The picture, tinted where the weights are large" }),
      state.image,
      grid.flat(),
      grid.length,
    ),
    h("p.quiet", "The attention weights of all layers, multiplied: how much each patch contributes to the answer. The deeper the tint, the larger the weight."),
  );
}
