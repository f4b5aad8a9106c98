// A model that writes: its text as it comes, every token with its probability, and what could have stood there.
import { ask, stream } from "../api.js";
import { bars, clear, failed, h, number, percent, shown } from "../dom.js";
import { bothSides, language, main, writes } from "../models.js";
import { set, state } from "../state.js";

const ALTERNATIVES = 8;

export const writing = {
  id: "write",
  title: (model) => main(model).title,
  fits: (model) => model !== null && writes(model),
  reads: true,
  writes: true,
  mount,
};

function mount(root, { model, limits, onDrop }) {
  const { ability, button } = main(model);
  const how = {
    max_tokens: Math.min(bothSides(model) ? 200 : 80, limits.tokens),
    temperature: bothSides(model) ? 0 : 0.8,
    top_k: 0,
    top_p: 1,
    seed: 1,
  };
  let [tokens, chosen, running, finish, forced] = [[], -1, null, "", 0];

  const output = h("div.output", { "aria-live": "polite" });
  const side = h("div.side");
  const note = h("p.note");
  const more = h("div.more");
  const go = h("button.main", { type: "button", onclick: () => (running ? stop() : write()) }, button);
  const onwards = h(
    "button",
    { type: "button", hidden: bothSides(model), onclick: () => set({ text: state.text + text(), token: -1 }) },
    "Add it to the beginning",
  );
  const title = ability === "translate" && model.target ? language(model.target) : "What it writes";
  clear(
    root,
    h(
      "div.two.write",
      h("section.card", h("div.row.head", h("h2", title), legend(), h("span.grow"), onwards, go), output, note),
      h("section.card.beside", side),
      bothSides(model) ? more : settings(how, limits),
    ),
  );
  onDrop(stop);

  const text = () => tokens.map((one) => one.text).join("");

  function stop() {
    running?.abort();
    running = null;
    go.textContent = button;
  }

  /** Write, from the beginning or behind the tokens that are kept. */
  async function write(kept = []) {
    stop();
    if (!state.text.trim()) return void empty();
    const own = (running = new AbortController());
    [tokens, chosen, finish, forced] = [[...kept], -1, "", kept.length];
    go.textContent = "Stop";
    root.setAttribute("aria-busy", "true");
    clear(more);
    clear(side, h("p.quiet", "Choose a token to see what could have stood there."));
    draw();
    const body = {
      model: model.name,
      prompt: state.text,
      chat: ability === "chat",
      prefix: kept.map((one) => one.id),
      alternatives: Math.min(ALTERNATIVES, limits.top),
      ...how,
    };
    try {
      for await (const event of stream("/api/generate", body, own.signal)) {
        if (own !== running) return;
        tokens.push(...(event.tokens ?? []));
        finish = event.finish ?? finish;
        draw();
      }
      if (own !== running) return;
      if (bothSides(model) && forced) set({ target: text() });
      ended();
    } catch (error) {
      if (error.name !== "AbortError") clear(output, failed(error));
    } finally {
      if (own === running) {
        stop();
        output.querySelector(".caret")?.remove();
        root.removeAttribute("aria-busy");
      }
    }
  }

  function empty() {
    clear(output, h("p.state", "Write something above, or choose an example."));
    clear(side);
    clear(note);
  }

  function ended() {
    if (chosen < 0 && tokens.length) choose(unsure());
    const sure = tokens.reduce((sum, one) => sum + Math.log(Math.max(one.probability, 1e-12)), 0);
    clear(
      note,
      `${tokens.length} tokens, log-probability ${number(sure, 2)}. `,
      finish === "length" ? "It stopped because it may write no more. " : "",
      forced
        ? h("button.link", { type: "button", onclick: () => (set({ target: "" }), write()) }, "Back to its own answer")
        : null,
    );
    if (ability === "translate") beam();
  }

  /** The token at which the model was least sure: the one worth looking at first. */
  const unsure = () => tokens.reduce((worst, one, i) => (one.probability < tokens[worst].probability ? i : worst), 0);

  // --- the text

  function draw() {
    const within = output.contains(document.activeElement);
    clear(
      output,
      tokens.map(token),
      running ? h("span.caret", { "aria-hidden": "true" }) : null,
      !tokens.length && !running ? h("p.state", "It wrote nothing.") : null,
    );
    if (within) output.querySelectorAll(".tok")[chosen]?.focus();
  }

  function token(one, i) {
    const [space, rest] = [one.text.match(/^\s*/)[0], one.text.trimStart()];
    const blank = rest ? "" : space.includes("\n") ? "↵" : "\u00a0";
    const button = h(
      `button.tok${i < forced ? ".forced" : ""}${rest ? "" : ".blank"}`,
      {
        type: "button",
        tabindex: i === Math.max(0, chosen) ? "0" : "-1",
        "aria-pressed": i === chosen,
        "aria-label": `${rest || "a space"}, ${percent(one.probability)}`,
        title: percent(one.probability),
        "data-space": rest && space ? "yes" : null,
        style: { "--unsure": Math.round(100 * (1 - one.probability)) + "%" },
        onclick: () => choose(i),
      },
      rest || blank,
    );
    const lines = Array.from({ length: space.split("\n").length - 1 }, () => h("br"));
    return rest ? [lines, button] : [button, lines];
  }

  output.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !tokens.length) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(tokens.length - 1, Math.max(0, chosen) + step)));
    output.querySelectorAll(".tok")[chosen].focus();
  });

  // --- what could have stood there

  function choose(i) {
    chosen = i;
    output.querySelectorAll(".tok").forEach((one, j) => {
      one.setAttribute("aria-pressed", j === i);
      one.tabIndex = j === i ? 0 : -1;
    });
    const one = tokens[i];
    const rows = one.alternatives.map((each) => ({
      text: shown(each.text),
      probability: each.probability,
      on: each.id === one.id,
    }));
    clear(
      side,
      h("h2", "Instead of ", h("b", shown(one.text))),
      h("p.quiet", "Choose another token, and the model goes on from there."),
      rows.length
        ? bars(rows, (j) => write([...tokens.slice(0, i), { ...one, ...pickOf(one.alternatives[j]) }]))
        : null,
    );
  }

  const pickOf = ({ id, text, probability }) => ({ id, text, probability });

  // --- the other translations

  async function beam() {
    const [own, target] = [state.text, text()];
    try {
      const size = Math.min(4, limits.beam, limits.alternatives + 1);
      const found = (await ask("/api/translate", { model: model.name, texts: own, beam: size, n_best: size }))
        .results[0];
      if (own !== state.text || target !== text()) return;
      const rows = (found.n_best ?? [found]).map((one) =>
        h("tr", h("td", one.text), h("td.num", number(one.score, 3))),
      );
      clear(
        more,
        h(
          "section.card",
          h("h2", "Beam search"),
          h(
            "p.quiet",
            `The best of ${size} hypotheses at a time; the score is log-probability per token. Above: the likeliest token at each step.`,
          ),
          h(
            "div.scroll",
            h("table.plain", h("thead", h("tr", h("th", "Translation"), h("th.num", "Score"))), h("tbody", rows)),
          ),
        ),
      );
    } catch (error) {
      clear(more, failed(error));
    }
  }

  return (changed) => {
    if (changed && !changed.has("text")) return;
    if (changed && !bothSides(model)) return void (document.activeElement.id === "text" || write());
    write();
  };
}

const legend = () => h("span.legend", "sure", h("span.legend-bar.unsure"), "unsure");

/** Temperature and the like, of a model that draws its tokens. */
function settings(how, limits) {
  const field = (name, label, least, most, step) => {
    const value = h("output", String(how[name]));
    const range = h("input", {
      type: "range",
      min: least,
      max: most,
      step,
      value: how[name],
      "aria-label": label,
      oninput: () => ((how[name] = Number(range.value)), (value.textContent = range.value)),
    });
    return h("label.field", h("span", label, " ", value), range);
  };
  return h(
    "section.card",
    h("h2", "How tokens are chosen"),
    h(
      "div.fields.even",
      field("temperature", "Temperature", 0, 2, 0.05),
      field("top_k", "Only the top k (0 = all)", 0, 50, 1),
      field("top_p", "Only the top share p", 0.05, 1, 0.05),
      field("seed", "Seed", 0, 100, 1),
      field("max_tokens", "Tokens", 1, Math.min(400, limits.tokens), 1),
    ),
    h("p.quiet", "Temperature 0 always takes the likeliest. The same seed gives the same text."),
  );
}
