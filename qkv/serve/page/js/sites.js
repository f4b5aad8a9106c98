// Where a model attends: the kinds, layers and heads of one input, and lists to choose them from.
import { look } from "./api.js";
import { pick } from "./dom.js";
import { subject } from "./input.js";
import { KINDS } from "./models.js";
import { set, state } from "./state.js";

/** Of the sites that can do what is wanted ("weighs": they have weights to show; "walks": they can be walked through):
 * {kinds: {kind: [site]}}, and the chosen one of them. */
export async function sitesOf(model, wanted) {
  const { sites, tokens } = await look("answers", { ...subject(model), top_k: 1 });
  const kinds = {};
  for (const site of sites) if (!wanted || site[wanted] !== false) (kinds[site.kind] ??= []).push(site);
  const kind = kinds[state.kind] ? state.kind : kinds.cross ? "cross" : Object.keys(kinds)[0];
  const own = kinds[kind] ?? [];
  const site = own.find((one) => one.layer === state.layer) ?? own.at(-1) ?? null;
  return {
    kinds,
    kind,
    own,
    site,
    tokens,
    layer: site?.layer,
    head: Math.max(0, Math.min(state.head, (site?.heads ?? 1) - 1)),
  };
}

/** An attention map or a walk with its rows named as the page names tokens; `brief` are their names where there is little room. */
export function named(found) {
  const { after, predicting } = found;
  if (!predicting.length) return found;
  const each = (text) => predicting.map((next, i) => text(after[i], next));
  return {
    ...found,
    rows: each((last, next) => `after ${last}, predicting ${next}`),
    brief: each((last, next) => `${last} → ${next}`),
  };
}

/** A list of the kinds, where there are several. */
export function kindPicker({ kinds, kind }) {
  const names = Object.keys(kinds);
  const take = (value) => set({ kind: value, layer: -1, head: 0, token: -1, off: "" });
  const options = names.map((one) => [one, KINDS[one]]);
  return names.length > 1 ? pick("Attention type", options, kind, take) : null;
}

/** Lists of kind, layer and head. */
export function pickers(where) {
  const { own, site, layer, head } = where;
  const layers = own.map((one) => [one.layer, String(one.layer)]);
  const heads = Array.from({ length: site?.heads ?? 0 }, (_, i) => [i, String(i)]);
  return [
    kindPicker(where),
    pick("Layer", layers, layer, (value) => set({ layer: Number(value) })),
    pick("Head", heads, head, (value) => set({ layer, head: Number(value) })),
  ];
}
