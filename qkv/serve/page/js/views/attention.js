// Attention: all heads at a glance, one of them as a matrix, as lines from word to word, or on the picture.
import { look } from "../api.js";
import { paint, share } from "../colour.js";
import { busy, clear, empty, failed, h, number, pick, segments } from "../dom.js";
import { subject } from "../input.js";
import { lines } from "../lines.js";
import { legend, matrix } from "../matrix.js";
import { attends, KINDS, sees } from "../models.js";
import { onPicture, patches } from "../picture.js";
import { set, state } from "../state.js";

export const attention = {
  id: "attention",
  title: () => "Attention",
  fits: (model) => model !== null && attends(model),
  reads: true,
  mount,
};

/** Which attention there is: {kind: [{layer, heads}]}, and the chosen part of it. */
export async function sitesOf(model) {
  const { sites, tokens, source } = await look("answers", subject(model));
  const kinds = {};
  for (const { kind, layer, heads } of sites) (kinds[kind] ??= []).push({ layer, heads });
  const kind = kinds[state.kind] ? state.kind : kinds.cross ? "cross" : Object.keys(kinds)[0];
  const own = kinds[kind] ?? [];
  const site = own.find((one) => one.layer === state.layer) ?? own.at(-1);
  return {
    kinds,
    kind,
    own,
    tokens,
    source,
    layer: site?.layer,
    head: Math.max(0, Math.min(state.head, (site?.heads ?? 1) - 1)),
  };
}

/** Pickers of kind, layer and head. */
export function pickers({ kinds, kind, own, layer, head }) {
  const heads = own.find((one) => one.layer === layer)?.heads ?? 0;
  const several = Object.keys(kinds).length > 1;
  return [
    several
      ? pick(
          "Who looks at whom",
          Object.keys(kinds).map((one) => [one, KINDS[one]]),
          kind,
          (value) => set({ kind: value, layer: -1, head: 0, token: -1, off: "" }),
        )
      : null,
    pick(
      "Layer",
      own.map((one) => [one.layer, String(one.layer)]),
      layer,
      (value) => set({ layer: Number(value) }),
    ),
    pick(
      "Head",
      Array.from({ length: heads }, (_, i) => [i, String(i)]),
      head,
      (value) => set({ layer, head: Number(value) }),
    ),
  ];
}

function mount(root, { model }) {
  let asked = 0;
  const bar = h("div.toolbar");
  const all = h("section.card");
  const one = h("section.card.wide-card");
  clear(root, bar, h("div.overview-and-one", all, one));

  async function update(changed) {
    if (
      changed &&
      !["text", "target", "image", "kind", "layer", "head", "as", "token"].some((name) => changed.has(name))
    )
      return;
    const mine = ++asked;
    if (!subject(model))
      return void (clear(bar),
      clear(all),
      clear(one, empty("There is nothing to look at yet: write something above.")));
    if (!changed) clear(one, busy());
    try {
      const where = await sitesOf(model);
      if (mine !== asked) return;
      toolbar(where);
      const map = await mapOf(where.kind, where.layer);
      if (mine !== asked) return;
      show(map, where);
      await overview(where, () => mine === asked, changed);
    } catch (error) {
      if (mine === asked) clear(one, failed(error));
    }
  }

  const mapOf = (kind, layer) => look("attention", { ...subject(model), kind, layer });

  function toolbar(where) {
    const held = bar.contains(document.activeElement)
      ? [...bar.querySelectorAll("select, button")].indexOf(document.activeElement)
      : -1;
    const styles = [["matrix", "Matrix"], ["lines", "Lines"], ...(sees(model) ? [["picture", "On the picture"]] : [])];
    clear(
      bar,
      pickers(where),
      segments("Shown as", styles, state.as, (value) => set({ as: value })),
    );
    if (held >= 0) bar.querySelectorAll("select, button")[held]?.focus();
  }

  // --- one head

  function show(map, { layer, head }) {
    const values = map.weights[map.heads.indexOf(head)] ?? map.weights[0];
    const row = state.token >= 0 && state.token < map.rows.length ? state.token : -1;
    const choose = (i) => set({ token: i === state.token ? -1 : i });
    const given = {
      rows: map.rows,
      columns: map.columns,
      values,
      chosen: row,
      choose,
      label: `Attention of layer ${layer}, head ${head}: ${map.rows.length} rows, ${map.columns.length} columns`,
    };
    const grid = patches(map.columns);
    const body =
      state.as === "lines"
        ? lines(given)
        : state.as === "picture" && grid
          ? onPicture(given, grid, state.image)
          : matrix(given);
    const walking = h(
      "button",
      { type: "button", onclick: () => set({ view: "walk", layer, head, token: row, step: 0 }, true) },
      "Walk through this head",
    );
    clear(
      one,
      h("div.row.head", h("h2", `Layer ${layer}, head ${head}`), legend(share, "0", "1"), h("span.grow"), walking),
      h("p.quiet", "Each row is a token that looks, each column what it looks at; the weights of a row sum to 1."),
      body,
    );
  }

  // --- all heads

  async function overview({ kind, own, layer, head }, current, changed) {
    if (
      !changed ||
      ["text", "target", "image", "kind"].some((name) => changed.has(name)) ||
      !all.querySelector(".thumbs")
    ) {
      const rows = own.map((site) =>
        h(
          "div.thumb-row",
          { "data-layer": site.layer },
          h("span.quiet", String(site.layer)),
          Array.from({ length: site.heads }, (_, i) => thumb(site.layer, i)),
        ),
      );
      clear(
        all,
        h("h2", "All heads"),
        h("p.quiet", "A row for each layer. Choose a head to see it larger."),
        h("div.thumbs", rows),
        h("p.note.does"),
      );
    }
    for (const button of all.querySelectorAll(".thumb"))
      button.setAttribute("aria-pressed", button.dataset.at === `${layer}.${head}`);
    const near = [...own].sort((a, b) => Math.abs(a.layer - layer) - Math.abs(b.layer - layer));
    for (const site of near) {
      const undone = all.querySelector(`.thumb-row[data-layer="${site.layer}"] canvas[data-empty]`);
      if (!undone) continue;
      const map = await mapOf(kind, site.layer);
      if (!current()) return;
      map.heads.forEach((i, n) => {
        const canvas = all.querySelector(`[data-at="${site.layer}.${i}"] canvas`);
        if (canvas) paint(canvas, map.weights[n], share).removeAttribute("data-empty");
      });
    }
    if (kind !== "cross" && !sees(model)) await does(kind, layer, head, current);
  }

  function thumb(layer, i) {
    return h(
      "button.thumb",
      {
        type: "button",
        "data-at": `${layer}.${i}`,
        "aria-label": `Layer ${layer}, head ${i}`,
        title: `layer ${layer}, head ${i}`,
        onclick: () => set({ layer, head: i }),
      },
      h("canvas", { "data-empty": "yes", width: "1", height: "1" }),
    );
  }

  /** What the chosen head does on average, in words. */
  async function does(kind, layer, head, current) {
    const note = all.querySelector(".does");
    try {
      const found = await look("heads", { ...subject(model), kind });
      if (!current()) return;
      const row = found.layers.indexOf(layer);
      const of = (name) => found.statistics[name]?.[row]?.[head];
      const named = [
        ["previous", "the token before"],
        ["next", "the token after"],
        ["itself", "itself"],
        ["first", "the first token"],
        ["last", "the last token"],
        ["same", "the same word elsewhere"],
        ["induction", "what followed this word before"],
      ];
      const best = named
        .map(([name, text]) => [of(name) ?? 0, text])
        .sort((a, b) => b[0] - a[0])
        .slice(0, 2);
      clear(
        note,
        h("b", `Head ${layer}.${head}`),
        ` looks at ${best.map(([x, text]) => `${text} ${number(x, 2)}`).join(", ")} on average here; its weights spread over ${number(Math.exp(of("entropy")), 1)} tokens.`,
      );
    } catch {
      clear(note);
    }
  }

  return update;
}
