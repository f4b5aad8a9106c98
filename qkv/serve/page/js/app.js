// Entry point: theme, model list, tabs, and the view selected in the URL.
import { apiKey, request } from "./api.js";
import { resetColours } from "./colour.js";
import { errorMessage, h, markOverflow, render } from "./dom.js";
import { mountInput } from "./input.js";
import { mainTask, summaryOf } from "./models.js";
import { DEFAULTS, correctState, readHash, setState, state, subscribe } from "./state.js";
import { OLD_IDS, views } from "./views/index.js";

const byId = (id) => document.getElementById(id);
const page = { models: [], limits: {}, run: null, run_model: null, view: null, model: null, updateInput: null };

// --- theme

const THEMES = [
  ["", "◐", "system"],
  ["light", "☀", "light"],
  ["dark", "☾", "dark"],
];

function setupTheme() {
  const button = byId("theme");
  const theme = document.documentElement.dataset.theme ?? "";
  const i = THEMES.findIndex(([name]) => name === theme);
  button.textContent = THEMES[i][1];
  button.setAttribute("aria-label", `Theme: ${THEMES[i][2]}`);
  button.title = `Theme: ${THEMES[i][2]}`;
  button.onclick = () => {
    const [next] = THEMES[(i + 1) % THEMES.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("qkv-theme", next);
    repaint();
    setupTheme();
  };
}

function repaint() {
  resetColours();
  showView(true);
}

// --- model list and tabs

/** Entry of the training run in the model list, if none of the models comes from it. */
const runEntry = () => (page.run && !page.run_model ? `Run ${page.run}` : null);
/** Selected model; null if there is none or the run is selected. */
const selectedModel = () =>
  page.models.find((model) => model.name === state.model) ??
  (state.model && state.model === runEntry() ? null : (page.models[0] ?? null));

function setupModelList() {
  const list = byId("model");
  const names = [...page.models.map((model) => model.name), runEntry()].filter(Boolean);
  render(
    list,
    names.map((name) => h("option", { value: name }, name)),
  );
  list.parentElement.hidden = !page.models.length;
  list.onchange = () => setState({ ...DEFAULTS, as: state.as, image: null, model: list.value }, true);
}

/** Views of the selected model; embeddings come first if the model has no other task. */
function supportedViews() {
  const supported = views.filter((view) => view.supports(selectedModel(), page));
  const rank = (view) => (view.id === "embeddings" && !mainTask(selectedModel()) ? 0 : 1);
  return supported.sort((a, b) => rank(a) - rank(b));
}

/** Replace a model or view that does not exist by an existing one; return a notice for the user. */
function correctAddress() {
  if (OLD_IDS[state.view]) correctState({ view: OLD_IDS[state.view] });
  const [name, id] = [state.model, state.view];
  const notices = [];
  if (id === "training" && !name && !page.run_model && runEntry()) correctState({ model: runEntry() });
  else if (name && name !== runEntry() && !page.models.some((model) => model.name === name)) {
    notices.push(`Model “${name}” not found${selectedModel() ? `; showing “${page.models[0].name}”` : ""}.`);
    correctState({ model: "" });
  }
  const supported = supportedViews();
  if (id && supported.length && !supported.some((view) => view.id === id)) {
    const model = selectedModel() ? ` for “${selectedModel().name}”` : "";
    notices.push(`View “${id}” is not available${model}; showing “${supported[0].title(selectedModel())}”.`);
    correctState({ view: "" });
  }
  return notices.join(" ");
}

function showNotice(text) {
  const close = h("button.plain", { type: "button", "aria-label": "Close", onclick: () => showNotice("") }, "×");
  render(byId("notice"), text ? [h("span.grow", text), close] : null);
}

function showTabs(current) {
  const supported = supportedViews();
  const tab = (view) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${view.id}`,
        "aria-controls": "panel",
        "aria-selected": view === current,
        tabindex: view === current ? "0" : "-1",
        onclick: () => setState({ view: view.id }, true),
      },
      view.title(selectedModel()),
    );
  const bar = byId("tabs");
  const hadFocus = bar.contains(document.activeElement);
  render(bar, supported.map(tab));
  bar.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setState({ view: supported[(supported.indexOf(current) + step + supported.length) % supported.length].id }, true);
  };
  const selected = byId(`tab-${current.id}`);
  if (hadFocus) selected.focus();
  selected.scrollIntoView({ block: "nearest", inline: "nearest" });
  byId("panel").setAttribute("aria-labelledby", `tab-${current.id}`);
}

// --- view

/** Set the window title and the heading: view, then model or run. */
function setTitle(view) {
  const name = selectedModel()?.name ?? (page.run && `Run ${page.run}`);
  byId("heading").textContent = [view.title(selectedModel()), name].filter(Boolean).join(" · ");
  document.title = `${byId("heading").textContent} · qkv`;
}

/** Show the view that the state selects; it is mounted again when the view, the model or the theme changes. */
function showView(remount = false, changed = new Set()) {
  const supported = supportedViews();
  const view = supported.find(({ id }) => id === state.view) ?? supported[0];
  if (!view) return void render(byId("panel"), errorMessage(new Error("This server has no models and no training run.")));
  const replaced = view !== page.view || selectedModel() !== page.model;
  if (remount || replaced) {
    page.unmount?.();
    setTitle(view);
    if (replaced) showTabs(view);
    page.view = view;
    page.model = selectedModel();
    mountView(view);
  }
  page.update?.(remount || replaced ? null : changed);
}

function mountView(view) {
  const root = h(`div.view.view-${view.id}`);
  render(byId("panel"), root);
  byId("input").hidden = !view.usesInput || !page.model;
  byId("input").classList.toggle("for-generation", Boolean(view.generates));
  page.update = view.mount(root, {
    model: page.model,
    limits: page.limits,
    run: page.run,
    onUnmount: (callback) => (page.unmount = callback),
  });
}

function update(changed) {
  if (changed.has("model") || changed.has("view")) showNotice("");
  if (changed.has("model") || !page.updateInput) {
    const model = selectedModel();
    byId("model").value = model?.name ?? runEntry() ?? "";
    const part = ({ text, more = "" }, i) => h("span", i ? " · " : "", text, h("span.desktop-only", more));
    render(byId("model-summary"), model ? summaryOf(model).map(part) : null);
    page.updateInput = model && mountInput(byId("input"), model, page.limits);
  }
  showView(false, changed);
  page.updateInput?.(); // after the view: the height of a field can only be measured while it is visible
}

// --- start

async function start() {
  setupTheme();
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault(); // following the link would replace the state in the hash
    byId("panel").focus();
  };
  markOverflow(byId("tabs"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  try {
    Object.assign(page, await request("/api/models"));
  } catch (error) {
    return error.status === 401 ? showKeyForm() : void render(byId("panel"), errorMessage(error));
  }
  setupModelList();
  subscribe(update);
  const open = (changed) => {
    const notice = correctAddress();
    update(changed);
    showNotice(notice);
  };
  addEventListener("popstate", () => readHash() && open(new Set(Object.keys(DEFAULTS)))); // "back", or another hash
  readHash();
  open(new Set(["model"]));
}

function showKeyForm() {
  const field = h("input", {
    type: "password",
    autocomplete: "current-password",
    required: true,
    "aria-label": "API key",
  });
  const form = h(
    "form.card.key",
    h("h2", "This server requires an API key"),
    h("p.quiet", "Request a key from the server's administrator. It is stored until this tab is closed."),
    h("div.row", field, h("button.main", { type: "submit" }, "Continue")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apiKey.set(field.value.trim());
    start();
  });
  render(byId("panel"), apiKey.get() ? errorMessage(new Error("Invalid API key.")) : null, form);
  field.focus();
}

start();
