// A model that reads: classes, tags, words for gaps, answers, descriptions of pictures; and what made it say so.
import { ask, look } from "../api.js";
import { bars, busy, clear, empty, failed, h, number, percent, shown } from "../dom.js";
import { subject } from "../input.js";
import { main, sees, writes } from "../models.js";
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

function mount(root, { model, limits }) {
  const { ability } = main(model);
  const answer = h("section.card", { "aria-live": "polite" });
  const why = h("section.card");
  const own = { classify, tag, fill, answer: question, describe }[ability];
  clear(root, h("div.two", answer, why));
  let asked = 0;
  const asking = h("input", { type: "text", value: "Who won?", "aria-label": "Question" });
  const send = (event) => (event.preventDefault(), update(null));
  const form = h("form.row", { onsubmit: send }, asking, h("button.main", { type: "submit" }, "Ask"));

  async function update(changed) {
    if (changed && !["text", "image"].some((name) => changed.has(name))) return;
    const mine = ++asked;
    clear(why);
    if (!subject(model)) return void clear(answer, empty("Write something above, or choose an example."));
    clear(answer, busy());
    try {
      const found = await own();
      if (mine === asked) clear(answer, found);
      if (mine === asked && ["classify", "fill"].includes(ability)) await (sees(model) ? where(mine) : explain(mine));
    } catch (error) {
      if (mine === asked) clear(answer, failed(error));
    }
  }

  // --- one for each ability

  async function classify() {
    const given = sees(model) ? { images: [state.image] } : { texts: [state.text] };
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

  async function tag() {
    const [words] = (await ask("/api/tag", { model: model.name, texts: [state.text] })).results;
    return [
      h("h2", "Tags"),
      h(
        "p.tags",
        words.map((one) => h("span.tagged", h("b", one.word), h("small", one.tag))),
      ),
    ];
  }

  async function fill() {
    if (!/\[MASK\]|<mask>/.test(state.text)) return empty("Write [MASK] where a word is missing.");
    const [one] = (
      await ask("/api/fill", { model: model.name, texts: [state.text], top_k: Math.min(SHOWN, limits.top) })
    ).results;
    if (one.problem) return empty(one.problem);
    return [
      h("h2", "Filled"),
      h("p.big", one.text),
      one.gaps.map((gap) => bars(gap.map(({ word, probability }) => ({ text: shown(word), probability })))),
    ];
  }

  async function describe() {
    const [one] = (await ask("/api/describe", { model: model.name, images: [state.image], n_best: 3, beam: 4 }))
      .results;
    const rows = (one.n_best ?? [one]).map((each) => h("tr", h("td", each.text), h("td.num", number(each.score))));
    return [
      h("h2", "What it sees"),
      h("p.big", one.text),
      h("table.plain", h("thead", h("tr", h("th", "Beam search"), h("th.num", "Score"))), h("tbody", rows)),
    ];
  }

  async function question() {
    const text = state.text;
    const one = await ask("/api/answer", { model: model.name, question: asking.value, context: text });
    return [
      h("h2", "Answer"),
      form,
      h("p.big", one.text || "No answer"),
      h("p", text.slice(0, one.start), h("mark", text.slice(one.start, one.end)), text.slice(one.end)),
      h("p.quiet", `Probability ${percent(one.score)}`),
    ];
  }

  // --- what made it say so

  async function explain(mine) {
    clear(why, busy("Measuring what each token did…"));
    try {
      const gap =
        ability === "fill"
          ? (await look("answers", subject(model))).tokens.findIndex((one) => /^(\[MASK\]|<mask>)$/.test(shown(one)))
          : -1;
      const found = await look("attribution", {
        ...subject(model),
        method: "occlusion",
        ...(gap < 0 ? {} : { positions: [gap] }),
      });
      if (mine !== asked) return;
      const row = found.scores[0];
      const most = Math.max(...row.map(Math.abs), 1e-9);
      const mark = (token, i) =>
        h(
          `span.felt${row[i] < 0 ? ".against" : ""}`,
          { title: number(row[i]), style: { "--felt": `${Math.round((80 * Math.abs(row[i])) / most)}%` } },
          shown(token),
        );
      clear(
        why,
        h("h2", "What made it say ", h("b", found.answers[0])),
        h("p.felt-text", found.tokens.map(mark)),
        h(
          "p.quiet",
          "Each token was blanked out in turn: without it the answer is less likely (",
          h("span.felt", { style: { "--felt": "45%" } }, "for it"),
          ") or more (",
          h("span.felt.against", { style: { "--felt": "45%" } }, "against it"),
          ").",
        ),
      );
    } catch {
      clear(why); // some heads have no single answer to explain
    }
  }

  /** All layers together: which patches the answer comes from. */
  async function where(mine) {
    const { grid } = await look("rollout", subject(model));
    if (mine !== asked || !grid) return;
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

  return update;
}
