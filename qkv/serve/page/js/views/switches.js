// Switch heads off, and see what the model says without them.
import { look } from "../api.js";
import { css, signed } from "../colour.js";
import { bars, busy, clear, empty, failed, h, number, percent, pick, shown } from "../dom.js";
import { subject } from "../input.js";
import { answers, attends, bothSides, KINDS } from "../models.js";
import { heads as list, set, state } from "../state.js";
import { sitesOf } from "./attention.js";

export const switches = {
  id: "off",
  title: () => "Switch off",
  fits: (model) => model !== null && attends(model) && answers(model) && !model.recurrent,
  reads: true,
  mount,
};

function mount(root, { model, limits }) {
  let [asked, effects, expected] = [0, null, null];
  const grid = h("section.card");
  const result = h("section.card", { "aria-live": "polite" });
  clear(root, h("div.two.off", grid, result));

  async function update(changed) {
    if (changed && !["text", "target", "image", "kind", "off"].some((name) => changed.has(name))) return;
    const mine = ++asked;
    if (!changed || ["text", "target", "image", "kind"].some((name) => changed.has(name))) effects = null;
    if (!subject(model))
      return void (clear(result), clear(grid, empty("There is nothing to look at yet: write something above.")));
    if (!changed) clear(result, busy());
    try {
      const where = await sitesOf(model);
      if (mine !== asked) return;
      switchboard(where);
      result.setAttribute("aria-busy", "true");
      const body = {
        ...subject(model),
        heads: offOf(where),
        kind: where.kind,
        max_tokens: Math.min(30, limits.tokens),
        top_k: Math.min(6, limits.top),
      };
      const found = await look("ablation", body);
      if (mine === asked) show(found, offOf(where));
    } catch (error) {
      if (mine === asked) clear(result, failed(error));
    } finally {
      if (mine === asked) result.removeAttribute("aria-busy");
    }
  }

  /** Only heads that are there: an address may name others. */
  const offOf = ({ own }) =>
    list
      .read(state.off)
      .filter(([layer, head]) => own.some((site) => site.layer === layer && head >= 0 && head < site.heads));

  // --- the switches

  function switchboard(where) {
    const { kinds, kind, own } = where;
    const off = new Set(offOf(where).map((one) => one.join(".")));
    const turn = (some) => {
      const every = some.every((one) => off.has(one));
      for (const one of some) off[every ? "delete" : "add"](one);
      set({ off: list.write([...off].map((one) => one.split("."))) });
    };
    const row = (site, n) => {
      const names = Array.from({ length: site.heads }, (_, i) => `${site.layer}.${i}`);
      const all = h(
        "button.switch.row-switch",
        {
          type: "button",
          "data-keep": `all${site.layer}`,
          "aria-label": `All heads of layer ${site.layer}`,
          onclick: () => turn(names),
        },
        `layer ${site.layer}`,
      );
      return h(
        "div.switch-row",
        all,
        names.map((one, i) => toggle(one, i, off.has(one), n, () => turn([one]))),
      );
    };
    const kept = document.activeElement?.dataset?.keep;
    clear(
      grid,
      h("h2", "Heads"),
      Object.keys(kinds).length > 1
        ? pick(
            "Who looks at whom",
            Object.keys(kinds).map((one) => [one, KINDS[one]]),
            kind,
            (value) => set({ kind: value, off: "", layer: -1, head: 0 }),
          )
        : null,
      h("p.quiet", "Click a head to switch it off; click again to bring it back."),
      h("div.switchboard", own.map(row)),
      h(
        "div.row",
        h(
          "button",
          { type: "button", "data-keep": "none", disabled: !off.size, onclick: () => set({ off: "" }) },
          "All on",
        ),
        h(
          "button",
          { type: "button", "data-keep": "effects", disabled: Boolean(effects), onclick: () => measure(where) },
          "Measure every head",
        ),
      ),
      effects
        ? h(
            "p.quiet",
            "How far the logit of ",
            h("b", effects.of),
            " falls when that head alone is off: the deeper the colour, the more the model needs it.",
          )
        : null,
    );
    if (kept) grid.querySelector(`[data-keep="${kept}"]`)?.focus();
  }

  function toggle(one, i, off, n, turn) {
    const drop = effects ? effects.whole - effects.alone[n][i] : null;
    const note = drop === null ? `head ${i}` : `head ${i}: the logit falls by ${number(drop, 2)}`;
    return h(
      `button.switch${drop !== null && Math.abs(drop) > effects.most / 2 ? ".strong" : ""}`,
      {
        type: "button",
        role: "switch",
        "data-keep": one,
        "aria-checked": !off,
        "aria-label": `Layer ${one.replace(".", ", head ")}`,
        title: note,
        onclick: turn,
        style: drop === null ? {} : { "--effect": css(signed(drop / effects.most)) },
      },
      h("span", String(i)),
      drop === null ? null : h("small", number(drop, 1)),
    );
  }

  async function measure(where) {
    const [mine, button] = [asked, grid.querySelector("[data-keep=effects]")];
    button.disabled = true;
    button.textContent = "Measuring…";
    grid.setAttribute("aria-busy", "true");
    try {
      const at = hard(expected);
      const found = await look("effects", {
        ...subject(model),
        kind: where.kind,
        ...(at === null ? {} : { position: at }),
      });
      if (mine !== asked) return; // other heads or another text by now
      effects = {
        ...found,
        of: at === null ? "the answer" : `“${shown(expected[at].token)}”`,
        most: Math.max(1, ...found.alone.flat().map((x) => Math.abs(found.whole - x))),
      };
    } catch (error) {
      clear(result, failed(error));
    } finally {
      grid.removeAttribute("aria-busy");
      if (mine === asked) switchboard(where);
    }
  }

  // --- before and after

  function show({ before, after }, off) {
    const names = off.length ? off.map((one) => one.join(".")).join(", ") : "none";
    const words = before.text === null ? null : texts(before.text, after.text);
    expected = before.expected;
    const likely = expected?.length ? likelihoods(expected, after.expected) : null;
    const column = (title, one) =>
      h(
        "div",
        h("h3", title),
        bars(one.words.map((text, i) => ({ text: shown(text), probability: one.probabilities[i] }))),
      );
    const whole = before.answers.at === "(all)";
    clear(
      result,
      h("h2", "Before and after"),
      h("p.quiet", `Switched off: ${names}`),
      words,
      likely,
      bothSides(model) && likely
        ? null
        : [
            h(
              "h3",
              whole
                ? "Answer"
                : [
                    model.family === "encoder" ? "The answer at " : "What comes after ",
                    h("b", shown(before.answers.at)),
                  ],
            ),
            h(
              "div.two.even",
              column("All heads on", before.answers),
              column(off.length ? "Without them" : "The same", after.answers),
            ),
          ],
    );
  }

  return update;
}

/** The token that the model found least likely: there it needs its heads most. Null where the answer is about the whole. */
function hard(expected) {
  if (!expected?.length) return null;
  return expected.reduce((worst, one, i) => (one.probability < expected[worst].probability ? i : worst), 0);
}

/** Both texts, the words that differ marked. */
function texts(before, after) {
  const [a, b] = [before.split(/(\s+)/), after.split(/(\s+)/)];
  const same = common(a, b);
  const side = (words, kept, name) => words.map((word, i) => (kept.has(i) || !word.trim() ? word : h(`${name}`, word)));
  const equal = before === after;
  return h(
    "dl.change",
    h("dt", "All heads on"),
    h("dd", side(a, same.a, "del")),
    h("dt", "Without them"),
    h("dd.after", side(b, same.b, "ins")),
    h("dd.verdict", equal ? "The text is the same." : "The text has changed."),
  );
}

/** Where two lists agree: the longest common subsequence. */
function common(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const found = { a: new Set(), b: new Set() };
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) (found.a.add(i++), found.b.add(j++));
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return found;
}

/** How likely each token of the text is, with and without the heads. */
function likelihoods(before, after) {
  const row = ({ token, probability }, i) => {
    const now = after[i].probability;
    return h(
      "tr",
      h("td", shown(token)),
      h("td.num", percent(probability)),
      h(`td.num${now < probability / 2 ? ".less" : ""}`, percent(now)),
      h(
        "td",
        h(
          "span.bar-track.twice",
          h("span.bar-fill.ghost", { style: { width: `${100 * probability}%` } }),
          h("span.bar-fill", { style: { width: `${100 * now}%` } }),
        ),
      ),
    );
  };
  return [
    h("h3", "How likely each token of the text is"),
    h(
      "div.scroll",
      h(
        "table.plain.likely",
        h("thead", h("tr", h("th", "Token"), h("th.num", "on"), h("th.num", "off"), h("th", ""))),
        h("tbody", before.map(row)),
      ),
    ),
  ];
}
