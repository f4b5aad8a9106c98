// A model that reads: classes, tags, words for gaps, answers, descriptions of pictures; and what made it say so.
import { ask, look } from "../api.js";
import { bars, busy, clear, empty, failed, h, number, percent, shown } from "../dom.js";
import { SUBJECT, subject } from "../input.js";
import { gapOf, main, second, sees, writes } from "../models.js";
import { lit } from "../picture.js";
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
    if (!subject(model)) return void clear(said, empty("Write something above, or choose an example."));
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
  const texts = second(model) && state.pair.trim() ? [[state.text, state.pair]] : [state.text];
  const given = sees(model) ? { images: [state.image] } : { texts };
  const [one] = (await ask("/api/classify", { model: model.name, ...given })).results;
  if (one.score !== undefined) return [h("h2", "Score"), h("p.big", number(one.score))];
  const rows = Object.entries(one.probabilities)
    .map(([text, probability]) => ({ text, probability }))
    .sort((a, b) => b.probability - a.probability);
  return [
    h("h2", "Class"),
    h("p.big", one.label),
    bars(rows.slice(0, SHOWN)),
    one.cut ? h("p.quiet", "The text was too long: only its beginning was read.") : null,
  ];
}

async function tag(model) {
  const [words] = (await ask("/api/tag", { model: model.name, texts: [state.text] })).results;
  const tagged = words.map((one) => h("span.tagged", h("b", one.word), h("small", one.tag)));
  return [h("h2", "Tags"), h("p.tags", tagged)];
}

async function fill(model, limits) {
  const gap = gapOf(model);
  if (![gap, "[MASK]", "<mask>"].some((one) => state.text.includes(one)))
    return empty(`Write ${gap} where a word is missing.`);
  const body = { model: model.name, texts: [state.text], top_k: Math.min(SHOWN, limits.top) };
  const [one] = (await ask("/api/fill", body)).results;
  if (one.problem) return empty(one.problem);
  const gaps = one.gaps.map((words) => bars(words.map(({ word, ...more }) => ({ text: shown(word), ...more }))));
  return [h("h2", "Filled"), h("p.big", one.text), gaps];
}

async function describe(model) {
  const body = { model: model.name, images: [state.image], n_best: 3, beam: 4 };
  const [one] = (await ask("/api/describe", body)).results;
  const rows = (one.n_best ?? [one]).map((each) => h("tr", h("td", each.text), h("td.num", number(each.score))));
  return [
    h("h2", "What it sees"),
    h("p.big", one.text),
    h("table.plain", h("thead", h("tr", h("th", "Beam search"), h("th.num", "Score"))), h("tbody", rows)),
  ];
}

async function answer(model) {
  const [text, question] = [state.text, state.pair.trim()];
  if (!question) return empty("Ask something: write a question above.");
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
  clear(why, busy("Measuring what each token did…"));
  try {
    const given = subject(model);
    const gap = await gapAt(model, given);
    const body = { ...given, method: "occlusion", ...(gap < 0 ? {} : { positions: [gap] }) };
    const found = await look("attribution", body);
    if (current()) clear(why, felt(found));
  } catch {
    if (current()) clear(why); // some heads have no single answer to explain
  }
}

/** Which token is the gap; −1 where there is none. */
async function gapAt(model, given) {
  if (main(model).ability !== "fill") return -1;
  const { tokens } = await look("answers", { ...given, top_k: 1 });
  return tokens.findIndex((one) => shown(one) === gapOf(model));
}

function felt({ scores: [row], tokens, answers }) {
  const most = Math.max(...row.map(Math.abs), 1e-9);
  const mark = (token, i) =>
    h(
      `span.felt${row[i] < 0 ? ".against" : ""}`,
      { title: number(row[i]), style: { "--felt": `${Math.round((80 * Math.abs(row[i])) / most)}%` } },
      shown(token),
    );
  return [
    h("h2", "What made it say ", h("b", answers[0])),
    h("p.felt-text", tokens.map(mark)),
    h(
      "p.quiet",
      "Each token was blanked out in turn: without it the answer is less likely (",
      h("span.felt", { style: { "--felt": "45%" } }, "for it"),
      ") or more (",
      h("span.felt.against", { style: { "--felt": "45%" } }, "against it"),
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
    h("h2", "Where it looked"),
    lit(
      h("canvas.overlay", { role: "img", "aria-label": "The picture, bright where the model looked" }),
      state.image,
      grid.flat(),
      grid.length,
    ),
    h("p.quiet", "Attention rollout: the weights of all layers, multiplied."),
  );
}
