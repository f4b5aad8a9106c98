// Draw the heatmaps and bar charts of the report from the JSON in each section.
const make = (tag, content = "", attributes = {}) => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...[content].flat());
  return element;
};
const format = (x) => (x === null ? "not finite" : Number(x.toPrecision(3)).toString());

/** Largest absolute value of a table: the end of its colour scale. */
const maxAbs = (rows) => rows.flat().reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 0) || 1;

function cell(x, most, word) {
  const element = make("td", word ?? "", { className: x < 0 ? "less" : "" });
  element.style.setProperty("--share", Math.min(1, Math.abs(x ?? 0) / most).toFixed(3));
  return element;
}

function grid(d, values) {
  const most = maxAbs(values);
  const head = make("tr", [make("th"), ...d.columns.map((name) => make("th", make("span", name, { className: "name" }), { scope: "col" }))]);
  const rows = d.rows.map((name, i) => make("tr", [make("th", name, { scope: "row" }), ...values[i].map((x, j) => cell(x, most, d.words?.[i][j]))]));
  return [make("table", [make("thead", head), make("tbody", rows)], { className: layoutOf(d) }), most];
}

/** Column names are horizontal where they fit; tables with many columns have small cells. */
function layoutOf(d) {
  if (d.words) return "flat";
  if (d.columns.length > 32) return "many";
  return d.columns.every((name) => name.length <= 3) ? "flat" : "";
}

function heatmap(d) {
  const names = Object.keys(d.panels);
  const box = make("div", "", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: d.title });
  const scale = make("div", "", { className: "scale" });
  const readout = make("output", "Point at a cell to read its value.");
  const menu = make("select", names.map((name) => make("option", name)), { ariaLabel: "Table" });
  const values = () => d.panels[menu.value || names[0]];
  const show = () => {
    const [table, most] = grid(d, values());
    const diverging = values().flat().some((x) => x < 0);
    box.replaceChildren(table);
    scale.replaceChildren(format(diverging ? -most : 0), make("span", "", { className: "key" }), format(most));
    scale.classList.toggle("both", diverging);
  };
  const describe = (event) => {
    const target = event.target.closest("td");
    if (!target) return;
    const [i, j] = [target.parentElement.sectionRowIndex, target.cellIndex - 1];
    const word = d.words ? ` ${d.words[i][j]}` : "";
    readout.textContent = `${d.down ? d.down + " " : ""}${d.rows[i]} · ${d.across ? d.across + " " : ""}${d.columns[j]}:${word} ${format(values()[i][j])}`;
  };
  for (const name of ["pointerover", "click"]) box.addEventListener(name, describe);
  menu.addEventListener("change", show);
  show();
  const axes = [d.down && `rows: ${d.down}s`, d.across && `columns: ${d.across}s`].filter(Boolean).join(", ");
  return [...(names.length > 1 ? [menu] : []), box, make("div", [scale, axes], { className: "scale" }), readout];
}

function barChart(d) {
  const most = maxAbs([d.values]);
  const rows = d.names.map((name, i) => {
    const bar = make("i", "", { className: d.values[i] < 0 ? "less" : "" });
    bar.style.width = `${(16 * Math.abs(d.values[i] ?? 0)) / most}em`;
    return make("tr", [make("th", name, { scope: "row" }), make("td", [bar, format(d.values[i])])]);
  });
  return [make("div", make("table", make("tbody", rows), { className: "bars" }), { className: "scroll" })];
}

for (const source of document.querySelectorAll('script[type="application/json"]')) {
  const d = JSON.parse(source.textContent);
  source.after(make("h3", d.title), ...(d.values ? barChart(d) : heatmap(d)));
}

// size of a screenshot of the whole page
const widest = Math.max(...[...document.querySelectorAll(".scroll")].map((box) => box.scrollWidth), 0);
document.documentElement.dataset.size = `${Math.max(1000, widest + 80)} ${document.documentElement.scrollHeight}`;
