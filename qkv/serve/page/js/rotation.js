// The step of rotary positions: queries and keys are rotated by an angle that depends on the position.
import { typical } from "./colour.js";
import { h, number } from "./dom.js";
import { line, strip, table, variable as v, written } from "./strips.js";

const degrees = (angle) => `${number((angle * 180) / Math.PI, 1)}°`;

export function rotation({ query, key, rotated_query, rotated_key, angles, pairs, columns, who, row, column, say }) {
  const most = typical([...query, ...key]);
  const one = (letter, values, on = false) =>
    line({ token: letter, wide: strip(values, most, say, letter), narrow: written(values), on });
  const own = angles[row];
  const half = own.length;
  const which = pairs === "interleaved" ? "neighbours: 0 and 1, 2 and 3, …" : `half a head apart: 0 and ${half}, 1 and ${half + 1}, …`;
  return {
    name: "rotation",
    title: "Rotation by position",
    formula: [v("q′"), " = ", v("R", "t"), " ", v("q"), ",  ", v("k′"), " = ", v("R", "t"), " ", v("k")],
    words: [
      `Rotary positions take the numbers in pairs (${which}), as points of a plane, and rotate each pair by an angle that grows with the position t.`,
      [
        "For ",
        who,
        ` (t = ${row}) the first pair is rotated by `,
        h("b", degrees(own[0])),
        ", the last by ",
        h("b", degrees(own.at(-1))),
        ".",
      ],
      "Equal tokens have equal keys before this step and different ones after it; the effect of position on a score depends only on the distance between the two tokens. Values are not rotated.",
    ],
    numbers: [
      h("h3", "Query, before and after"),
      table([one("q", query[row]), one("q′", rotated_query[row], true)]),
      h("h3", `Key of ${columns[column]}, before and after`),
      table([one("k", key[column]), one("k′", rotated_key[column], true)]),
      h("h3", "Angle of each pair, at every position"),
      table(
        angles.map((some, t) =>
          line({
            token: columns[t],
            wide: strip(some.map(Math.cos), 1, say, `cos(angle, ${columns[t]})`),
            narrow: h("span.written", `${degrees(some[0])} … ${degrees(some.at(-1))}`),
            on: t === row,
          }),
        ),
      ),
    ],
  };
}
