// Ablation: set the output of heads to zero and compare the model's output with the original.
import { inspect } from "../api.js";
import { findSites, typeField } from "../attention_sites.js";
import { css, diverging, needsWhiteText } from "../colour.js";
import { comparePredictions, compareProbabilities, compareTexts } from "../comparison.js";
import { busyMessage, errorMessage, evenRowLength, formatNumber, h, keepFocus, render, rovingFocus, selectField } from "../dom.js";
import { INPUT_NAMES, inspectionInput, missingInput, missingMask } from "../input.js";
import { hasAttention, hasOutputHead, isEncoderDecoder, predictsPerToken } from "../models.js";
import { describeChange } from "../predictions.js";
import { headList, setState, state } from "../state.js";

export const ablation = {
  id: "ablation",
  title: () => "Ablation",
  supports: (model) => model !== null && hasAttention(model) && hasOutputHead(model) && !model.recurrent,
  usesInput: true,
  mount: (root, page) => {
    const view = new AblationView(root, page);
    return (changed) => view.update(changed);
  },
};

const RESETTING = [...INPUT_NAMES, "kind"]; // names whose change makes measured effects obsolete
const [WIDE, NARROW] = [12, 6]; // heads per row

class AblationView {
  constructor(root, { model, limits, onUnmount }) {
    Object.assign(this, { model, limits, requests: 0, effects: null, expected: null });
    onUnmount(() => (this.effects = null)); // stops a measurement
    [this.grid, this.result] = [h("section.card"), h("section.card", { "aria-live": "polite" })];
    render(root, h(`div.two.ablation${model.heads > NARROW ? ".many" : ""}`, this.grid, this.result));
  }

  async update(changed) {
    const observed = [...RESETTING, "off", ...(predictsPerToken(this.model) ? ["token"] : [])];
    if (changed && !observed.some((name) => changed.has(name))) return;
    const number = ++this.requests;
    const isCurrent = () => number === this.requests;
    if (!changed || RESETTING.some((name) => changed.has(name))) this.effects = null;
    const missing = missingInput(this.model) ?? (state.token < 0 ? missingMask(this.model) : null);
    if (missing) {
      render(this.result);
      return void render(this.grid, missing);
    }
    if (!changed) render(this.result, busyMessage());
    try {
      const sites = await findSites(this.model);
      if (!isCurrent()) return;
      this.showGrid(sites);
      this.result.setAttribute("aria-busy", "true");
      const heads = ablatedHeads(sites);
      const result = await inspect("ablation", this.requestBody(sites, heads));
      if (!isCurrent()) return;
      keepFocus(this.result, () => this.showResult(result, heads));
      if (this.model.can.includes("generate")) await this.showTexts(sites, heads, isCurrent);
    } catch (error) {
      if (isCurrent()) render(this.result, errorMessage(error));
    } finally {
      if (isCurrent()) this.result.removeAttribute("aria-busy");
    }
  }

  /** Position to predict at, if the model predicts at every token and the user has selected one. */
  selectedPosition({ tokens }) {
    return predictsPerToken(this.model) && state.token >= 0 && state.token < tokens.length ? { position: state.token } : {};
  }

  requestBody(sites, heads) {
    return {
      ...inspectionInput(this.model),
      heads,
      kind: sites.kind,
      ...this.selectedPosition(sites),
      max_tokens: 0, // the text is requested separately
      top_k: Math.min(6, this.limits.top),
    };
  }

  // --- grid of heads

  showGrid(sites) {
    const ablated = new Set(ablatedHeads(sites).map((head) => head.join(".")));
    const toggle = (names) => {
      const all = names.every((name) => ablated.has(name));
      for (const name of names) ablated[all ? "delete" : "add"](name);
      setState({ off: headList.format([...ablated].map((name) => name.split("."))) });
    };
    const restore = { "data-focus-key": "restore", disabled: !ablated.size, onclick: () => setState({ off: "" }) };
    const { effects } = this;
    const measure = { "data-focus-key": "effects", disabled: Boolean(effects), onclick: () => this.measure(sites) };
    const running = effects && effects.layers.length < sites.layers.length;
    const progress = `Measuring layer ${effects?.layers.length + 1} of ${sites.layers.length}…`;
    const buttons = [
      h("button", { type: "button", ...restore }, "Restore all"),
      h("button", { type: "button", ...measure }, running ? progress : "Measure every head"),
    ];
    keepFocus(this.grid, () =>
      render(
        this.grid,
        h("h2", "Heads"),
        typeField(sites),
        h("p.quiet", "Select a head to ablate it (its output is set to 0); select it again to restore it."),
        rovingFocus(h("div.switchboard", sites.layers.map((site) => this.layerRow(site, ablated, toggle))), ".switch"),
        h("div.row", buttons),
        effects?.layers.length ? this.explanation() : null,
      ),
    );
  }

  layerRow({ layer, heads }, ablated, toggle) {
    const names = Array.from({ length: heads }, (_, i) => `${layer}.${i}`);
    const attributes = { "data-focus-key": `all${layer}`, "aria-label": `All heads of layer ${layer}` };
    const all = h("button.switch.row-switch", { type: "button", ...attributes, onclick: () => toggle(names) }, `layer ${layer}`);
    const style = { "--wide": evenRowLength(heads, WIDE), "--narrow": evenRowLength(heads, NARROW) };
    const switches = names.map((name, i) => this.headSwitch(layer, i, ablated.has(name), () => toggle([name])));
    return h("div.switch-row", all, h("div.switch-heads", { style }, switches));
  }

  headSwitch(layer, i, ablated, onclick) {
    const value = this.effects?.alone[this.effects.layers.indexOf(layer)]?.[i];
    const drop = value === undefined ? null : this.effects.whole - value;
    const [measure, digits] = this.model.scores ? ["score", 2] : ["logit", 1];
    const effect = drop === null ? "" : `: the ${measure} is ${describeChange(this.effects.whole, value)} without it`;
    const background = drop === null ? null : diverging(drop / this.effects.most);
    return h(
      `button.switch${background ? ".measured" : ""}${background && needsWhiteText(background) ? ".strong" : ""}`,
      {
        type: "button",
        role: "switch",
        "data-focus-key": `${layer}.${i}`,
        "aria-checked": !ablated,
        "aria-label": `Layer ${layer}, head ${i}${effect}`,
        title: `Head ${i}${effect}`,
        onclick,
        style: background ? { "--effect": css(background) } : {},
      },
      h("span", String(i)),
      drop === null ? null : h("small", formatNumber(drop, digits)),
    );
  }

  /** Measure every head alone, one request per layer; finished layers are shown meanwhile. */
  async measure(sites) {
    const least = this.model.scores ? 0.01 : 1; // smaller effects get no strong colour
    const effects = (this.effects = { layers: [], alone: [], most: least });
    const hardest = leastLikely(this.expected);
    const position = hardest === null ? this.selectedPosition(sites) : { position: hardest };
    this.grid.setAttribute("aria-busy", "true");
    try {
      for (const { layer } of sites.layers) {
        this.showGrid(sites);
        const { alone, whole, word } = await inspect("effects", { ...inspectionInput(this.model), kind: sites.kind, ...position, layer });
        if (effects !== this.effects) return; // the text has changed
        effects.layers.push(layer);
        effects.alone.push(alone[0]);
        const most = Math.max(effects.most, ...alone[0].map((x) => Math.abs(whole - x)));
        Object.assign(effects, { most, whole, word });
      }
      this.showGrid(sites);
    } catch (error) {
      if (effects !== this.effects) return;
      this.effects = null;
      this.showGrid(sites);
      render(this.result, errorMessage(error));
    } finally {
      this.grid.removeAttribute("aria-busy");
    }
  }

  explanation() {
    const { word } = this.effects;
    const logit = ["the logit of ", h("b", word ? `“${word}”` : "the prediction")];
    return h(
      "p.quiet",
      "Decrease of ",
      this.model.scores ? "the score" : logit,
      " when only that head is ablated. Stronger colour: larger effect.",
    );
  }

  // --- original and ablated output

  showResult({ before, after, tokens }, heads) {
    this.expected = before.expected;
    const ablated = heads.length > 0;
    const side = isEncoderDecoder(this.model) ? "output" : "input";
    const probabilities = before.expected?.length ? compareProbabilities(side, before.expected, after.expected, ablated) : null;
    const names = heads.map((head) => head.join(".")).join(", ");
    render(
      this.result,
      h("h2", ablated ? "Effect of the ablation" : "Original output"),
      h("p.quiet", ablated ? `Ablated heads (layer.head): ${names}` : "Select a head to compare."),
      (this.texts = h("div", this.model.can.includes("generate") ? busyMessage("Generating…") : null)),
      probabilities,
      isEncoderDecoder(this.model) && probabilities ? null : this.predictions(before.answers, after.answers, tokens, ablated),
    );
  }

  /** Generate both texts, which takes a pass per token; the original one is cached. */
  async showTexts(sites, heads, isCurrent) {
    const body = { ...inspectionInput(this.model), kind: sites.kind, max_tokens: Math.min(20, this.limits.tokens) };
    const generate = async (ablated) => (await inspect("generate", { ...body, heads: ablated })).text;
    const before = await generate([]);
    const after = heads.length && isCurrent() ? await generate(heads) : before;
    if (isCurrent()) render(this.texts, compareTexts(before, after, heads.length > 0));
  }

  /** Predictions at a token, which the user can select if the model predicts at every token. */
  predictions(before, after, tokens, ablated) {
    const perToken = predictsPerToken(this.model);
    const options = tokens.map((name, i) => [i, `${i}: ${name}`]);
    const position = before.position ?? (state.token >= 0 ? state.token : tokens.indexOf(before.at));
    const select = (value) => setState({ token: Number(value) });
    const place = [perToken ? "Prediction at " : "Next token after ", h("b", `“${before.at}”`)];
    const title = before.at === "(all)" ? (this.model.scores ? "Score" : "Prediction") : place;
    return [
      perToken ? selectField("Token", options, position, select) : null,
      comparePredictions(this.model, title, before, after, ablated),
    ];
  }
}

/** Ablated heads of the address that exist in the model. */
const ablatedHeads = ({ layers }) =>
  headList
    .parse(state.off)
    .filter(([layer, head]) => layers.some((site) => site.layer === layer && head >= 0 && head < site.heads));

/** Position of the least likely token, where heads matter most; null if the prediction is about the whole input. */
function leastLikely(expected) {
  if (!expected?.length) return null;
  return expected.reduce((least, token) => (token.probability < least.probability ? token : least)).position;
}
