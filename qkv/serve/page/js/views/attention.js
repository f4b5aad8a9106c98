// Attention: all heads at a glance, one of them as a matrix, as lines from word to word, or on the picture.
import { look } from "../api.js";
import { share } from "../colour.js";
import { busy, clear, empty, failed, h, keeping, revealChosen, segments } from "../dom.js";
import { SUBJECT, missing, subject } from "../input.js";
import { lines } from "../lines.js";
import { legend, matrix } from "../matrix.js";
import { attends, sees } from "../models.js";
import { Overview } from "../overview.js";
import { onPicture, patches } from "../picture.js";
import { named, pickers, sitesOf } from "../sites.js";
import { set, state } from "../state.js";

export const attention = {
  id: "attention",
  title: () => "Attention",
  fits: (model) => model !== null && attends(model),
  reads: true,
  mount: (root, page) => {
    const own = new Attention(root, page);
    return (changed) => own.update(changed);
  },
};

const TOKENS = "Each row is a query token, each column a key token.";
const STEPS =
  "Each row is a step of the decoder, named by the token that was read last and the one that is predicted; each column is a key token.";
const HEARD = [...SUBJECT, "kind", "layer", "head", "as", "token"];

class Attention {
  constructor(root, { model }) {
    [this.model, this.asked, this.cursor] = [model, 0, { at: null }];
    [this.bar, this.one] = [h("div.toolbar"), h("section.card.wide-card")];
    this.overview = new Overview(model);
    clear(root, this.bar, h("div.overview-and-one", this.overview.card, this.one));
  }

  async update(changed) {
    if (changed && !HEARD.some((name) => changed.has(name))) return;
    const mine = ++this.asked;
    const current = () => mine === this.asked;
    const anew = !changed || [...SUBJECT, "kind"].some((name) => changed.has(name));
    if (anew) Object.assign(this.cursor, { at: null, scrolled: null });
    if (missing(this.model)) return void this.nothing(missing(this.model));
    if (!changed) clear(this.one, busy());
    try {
      const where = await sitesOf(this.model, "weighs");
      if (!current()) return;
      if (!where.site) return void this.nothing(empty("No layer of this model has attention weights to show."));
      this.toolbar(where);
      const { kind, layer } = where;
      const map = named(await look("attention", { ...subject(this.model), kind, layer }));
      if (!current()) return;
      const list = () => this.one.querySelector(".lines-scroll, .word-list");
      const scrolled = list()?.scrollTop;
      keeping(this.one, () => this.show(map, where));
      if (list()) revealChosen(list(), scrolled);
      await this.overview.update(where, current, anew);
    } catch (error) {
      if (current()) this.nothing(failed(error)); // nor the heads of another text
    }
  }

  nothing(why) {
    clear(this.bar);
    clear(this.overview.card);
    clear(this.one, why);
  }

  toolbar(where) {
    const styles = [["matrix", "Matrix"], ["lines", "Lines"]];
    if (sees(this.model)) styles.push(["picture", "On the picture"]);
    const shape = segments("Show as", styles, state.as, (value) => set({ as: value }));
    keeping(this.bar, () => clear(this.bar, pickers(where), shape));
  }

  show(map, { site, layer, head }) {
    const row = state.token >= 0 && state.token < map.rows.length ? state.token : -1;
    const given = {
      rows: map.rows,
      brief: map.brief,
      columns: map.columns,
      values: map.weights[map.heads.indexOf(head)] ?? map.weights[0],
      chosen: row,
      choose: (i) => set({ token: i === state.token ? -1 : i }),
      cursor: this.cursor,
      label: `Attention of layer ${layer}, head ${head}: ${map.rows.length} rows, ${map.columns.length} columns`,
    };
    const walk = () => set({ view: "walk", layer, head, token: row, step: 0 }, true);
    const walking = site.walks === false ? null : h("button", { type: "button", onclick: walk }, "Walk through this head");
    clear(
      this.one,
      h("div.row.head", h("h2", `Layer ${layer}, head ${head}`), legend(share, "0", "1"), h("span.grow"), walking),
      h("p.quiet", `${map.predicting.length ? STEPS : TOKENS} The weights of a row sum to 1.`),
      pictured(given),
    );
  }
}

/** One head, as the reader wants to see it. */
function pictured(given) {
  const grid = patches(given.columns);
  if (state.as === "lines") return lines(given);
  return state.as === "picture" && grid ? onPicture(given, grid, state.image) : matrix(given);
}
