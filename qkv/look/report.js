// Draws the pictures of the report from the numbers beside them: tables of colours and rows of bars.
const make = (tag, content = "", attributes = {}) => {
  const one = Object.assign(document.createElement(tag), attributes);
  one.append(...[content].flat());
  return one;
};
const told = (x) => (x === null ? "none" : Number(x.toPrecision(3)).toString());

/** The largest size of some numbers, by which they are coloured. */
const reach = (rows) => rows.flat().reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 0) || 1;

function cell(x, most, word) {
  const one = make("td", word ?? "", { className: x < 0 ? "less" : "" });
  one.style.setProperty("--share", Math.min(1, Math.abs(x ?? 0) / most).toFixed(3));
  return one;
}

function grid(d, values) {
  const most = reach(values);
  const head = make("tr", [make("th"), ...d.columns.map((name) => make("th", make("span", name, { className: "name" }), { scope: "col" }))]);
  const rows = d.rows.map((name, i) => make("tr", [make("th", name, { scope: "row" }), ...values[i].map((x, j) => cell(x, most, d.words?.[i][j]))]));
  return [make("table", [make("thead", head), make("tbody", rows)], { className: form(d) }), most];
}

/** Names of columns stand upright where there is room; cells without words are small where they are many. */
function form(d) {
  if (d.words) return "flat";
  if (d.columns.length > 32) return "many";
  return d.columns.every((name) => name.length <= 3) ? "flat" : "";
}

function table(d) {
  const names = Object.keys(d.panels);
  const place = make("div", "", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: d.title });
  const scale = make("div", "", { className: "scale" });
  const said = make("output", "Point at a cell for its number.");
  const menu = make("select", names.map((name) => make("option", name)), { ariaLabel: "Which table" });
  const show = () => {
    const values = d.panels[menu.value || names[0]];
    const [drawn, most] = grid(d, values);
    const both = values.flat().some((x) => x < 0);
    place.replaceChildren(drawn);
    scale.replaceChildren(told(both ? -most : 0), make("span", "", { className: "key" }), told(most));
    scale.classList.toggle("both", both);
  };
  const point = (event) => {
    const at = event.target.closest("td");
    if (!at) return;
    const [i, j] = [at.parentElement.sectionRowIndex, at.cellIndex - 1];
    const word = d.words ? ` ${d.words[i][j]}` : "";
    said.textContent = `${d.down ? d.down + " " : ""}${d.rows[i]} · ${d.across ? d.across + " " : ""}${d.columns[j]}:${word} ${told(d.panels[menu.value || names[0]][i][j])}`;
  };
  for (const kind of ["pointerover", "click"]) place.addEventListener(kind, point);
  menu.addEventListener("change", show);
  show();
  const axes = [d.down && `rows: ${d.down}s`, d.across && `columns: ${d.across}s`].filter(Boolean).join(", ");
  return [...(names.length > 1 ? [menu] : []), place, make("div", [scale, axes], { className: "scale" }), said];
}

function bars(d) {
  const most = reach([d.values]);
  const rows = d.names.map((name, i) => {
    const bar = make("i", "", { className: d.values[i] < 0 ? "less" : "" });
    bar.style.width = `${(16 * Math.abs(d.values[i] ?? 0)) / most}em`;
    return make("tr", [make("th", name, { scope: "row" }), make("td", [bar, told(d.values[i])])]);
  });
  return [make("div", make("table", make("tbody", rows), { className: "bars" }), { className: "scroll" })];
}

for (const source of document.querySelectorAll('script[type="application/json"]')) {
  const d = JSON.parse(source.textContent);
  source.after(make("h3", d.title), ...(d.values ? bars(d) : table(d)));
}

// how large a photograph of the page must be
const widest = Math.max(...[...document.querySelectorAll(".scroll")].map((one) => one.scrollWidth), 0);
document.documentElement.dataset.size = `${Math.max(1000, widest + 80)} ${document.documentElement.scrollHeight}`;
