// What the page shows, kept in the address: a link to it shows the same.

export const START = {
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
const OWN = ["layer", "head", "token", "step"]; // whole numbers
const listeners = [];
const MOST = 4000; // characters of a text that go into the address

export const state = { ...START, image: null }; // a picture is not in the address

export function listen(work) {
  listeners.push(work);
}

/** Change some of it. `step` says that "back" should come back here. */
export function set(changes, step = false) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  history[step ? "pushState" : "replaceState"](null, "", address());
  for (const work of listeners) work(new Set(changed));
}

/** Put right what cannot be shown; nobody is told, and "back" does not come back to it. */
export function correct(changes) {
  Object.assign(state, changes);
  history.replaceState(null, "", address());
}

export function address() {
  const kept = new URLSearchParams();
  for (const [name, start] of Object.entries(START)) {
    const value = state[name];
    if (value !== start && String(value).length <= MOST) kept.set(name, value);
  }
  return `#${kept}`;
}

/** Read the address into the state; true if anything is other than before. */
export function read() {
  const found = new URLSearchParams(location.hash.slice(1));
  let other = false;
  for (const [name, start] of Object.entries(START)) {
    const given = found.get(name) ?? start;
    const value = OWN.includes(name) ? (Number.isInteger(Number(given)) ? Number(given) : start) : String(given);
    other ||= state[name] !== value;
    state[name] = value;
  }
  return other;
}

/** Heads that are switched off: "0.1,1.3" <-> [[0, 1], [1, 3]]. */
export const heads = {
  read: (text) =>
    text
      .split(",")
      .filter(Boolean)
      .map((one) => one.split(".").map(Number))
      .filter((one) => one.length === 2 && one.every(Number.isInteger)),
  write: (list) =>
    list
      .map((one) => one.join("."))
      .sort()
      .join(","),
};
