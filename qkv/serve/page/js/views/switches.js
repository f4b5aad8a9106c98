// Switch heads off, and see what the model says without them.
import { look } from "../api.js";
import { css, signed, strong } from "../colour.js";
import { answers as compared, likelihoods, texts } from "../compare.js";
import { busy, clear, even, failed, h, keeping, number, pick, roving } from "../dom.js";
import { SUBJECT, missing, missingGap, subject } from "../input.js";
import { answers, attends, bothSides, perToken } from "../models.js";
import { moved } from "../scored.js";
import { kindPicker, sitesOf } from "../sites.js";
import { heads as list, set, state } from "../state.js";

export const switches = {
  id: "off",
  title: () => "Switch off",
  fits: (model) => model !== null && attends(model) && answers(model) && !model.recurrent,
  reads: true,
  mount: (root, page) => {
    const own = new Switches(root, page);
    return (changed) => own.update(changed);
  },
};

const OTHERS = [...SUBJECT, "kind"]; // what makes it another question
const [WIDE, NARROW] = [12, 6]; // heads in a row

class Switches {
  constructor(root, { model, limits, onDrop }) {
    Object.assign(this, { model, limits, asked: 0, effects: null, expected: null });
    onDrop(() => (this.effects = null)); // nothing more is measured
    [this.grid, this.result] = [h("section.card"), h("section.card", { "aria-live": "polite" })];
    clear(root, h(`div.two.off${model.heads > NARROW ? ".many" : ""}`, this.grid, this.result));
  }

  async update(changed) {
    const heard = [...OTHERS, "off", ...(perToken(this.model) ? ["token"] : [])];
    if (changed && !heard.some((name) => changed.has(name))) return;
    const mine = ++this.asked;
    if (!changed || OTHERS.some((name) => changed.has(name))) this.effects = null;
    const lacking = missing(this.model) ?? (state.token < 0 ? missingGap(this.model) : null);
    if (lacking) {
      clear(this.result);
      return void clear(this.grid, lacking);
    }
    if (!changed) clear(this.result, busy());
    try {
      const where = await sitesOf(this.model);
      if (mine !== this.asked) return;
      this.switchboard(where);
      this.result.setAttribute("aria-busy", "true");
      const off = offOf(where);
      const found = await look("ablation", this.question(where, off));
      if (mine !== this.asked) return;
      keeping(this.result, () => this.show(found, off));
      if (this.model.can.includes("generate")) await this.write(where, off, () => mine === this.asked);
    } catch (error) {
      if (mine === this.asked) clear(this.result, failed(error));
    } finally {
      if (mine === this.asked) this.result.removeAttribute("aria-busy");
    }
  }

  /** The token that the reader has chosen to ask at, where it answers at all of them. */
  chosen({ tokens }) {
    return perToken(this.model) && state.token >= 0 && state.token < tokens.length ? { position: state.token } : {};
  }

  question(where, heads) {
    return {
      ...subject(this.model),
      heads,
      kind: where.kind,
      ...this.chosen(where),
      max_tokens: 0, // the text comes after the numbers
      top_k: Math.min(6, this.limits.top),
    };
  }

  // --- the switches

  switchboard(where) {
    const off = new Set(offOf(where).map((one) => one.join(".")));
    const turn = (some) => {
      const every = some.every((one) => off.has(one));
      for (const one of some) off[every ? "delete" : "add"](one);
      set({ off: list.write([...off].map((one) => one.split("."))) });
    };
    const on = { "data-keep": "none", disabled: !off.size, onclick: () => set({ off: "" }) };
    const { effects } = this;
    const measure = { "data-keep": "effects", disabled: Boolean(effects), onclick: () => this.measure(where) };
    const running = effects && effects.layers.length < where.own.length;
    const now = `Measuring layer ${effects?.layers.length + 1} of ${where.own.length}…`;
    keeping(this.grid, () =>
      clear(
        this.grid,
        h("h2", "Heads"),
        kindPicker(where),
        h("p.quiet", "Click a head to switch it off (ablation); click again to switch it on."),
        roving(h("div.switchboard", where.own.map((site) => this.row(site, off, turn))), ".switch"),
        h(
          "div.row",
          h("button", { type: "button", ...on }, "All on"),
          h("button", { type: "button", ...measure }, running ? now : "Measure every head"),
        ),
        effects?.layers.length ? this.meaning() : null,
      ),
    );
  }

  row({ layer, heads }, off, turn) {
    const names = Array.from({ length: heads }, (_, i) => `${layer}.${i}`);
    const about = { "data-keep": `all${layer}`, "aria-label": `All heads of layer ${layer}` };
    const all = h("button.switch.row-switch", { type: "button", ...about, onclick: () => turn(names) }, `layer ${layer}`);
    const inRow = { "--wide": even(heads, WIDE), "--narrow": even(heads, NARROW) };
    const own = names.map((one, i) => this.toggle(layer, i, off.has(one), () => turn([one])));
    return h("div.switch-row", all, h("div.switch-heads", { style: inRow }, own));
  }

  toggle(layer, i, off, turn) {
    const alone = this.effects?.alone[this.effects.layers.indexOf(layer)]?.[i];
    const drop = alone === undefined ? null : this.effects.whole - alone;
    const [what, digits] = this.model.scores ? ["score", 2] : ["logit", 1];
    const said = drop === null ? "" : `: the ${what} is ${moved(this.effects.whole, alone)} without it`;
    const ground = drop === null ? null : signed(drop / this.effects.most);
    return h(
      `button.switch${ground ? ".measured" : ""}${ground && strong(ground) ? ".strong" : ""}`,
      {
        type: "button",
        role: "switch",
        "data-keep": `${layer}.${i}`,
        "aria-checked": !off,
        "aria-label": `Layer ${layer}, head ${i}${said}`,
        title: `head ${i}${said}`,
        onclick: turn,
        style: ground ? { "--effect": css(ground) } : {},
      },
      h("span", String(i)),
      drop === null ? null : h("small", number(drop, digits)),
    );
  }

  /** Every head of a layer in one request, layer after layer: what is known is shown meanwhile. */
  async measure(where) {
    const least = this.model.scores ? 0.01 : 1; // what would be noise gets no deep colour
    const own = (this.effects = { layers: [], alone: [], most: least });
    const at = hard(this.expected);
    const position = at === null ? this.chosen(where) : { position: at };
    this.grid.setAttribute("aria-busy", "true");
    try {
      for (const { layer } of where.own) {
        this.switchboard(where);
        const found = await look("effects", { ...subject(this.model), kind: where.kind, ...position, layer });
        if (own !== this.effects) return; // another text by now
        own.layers.push(layer);
        own.alone.push(found.alone[0]);
        const most = Math.max(own.most, ...found.alone[0].map((x) => Math.abs(found.whole - x)));
        Object.assign(own, { most, whole: found.whole, word: found.word });
      }
      this.switchboard(where);
    } catch (error) {
      if (own !== this.effects) return;
      this.effects = null;
      this.switchboard(where);
      clear(this.result, failed(error));
    } finally {
      this.grid.removeAttribute("aria-busy");
    }
  }

  meaning() {
    const { word } = this.effects;
    const logit = ["the logit of ", h("b", word ? `“${word}”` : "the answer")];
    return h(
      "p.quiet",
      "How far ",
      this.model.scores ? "the score" : logit,
      " falls when that head alone is off: the deeper the colour, the larger the effect.",
    );
  }

  // --- before and after

  show({ before, after, tokens }, off) {
    this.expected = before.expected;
    const changed = off.length > 0;
    const likely = before.expected?.length ? likelihoods(bothSides(this.model) ? "output" : "input", before.expected, after.expected, changed) : null;
    const names = off.map((one) => one.join(".")).join(", ");
    clear(
      this.result,
      h("h2", changed ? "Before and after" : "All heads on"),
      h("p.quiet", changed ? `Switched off (layer.head): ${names}` : "Switch a head off to compare."),
      (this.text = h("div", this.model.can.includes("generate") ? busy("Writing…") : null)),
      likely,
      bothSides(this.model) && likely ? null : this.answers(before.answers, after.answers, tokens, changed),
    );
  }

  /** What it writes takes a pass for each token. With all heads on it is asked for once. */
  async write(where, off, current) {
    const common = { ...subject(this.model), kind: where.kind, max_tokens: Math.min(20, this.limits.tokens) };
    const text = async (heads) => (await look("generate", { ...common, heads })).text;
    const before = await text([]);
    const after = off.length && current() ? await text(off) : before;
    if (current()) clear(this.text, texts(before, after, off.length > 0));
  }

  /** What it answers at a token, which can be chosen where it answers at all of them. */
  answers(before, after, tokens, changed) {
    const chosen = perToken(this.model);
    const words = tokens.map((name, i) => [i, `${i}: ${name}`]);
    const at = before.position ?? (state.token >= 0 ? state.token : tokens.indexOf(before.at));
    const take = (value) => set({ token: Number(value) });
    const where = [chosen ? "Answer at " : "Next token after ", h("b", `“${before.at}”`)];
    const title = before.at === "(all)" ? (this.model.scores ? "Score" : "Answer") : where;
    return [chosen ? pick("Token", words, at, take) : null, compared(this.model, title, before, after, changed)];
  }
}

/** The heads that are off, of those that are there: an address may name others. */
const offOf = ({ own }) =>
  list
    .read(state.off)
    .filter(([layer, head]) => own.some((site) => site.layer === layer && head >= 0 && head < site.heads));

/** The token that the model found least likely: there it needs its heads most. Null where the answer is about the whole. */
function hard(expected) {
  if (!expected?.length) return null;
  return expected.reduce((worst, one) => (one.probability < worst.probability ? one : worst)).position;
}
