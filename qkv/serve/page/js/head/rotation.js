// Step "rotation": rotary position embeddings rotate queries and keys by angles that depend on the position.
import { robustMax } from "../colour.js";
import { formatNumber, h } from "../dom.js";
import { formatVector, symbol, tokenRow, tokenTable, vectorStrip } from "./vectors.js";

const degrees = (angle) => `${formatNumber((angle * 180) / Math.PI, 1)}°`;

export function rotationStep({ query, key, rotated_query, rotated_key, angles, pairs, columns, subject, row, column, setReadout }) {
  const most = robustMax([...query, ...key]);
  const vectorRow = (letter, values, selected = false) =>
    tokenRow({ token: letter, wide: vectorStrip(values, most, setReadout, letter), narrow: formatVector(values), selected });
  const current = angles[row];
  const half = current.length;
  const layout = pairs === "interleaved" ? "adjacent: 0 and 1, 2 and 3, …" : `half a head apart: 0 and ${half}, 1 and ${half + 1}, …`;
  return {
    name: "rotation",
    title: "Rotary positions (RoPE)",
    formula: [symbol("q′"), " = ", symbol("R", "t"), " ", symbol("q"), ",  ", symbol("k′"), " = ", symbol("R", "t"), " ", symbol("k")],
    text: [
      `Rotary position embeddings treat the numbers in pairs (${layout}) as points in a plane and rotate each pair by an angle that grows with the position t.`,
      [
        "For ",
        subject,
        ` (t = ${row}) the first pair is rotated by `,
        h("b", degrees(current[0])),
        ", the last by ",
        h("b", degrees(current.at(-1))),
        ".",
      ],
      "Equal tokens have equal keys before this step and different ones after it; the effect of position on a score depends only on the distance between the two tokens. Values are not rotated.",
    ],
    numbers: [
      h("h3", "Query, before and after"),
      tokenTable([vectorRow("q", query[row]), vectorRow("q′", rotated_query[row], true)]),
      h("h3", `Key of ${columns[column]}, before and after`),
      tokenTable([vectorRow("k", key[column]), vectorRow("k′", rotated_key[column], true)]),
      h("h3", "Angles of the pairs at every position"),
      tokenTable(
        angles.map((angle, t) =>
          tokenRow({
            token: columns[t],
            wide: vectorStrip(angle.map(Math.cos), 1, setReadout, `cos(angle, ${columns[t]})`),
            narrow: h("span.vector", `${degrees(angle[0])} … ${degrees(angle.at(-1))}`),
            selected: t === row,
          }),
        ),
      ),
    ],
  };
}
