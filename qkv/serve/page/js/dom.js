// Elements from plain calls. Text only ever becomes text: nothing from a model or a user is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("button.plain", {onclick: f, "aria-pressed": true}, "text", child, [more]) -> element. */
export function h(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  return fill(document.createElement(tag), classes, rest);
}

/** The same in SVG. */
export function s(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  return fill(document.createElementNS(SVG, tag), classes, rest);
}

function fill(element, classes, rest) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const [first, ...others] = rest;
  const given = first && first.constructor === Object ? first : null;
  for (const [key, value] of Object.entries(given ?? {})) set(element, key, value);
  append(element, given ? others : rest);
  return element;
}

function set(element, key, value) {
  if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (key === "style") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
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

export function clear(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Make a part of the page anew: what had the focus, known by its data-keep, has it again. */
export function keeping(root, work) {
  const before = root.contains(document.activeElement) ? document.activeElement.dataset.keep : undefined;
  work();
  if (before === undefined) return;
  const again = root.querySelector(`[data-keep="${CSS.escape(before)}"]:not(:disabled)`);
  const instead = root.querySelector("[aria-current]") ?? root.querySelector("button:not(:disabled), [tabindex='0']");
  (again ?? instead)?.focus({ preventScroll: true });
}

/** Hear where a pointer is: a mouse that moves, a finger that taps. */
export function pointed(element, work) {
  for (const name of ["pointermove", "pointerdown"]) element.addEventListener(name, work);
}

/** A labelled list to choose from: options are [value, text]. */
export function pick(label, options, value, change) {
  const list = h(
    "select",
    { "data-keep": label, onchange: () => change(list.value) },
    options.map(([v, text]) => h("option", { value: v }, text)),
  );
  list.value = String(value);
  return h("label.field", h("span", label), list);
}

/** A few buttons of which one is on. */
export function segments(label, options, value, change) {
  const one = ([v, text]) =>
    h(
      "button",
      { type: "button", "data-keep": `${label} ${v}`, "aria-pressed": v === value, onclick: () => change(v) },
      text,
    );
  return h(
    "div.field",
    h("span", { "aria-hidden": "true" }, label),
    h("div.segments", { role: "group", "aria-label": label }, options.map(one)),
  );
}

export const number = (x, digits = 3) =>
  x === null || x === undefined ? "−∞" : x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"); // no "−0.00"

export const percent = (p) =>
  p >= 0.9995
    ? "100 %"
    : p >= 0.0995
      ? `${(100 * p).toFixed(0)} %`
      : p >= 0.001
        ? `${(100 * p).toFixed(1)} %`
        : "< 0.1 %";

/** Answers with their probabilities, as bars; with `choose` they can be clicked. */
export function bars(rows, choose = null) {
  const line = ({ text, probability, note, on, below }, i) => {
    const inside = [
      h("span.bar-name", text),
      h("span.bar-track", h(`span.bar-fill${below ? ".below" : ""}`, { style: { width: `${Math.max(0.5, 100 * probability)}%` } })),
      h("span.bar-number", note ?? percent(probability)),
    ];
    if (!choose) return h("li.bar", inside);
    return h(
      "li",
      h("button.bar", { type: "button", "aria-current": on ? "true" : null, onclick: () => choose(i) }, inside),
    );
  };
  return h("ol.bars", rows.map(line));
}

/** States of a view that has nothing to show. */
export const busy = (text = "Computing…") => h("p.state.busy", { role: "status" }, text);
export const empty = (...words) => h("p.state", ...words);
export const failed = (error) => h("p.state.bad", { role: "alert" }, error.message || String(error));

/** Tell the style sheet on which sides a box that scrolls goes on, for it to fade there: data-more="left right above below". */
export function edges(box) {
  const mark = () => {
    const { scrollLeft: x, scrollTop: y } = box;
    const sides = {
      left: x > 1,
      right: x + box.clientWidth < box.scrollWidth - 1,
      above: y > 1,
      below: y + box.clientHeight < box.scrollHeight - 1,
    };
    box.dataset.more = Object.keys(sides).filter((side) => sides[side]).join(" ");
    if (box.dataset.more && !box.querySelector("a, button, input, select, [tabindex]")) box.tabIndex = 0; // to scroll by keys
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  new MutationObserver(mark).observe(box, { childList: true, subtree: true });
  return box;
}

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** One tab stop for all parts of a box that a selector finds: the one that had the focus last, or the chosen one. The arrow keys
 * move among them as they stand on the screen. */
export function roving(box, selector) {
  const all = () => [...box.querySelectorAll(selector)];
  const stop = (one) => all().forEach((other) => (other.tabIndex = other === one ? 0 : -1));
  const renew = () => {
    const [parts, now] = [all(), document.activeElement];
    stop(parts.includes(now) ? now : (parts.find((one) => one.ariaPressed === "true") ?? parts[0]));
  };
  box.addEventListener("focusin", renew);
  box.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    const next = step && event.target.matches(selector) && beside(event.target, all(), step);
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  });
  new MutationObserver(renew).observe(box, { childList: true, subtree: true, attributeFilter: ["aria-pressed"] });
  renew();
  return box;
}

/** The nearest of some elements in a direction [across, down]; undefined where there is none. */
function beside(own, all, [across, down]) {
  const middle = (one) => {
    const { left, top, width, height } = one.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = middle(own);
  const { width, height } = own.getBoundingClientRect();
  const far = (one) => {
    const [dx, dy] = [middle(one)[0] - x, middle(one)[1] - y];
    if (across) return dx * across > 1 && Math.abs(dy) < height / 2 ? Math.abs(dx) : Infinity;
    return dy * down > height / 2 ? Math.abs(dy) * 100 + Math.max(0, Math.abs(dx) - width / 2) : Infinity;
  };
  return all.filter((one) => far(one) < Infinity).sort((a, b) => far(a) - far(b))[0];
}

const FADED = { across: 40, down: 24 }; // pixels at the edges of a box that fade where it goes on

/** Scroll a box, and nothing else, as little as needed to have a part of it ({left, top, width, height} on the screen) in sight;
 * `covered`: how much of its left and top stays in place over what is scrolled. */
export function reveal(box, part, covered = { left: 0, top: 0 }) {
  const own = box.getBoundingClientRect();
  const nearest = (now, room, at, size, margin, before) => {
    const [first, last] = [at + now - before - margin, at + now + size + margin - room];
    return Math.max(0, first < now ? first : last > now ? Math.min(last, first) : now);
  };
  const { across, down } = FADED;
  box.scrollLeft = nearest(box.scrollLeft, box.clientWidth, part.left - own.left, part.width, across, covered.left);
  box.scrollTop = nearest(box.scrollTop, box.clientHeight, part.top - own.top, part.height, down, covered.top);
}

/** The same for what is chosen in a box: where the box was scrolled down by `before` when it was last made it stays there, if it
 * can; else what is chosen is in its middle. */
export function revealChosen(box, before = null) {
  box.scrollTop = before ?? 0;
  const on = box.querySelector(".on, [aria-pressed=true]")?.getBoundingClientRect();
  if (!on || box.scrollHeight <= box.clientHeight) return;
  if (before !== null) return void reveal(box, on);
  box.scrollTop = on.top - box.getBoundingClientRect().top - (box.clientHeight - on.height) / 2;
}

/** How many things stand in a row where at most so many fit: all rows alike. */
export const even = (count, most) => Math.ceil(count / Math.ceil(count / most));

/** Calls a function when calls have stopped coming for so long. */
export function later(milliseconds, work) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}
