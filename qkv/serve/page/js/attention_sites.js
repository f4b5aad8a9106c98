// Attention layers of a model for the current input, and fields to select attention type, layer and head.
import { inspect } from "./api.js";
import { selectField } from "./dom.js";
import { inspectionInput } from "./input.js";
import { ATTENTION_TYPES } from "./models.js";
import { setState, state } from "./state.js";

/** Find the layers with a capability ("weighs": attention weights; "walks": softmax attention that can be shown step by step) and
 * the selected one of them: {kinds: {kind: [site]}, kind, layers, site, tokens, layer, head}. */
export async function findSites(model, capability) {
  const { sites, tokens } = await inspect("answers", { ...inspectionInput(model), top_k: 1 });
  const kinds = {};
  for (const site of sites) if (!capability || site[capability] !== false) (kinds[site.kind] ??= []).push(site);
  const kind = kinds[state.kind] ? state.kind : kinds.cross ? "cross" : Object.keys(kinds)[0];
  const layers = kinds[kind] ?? [];
  const site = layers.find(({ layer }) => layer === state.layer) ?? layers.at(-1) ?? null;
  const head = Math.max(0, Math.min(state.head, (site?.heads ?? 1) - 1));
  return { kinds, kind, layers, site, tokens, layer: site?.layer, head };
}

/** Name the rows of an attention map by decoder step; `shortRows` are shorter names for small screens. */
export function nameRows(result) {
  const { after, predicting } = result;
  if (!predicting.length) return result;
  const names = (format) => predicting.map((next, i) => format(after[i], next));
  return {
    ...result,
    rows: names((last, next) => `after ${last}, predicting ${next}`),
    shortRows: names((last, next) => `${last} → ${next}`),
  };
}

/** Field for the attention type, if there are several. */
export function typeField({ kinds, kind }) {
  const names = Object.keys(kinds);
  const select = (value) => setState({ kind: value, layer: -1, head: 0, token: -1, off: "" });
  const options = names.map((name) => [name, ATTENTION_TYPES[name]]);
  return names.length > 1 ? selectField("Attention type", options, kind, select) : null;
}

/** Fields for attention type, layer and head. */
export function siteFields(sites) {
  const { layers, site, layer, head } = sites;
  const numbers = layers.map((one) => [one.layer, String(one.layer)]);
  const heads = Array.from({ length: site?.heads ?? 0 }, (_, i) => [i, String(i)]);
  return [
    typeField(sites),
    selectField("Layer", numbers, layer, (value) => setState({ layer: Number(value) })),
    selectField("Head", heads, head, (value) => setState({ layer, head: Number(value) })),
  ];
}
