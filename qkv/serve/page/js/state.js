// State of the page, stored in the URL hash: a link reproduces what is shown.

export const DEFAULTS = {
  model: "",
  view: "",
  text: "",
  pair: "",
  target: "",
  kind: "",
  layer: -1,
  head: 0,
  token: -1,
  step: 0,
  as: "matrix",
  off: "",
};
const INTEGERS = ["layer", "head", "token", "step"];
const MAX_LENGTH = 4000; // longer values are left out of the hash
const listeners = [];

export const state = { ...DEFAULTS, image: null }; // an image is too large for the hash

export function subscribe(listener) {
  listeners.push(listener);
}

/** Change the state and notify the listeners; `push` adds an entry to the browser history. */
export function setState(changes, push = false) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  history[push ? "pushState" : "replaceState"](null, "", toHash());
  for (const listener of listeners) listener(new Set(changed));
}

/** Change the state without notifying the listeners, in the current history entry. */
export function correctState(changes) {
  Object.assign(state, changes);
  history.replaceState(null, "", toHash());
}

function toHash() {
  const entries = new URLSearchParams();
  for (const [name, initial] of Object.entries(DEFAULTS)) {
    const value = state[name];
    if (value !== initial && String(value).length <= MAX_LENGTH) entries.set(name, value);
  }
  return `#${entries}`;
}

/** Read the hash into the state; return whether anything has changed. */
export function readHash() {
  const entries = new URLSearchParams(location.hash.slice(1));
  let changed = false;
  for (const [name, initial] of Object.entries(DEFAULTS)) {
    const text = entries.get(name) ?? initial;
    const value = INTEGERS.includes(name) ? (Number.isInteger(Number(text)) ? Number(text) : initial) : String(text);
    changed ||= state[name] !== value;
    state[name] = value;
  }
  return changed;
}

/** Ablated heads as text: "0.1,1.3" <-> [[0, 1], [1, 3]]. */
export const headList = {
  parse: (text) =>
    text
      .split(",")
      .filter(Boolean)
      .map((head) => head.split(".").map(Number))
      .filter((head) => head.length === 2 && head.every(Number.isInteger)),
  format: (heads) =>
    heads
      .map((head) => head.join("."))
      .sort()
      .join(","),
};
