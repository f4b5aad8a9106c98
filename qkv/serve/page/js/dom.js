// DOM helpers. Text is only ever inserted as text: nothing from a model or a user is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: h("button.plain", {onclick: f, "aria-pressed": true}, "text", child, [more]). */
export function h(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  return fill(document.createElement(tag), classes, rest);
}

/** Create an SVG element in the same way. */
export function s(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  return fill(document.createElementNS(SVG, tag), classes, rest);
}

function fill(element, classes, rest) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const [first, ...others] = rest;
  const attributes = first && first.constructor === Object ? first : null;
  for (const [key, value] of Object.entries(attributes ?? {})) setAttribute(element, key, value);
  append(element, attributes ? others : rest);
  return element;
}

function setAttribute(element, key, value) {
  if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (key === "style") for (const [name, item] of Object.entries(value)) element.style.setProperty(name, item);
  else if (key === "value" || key === "checked" || key === "selected") element[key] = value;
  else if (value === true && !key.startsWith("aria")) element.setAttribute(key, "");
  else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  else if (value === false && key.startsWith("aria")) element.setAttribute(key, "false");
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Replace the children of an element. */
export function render(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Run a function that renders a part of the page, then focus the element with the same data-focus-key as before. */
export function keepFocus(root, draw) {
  const key = root.contains(document.activeElement) ? document.activeElement.dataset.focusKey : undefined;
  draw();
  if (key === undefined) return;
  const same = root.querySelector(`[data-focus-key="${CSS.escape(key)}"]:not(:disabled)`);
  const fallback = root.querySelector("[aria-current]") ?? root.querySelector("button:not(:disabled), [tabindex='0']");
  (same ?? fallback)?.focus({ preventScroll: true });
}

/** Handle the position of a pointer: a mouse that moves or a tap. */
export function onPointer(element, handler) {
  for (const name of ["pointermove", "pointerdown"]) element.addEventListener(name, handler);
}

// --- controls

/** Labelled <select>; options are [value, text]. */
export function selectField(label, options, value, onChange) {
  const list = h(
    "select",
    { "data-focus-key": label, onchange: () => onChange(list.value) },
    options.map(([v, text]) => h("option", { value: v }, text)),
  );
  list.value = String(value);
  return h("label.field", h("span", label), list);
}

/** Labelled row of buttons, one of which is pressed. */
export function segmentedControl(label, options, value, onChange) {
  const button = ([v, text]) =>
    h(
      "button",
      { type: "button", "data-focus-key": `${label} ${v}`, "aria-pressed": v === value, onclick: () => onChange(v) },
      text,
    );
  return h(
    "div.field",
    h("span", { "aria-hidden": "true" }, label),
    h("div.segments", { role: "group", "aria-label": label }, options.map(button)),
  );
}

// --- numbers, bars and messages

export const formatNumber = (x, digits = 3) =>
  x === null || x === undefined ? "−∞" : x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"); // no "−0.00"

export const formatPercent = (p) =>
  p >= 0.9995
    ? "100 %"
    : p >= 0.0995
      ? `${(100 * p).toFixed(0)} %`
      : p >= 0.001
        ? `${(100 * p).toFixed(1)} %`
        : "< 0.1 %";

/** List of names with bars, rows {text, probability, note, selected, negative}; with `onSelect` they are buttons. */
export function barList(rows, onSelect = null) {
  const item = ({ text, probability, note, selected, negative }, i) => {
    const parts = [
      h("span.bar-name", text),
      h("span.bar-track", h(`span.bar-fill${negative ? ".negative" : ""}`, { style: { width: `${Math.max(0.5, 100 * probability)}%` } })),
      h("span.bar-number", note ?? formatPercent(probability)),
    ];
    if (!onSelect) return h("li.bar", parts);
    const current = { "aria-current": selected ? "true" : null };
    return h("li", h("button.bar", { type: "button", ...current, onclick: () => onSelect(i) }, parts));
  };
  return h("ol.bars", rows.map(item));
}

export const busyMessage = (text = "Computing…") => h("p.state.busy", { role: "status" }, text);
export const emptyMessage = (...parts) => h("p.state", ...parts);
export const errorMessage = (error) => h("p.state.bad", { role: "alert" }, error.message || String(error));

// --- scrolling and keyboard focus

/** Record on which sides a scrolling box has more content, for the style sheet: data-more="left right above below". */
export function markOverflow(box) {
  const mark = () => {
    const { scrollLeft: x, scrollTop: y } = box;
    const sides = {
      left: x > 1,
      right: x + box.clientWidth < box.scrollWidth - 1,
      above: y > 1,
      below: y + box.clientHeight < box.scrollHeight - 1,
    };
    box.dataset.more = Object.keys(sides).filter((side) => sides[side]).join(" ");
    const focusable = "a, button, input, select, [tabindex]";
    if (box.dataset.more && !box.querySelector(focusable)) box.tabIndex = 0; // to scroll with the keyboard
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  new MutationObserver(mark).observe(box, { childList: true, subtree: true });
  return box;
}

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** Make the parts of a box that match a selector one tab stop (roving tabindex): the part focused last, or the pressed one. The
 * arrow keys move between them as they are laid out on the screen. */
export function rovingFocus(box, selector) {
  const all = () => [...box.querySelectorAll(selector)];
  const setStop = (part) => all().forEach((other) => (other.tabIndex = other === part ? 0 : -1));
  const refresh = () => {
    const [parts, active] = [all(), document.activeElement];
    setStop(parts.includes(active) ? active : (parts.find((part) => part.ariaPressed === "true") ?? parts[0]));
  };
  box.addEventListener("focusin", refresh);
  box.addEventListener("keydown", (event) => {
    const direction = ARROWS[event.key];
    const next = direction && event.target.matches(selector) && nearestInDirection(event.target, all(), direction);
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  });
  new MutationObserver(refresh).observe(box, { childList: true, subtree: true, attributeFilter: ["aria-pressed"] });
  refresh();
  return box;
}

/** Nearest of some elements in a direction [across, down]; undefined if there is none. */
function nearestInDirection(origin, elements, [across, down]) {
  const centre = (element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = centre(origin);
  const { width, height } = origin.getBoundingClientRect();
  const distance = (element) => {
    const [dx, dy] = [centre(element)[0] - x, centre(element)[1] - y];
    if (across) return dx * across > 1 && Math.abs(dy) < height / 2 ? Math.abs(dx) : Infinity;
    return dy * down > height / 2 ? Math.abs(dy) * 100 + Math.max(0, Math.abs(dx) - width / 2) : Infinity;
  };
  return elements.filter((element) => distance(element) < Infinity).sort((a, b) => distance(a) - distance(b))[0];
}

const FADE = { across: 40, down: 24 }; // pixels at the edges of a scrolling box that fade out

/** Scroll a box, and nothing else, as little as needed to make a part of it ({left, top, width, height} on the screen) visible;
 * `sticky`: how much of its left and top is covered by sticky headers. */
export function scrollToPart(box, part, sticky = { left: 0, top: 0 }) {
  const bounds = box.getBoundingClientRect();
  const nearest = (current, visible, start, size, margin, covered) => {
    const [first, last] = [start + current - covered - margin, start + current + size + margin - visible];
    return Math.max(0, first < current ? first : last > current ? Math.min(last, first) : current);
  };
  const { across, down } = FADE;
  box.scrollLeft = nearest(box.scrollLeft, box.clientWidth, part.left - bounds.left, part.width, across, sticky.left);
  box.scrollTop = nearest(box.scrollTop, box.clientHeight, part.top - bounds.top, part.height, down, sticky.top);
}

/** Scroll a box to its selected part: from the previous scroll position where there is one, else to its centre. */
export function scrollToSelected(box, previous = null) {
  box.scrollTop = previous ?? 0;
  const selected = box.querySelector(".on, [aria-pressed=true]")?.getBoundingClientRect();
  if (!selected || box.scrollHeight <= box.clientHeight) return;
  if (previous !== null) return void scrollToPart(box, selected);
  box.scrollTop = selected.top - box.getBoundingClientRect().top - (box.clientHeight - selected.height) / 2;
}

/** Number of items per row, at most `most`, such that all rows are equally long. */
export const evenRowLength = (count, most) => Math.ceil(count / Math.ceil(count / most));

/** Delay a function until no call has come for some time. */
export function debounce(milliseconds, callback) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...values), milliseconds);
  };
}
