// The page: one input, some views of what the model does with it.
import { ask, key } from "./api.js";
import { refresh } from "./colour.js";
import { clear, edges, failed, h } from "./dom.js";
import { input } from "./input.js";
import { about, main } from "./models.js";
import { START, correct, listen, read, set, state } from "./state.js";
import { views } from "./views/all.js";

const at = (id) => document.getElementById(id);
const page = { models: [], limits: {}, run: null, run_model: null, view: null, shown: null, input: null };

// --- colours

const THEMES = [
  ["", "◐", "as the system"],
  ["light", "☀", "light"],
  ["dark", "☾", "dark"],
];

function theme() {
  const button = at("theme");
  const now = document.documentElement.dataset.theme ?? "";
  const i = THEMES.findIndex(([name]) => name === now);
  button.textContent = THEMES[i][1];
  button.setAttribute("aria-label", `Colours: ${THEMES[i][2]}`);
  button.title = `Colours: ${THEMES[i][2]}`;
  button.onclick = () => {
    const [next] = THEMES[(i + 1) % THEMES.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("qkv-theme", next);
    repaint();
    theme();
  };
}

function repaint() {
  refresh();
  show(true);
}

// --- the parts of the page

/** The entry of a run in the list of models, where none of them comes from it. */
const runEntry = () => (page.run && !page.run_model ? `Run ${page.run}` : null);
/** The chosen model; null where there is none, or where the run is chosen. */
const model = () =>
  page.models.find((one) => one.name === state.model) ??
  (state.model && state.model === runEntry() ? null : (page.models[0] ?? null));

function header() {
  const list = at("model");
  const names = [...page.models.map((one) => one.name), runEntry()].filter(Boolean);
  clear(
    list,
    names.map((one) => h("option", { value: one }, one)),
  );
  list.parentElement.hidden = !page.models.length;
  list.onchange = () => set({ ...START, as: state.as, image: null, model: list.value }, true); // another model: all else anew
}

/** The views of the model; those of one that does nothing but embed begin with its embeddings. */
function fitting() {
  const found = views.filter((view) => view.fits(model(), page));
  const first = (view) => (view.id === "embeddings" && !main(model()) ? 0 : 1);
  return found.sort((a, b) => first(a) - first(b));
}

/** What the address names and this server has not, said once; the address is put right. */
function lost() {
  const [name, own] = [state.model, state.view];
  const notices = [];
  if (own === "run" && !name && !page.run_model && runEntry()) correct({ model: runEntry() });
  else if (name && name !== runEntry() && !page.models.some((one) => one.name === name)) {
    notices.push(`There is no model “${name}” here${model() ? `; showing “${page.models[0].name}”` : ""}.`);
    correct({ model: "" });
  }
  const found = fitting();
  if (own && found.length && !found.some((view) => view.id === own)) {
    const of = model() ? ` of “${model().name}”` : "";
    notices.push(`There is no view “${own}”${of}; showing “${found[0].title(model())}”.`);
    correct({ view: "" });
  }
  return notices.join(" ");
}

function notice(text) {
  const shut = h("button.plain", { type: "button", "aria-label": "Close", onclick: () => notice("") }, "×");
  clear(at("notice"), text ? [h("span.grow", text), shut] : null);
}

function tabs(own) {
  const found = fitting();
  const button = (view) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${view.id}`,
        "aria-controls": "panel",
        "aria-selected": view === own,
        tabindex: view === own ? "0" : "-1",
        onclick: () => set({ view: view.id }, true),
      },
      view.title(model()),
    );
  const bar = at("tabs");
  const within = bar.contains(document.activeElement);
  clear(bar, found.map(button));
  bar.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    set({ view: found[(found.indexOf(own) + step + found.length) % found.length].id }, true);
  };
  const chosen = at(`tab-${own.id}`);
  if (within) chosen.focus();
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
  at("panel").setAttribute("aria-labelledby", `tab-${own.id}`);
}

/** Name the place in the title of the window and in the heading: view, then model or run. */
function where(view) {
  const name = model()?.name ?? (page.run && `Run ${page.run}`);
  at("where").textContent = [view.title(model()), name].filter(Boolean).join(" · ");
  document.title = `${at("where").textContent} · qkv`;
}

/** Show the view that the state names; a view is made anew when it, the model or the colours change. */
function show(anew = false, changed = new Set()) {
  const found = fitting();
  const own = found.find((view) => view.id === state.view) ?? found[0];
  if (!own) return void clear(at("panel"), failed(new Error("This server has no model and no run to show.")));
  const other = anew || own !== page.view || model() !== page.shown;
  if (other) {
    page.drop?.();
    where(own);
    if (own !== page.view || model() !== page.shown) tabs(own);
    page.view = own;
    page.shown = model();
    const root = h(`div.view.view-${own.id}`);
    clear(at("panel"), root);
    at("input").hidden = !own.reads || !model();
    at("input").classList.toggle("to-write", Boolean(own.writes));
    page.update = own.mount(root, {
      model: model(),
      limits: page.limits,
      run: page.run,
      onDrop: (work) => (page.drop = work),
    });
  }
  page.update?.(other ? null : changed);
}

function renew(changed) {
  if (changed.has("model") || changed.has("view")) notice("");
  if (changed.has("model") || !page.input) {
    at("model").value = model()?.name ?? runEntry() ?? "";
    const part = ({ text, more = "" }, i) => h("span", i ? " · " : "", text, h("span.roomy", more));
    clear(at("about"), model() ? about(model()).map(part) : null);
    page.input = model() && input(at("input"), model(), page.limits);
  }
  show(false, changed);
  page.input?.(); // when it can be seen, it can be measured
}

// --- beginning

async function begin() {
  theme();
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault(); // following the link would replace the state in the address
    at("panel").focus();
  };
  edges(at("tabs"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  try {
    Object.assign(page, await ask("/api/models"));
  } catch (error) {
    return error.status === 401 ? askForKey() : void clear(at("panel"), failed(error));
  }
  header();
  listen(renew);
  const follow = (changed) => {
    const said = lost();
    renew(changed);
    notice(said);
  };
  const again = () => read() && follow(new Set(Object.keys(START)));
  addEventListener("popstate", again); // "back", and another address in the same page
  read();
  follow(new Set(["model"]));
}

function askForKey() {
  const field = h("input", {
    type: "password",
    autocomplete: "current-password",
    required: true,
    "aria-label": "API key",
  });
  const form = h(
    "form.card.key",
    h("h2", "This server requires an API key"),
    h("p.quiet", "Get one from whoever runs the server. The page keeps it until this tab is closed."),
    h("div.row", field, h("button.main", { type: "submit" }, "Continue")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    begin();
  });
  clear(at("panel"), key.get() ? failed(new Error("Invalid API key.")) : null, form);
  field.focus();
}

begin();
