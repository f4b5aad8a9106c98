"""Charts: well-formed whatever the names, every line where its numbers say, axes that refuse what they cannot show."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.look.charts import COLOURS, FEW, bars, curves, lines, log_ticks, number, ticks

SVG = "{http://www.w3.org/2000/svg}"
ODD = 'a <b> & "c"'


def drawn(picture: str) -> list[list[tuple[float, float]]]:
    """The lines of the panels as points on the paper, without the short ones of the legend."""
    found = [line.get("points", "").split() for line in ET.fromstring(picture).iter(f"{SVG}polyline")]
    names = len([t for t in ET.fromstring(picture).iter(f"{SVG}text") if t.get("font-size") == "12"])
    return [[tuple(map(float, p.split(","))) for p in line] for line in found[names:]]  # type: ignore[misc]


def words(picture: str) -> dict[str, ET.Element]:
    return {t.text or "": t for t in ET.fromstring(picture).iter(f"{SVG}text")}


# --- axes


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ticks_span_the_values_in_equal_steps(values: list[float]) -> None:
    found = ticks(values)
    assert found[0] <= min(values) + 1e-6 and found[-1] >= max(values) - 1e-6 and 2 <= len(found) <= 13
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert max(steps) - min(steps) <= 1e-6 * max(1, max(map(abs, found)))


@pytest.mark.parametrize("values", [[2.0, 2.00000000001], [1e-12, 5e-12], [0.0, 5e-324], [1e20], [1e20, 1e20 + 16384]])
def test_values_that_hardly_differ_have_an_axis_too(values: list[float]) -> None:
    found = ticks(values)
    assert found[0] <= min(values) and found[-1] >= max(values) and sorted(set(found)) == found and len(found) > 1
    assert drawn(lines({"a": list(enumerate(values))}, "t", "x", "y"))


@given(st.lists(st.floats(1e-60, 1e60), min_size=1, max_size=20))
def test_log_ticks_span_the_values_in_about_equal_factors(values: list[float]) -> None:
    found = log_ticks(values)
    assert found[0] <= min(values) * (1 + 1e-6) and found[-1] >= max(values) * (1 - 1e-6) and 2 <= len(found) <= 10
    factors = [b / a for a, b in itertools.pairwise(found)]
    assert max(factors) / min(factors) < (
        1.26 if found[-1] / found[0] < 101 else 1 + 1e-6
    )  # 1, 2, 5, 10 or 10, 100, 1000


def test_lengths_that_double_are_the_ticks() -> None:
    assert log_ticks([16, 64, 4096]) == [2.0**k for k in range(4, 13)]
    assert log_ticks([16, 65]) == [10, 20, 50, 100] and log_ticks([3]) == [2, 5]
    assert log_ticks([800, 1999]) == [500, 1000, 2000] and log_ticks([1, 3000]) == [1, 10, 100, 1000, 10000]


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0, 0.25, -3, 4096, 1e-6, 1e9, 1e-3, 2.5e-6)] == [
        "0", "0.25", "-3", "4,096", "10⁻⁶", "10⁹", "0.001", "2.5e-06",
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_logarithmic_axis_refuses_what_it_cannot_show(bad: float) -> None:
    with pytest.raises(QkvError, match=r"seconds: .* cannot be drawn on a logarithmic axis"):
        lines({"a": [(1, 2.0), (2, bad)]}, "t", "length", "seconds", log_y=True)
    with pytest.raises(QkvError, match=r"length: .* on a logarithmic axis"):
        lines({"a": [(bad, 2.0)]}, "t", "length", "seconds", log_x=True)
    assert drawn(lines({"a": [(1, 2.0), (2, bad)]}, "t", "length", "seconds"))


# --- lines


def test_a_power_law_is_straight_on_two_logarithmic_axes() -> None:
    """y = x^2 is a line of equal steps; on linear axes it bends."""
    square = {"a": [(2.0**k, 4.0**k) for k in range(6)]}
    slopes = lambda ps: [(d - b) / (c - a) for (a, b), (c, d) in itertools.pairwise(ps)]  # noqa: E731
    straight, bent = (slopes(drawn(lines(square, "t", "x", "y", log, log))[0]) for log in (True, False))
    assert max(straight) - min(straight) < 0.01 * abs(straight[0])
    assert max(bent) - min(bent) > 0.5 * abs(bent[0])
    assert straight[0] < 0, "larger stands higher, and y counts downwards on the paper"


def test_every_name_is_escaped_and_written_once() -> None:
    picture = lines({ODD: [(1, 2.0)], "plain": [(1, 1.0)]}, f"{ODD}!", f"{ODD}?", f"{ODD}.")
    assert {ODD, f"{ODD}!", f"{ODD}?", f"{ODD}.", "plain"} <= words(picture).keys()
    assert "<b>" not in picture


def test_curves_have_a_line_for_each_series_and_survive_nan() -> None:
    broken = {"train": [(1, 2.0), (2, float("nan")), (3, 1.0)], "valid": [(1, 2.5), (2, math.inf)]}
    picture = curves({"loss": broken, "empty": {"x": []}}, "t", "updates")
    assert [len(line) for line in drawn(picture)] == [2, 1]
    assert "empty: no data yet" in words(picture)
    assert words(curves({}, "nothing at all", "updates")).keys() == {"nothing at all"}


def test_panels_share_one_axis() -> None:
    """The same x stands at the same place in every panel, whatever range each panel's points have."""
    panels = {"a": {"l": [(0, 1.0), (1500, 2.0)]}, "b": {"l": [(250, 1.0), (1000, 2.0)]}, "c": {"l": [(250, 3.0)]}}
    starts = [line[0][0] for line in drawn(curves(panels, "t", "x"))]
    assert starts[0] < starts[1] == starts[2]


def test_a_single_point_is_seen_and_a_name_keeps_its_colour() -> None:
    panels = {"loss": {"training": [(1, 1.0), (2, 2.0)], "held out": [(2, 2.5)]}, "BLEU": {"held out": [(2, 30.0)]}}
    picture = ET.fromstring(curves(panels, "t", "x"))
    legend_a, legend_b, training, *held_out = [line.get("stroke") for line in picture.iter(f"{SVG}polyline")]
    assert held_out == [legend_b, legend_b] and training == legend_a != legend_b
    assert len(picture.findall(f".//{SVG}circle")) == 4
    many = ET.fromstring(lines({"training": [(x, x) for x in range(FEW + 1)]}, "t", "x", "y"))
    assert not many.findall(f".//{SVG}circle")


def test_more_lines_than_colours_can_be_told_apart() -> None:
    picture = ET.fromstring(lines({f"{i}": [(0, i), (1, i)] for i in range(3 * len(COLOURS))}, "t", "x", "y"))
    looks = [(p.get("stroke"), p.get("stroke-dasharray")) for p in picture.iter(f"{SVG}polyline")]
    assert len(set(looks)) == 3 * len(COLOURS)


def test_names_do_not_cover_each_other_nor_leave_the_paper() -> None:
    names = ["training, labels smoothed by 0.1", *(f"a name of some length {i}" for i in range(9)), "z"]
    picture = lines({name: [(1, 1.0), (2, 2.0)] for name in names}, "t", "x", "y")
    places = [(float(words(picture)[n].get("y", "")), float(words(picture)[n].get("x", "")), n) for n in names]
    width = lambda name: 6 * len(name)  # noqa: E731  # a letter is about half as wide as high
    assert all(x + width(name) < 760 for _, x, name in places)
    assert len({y for y, _, _ in places}) > 1
    for (y, x, name), (below, right, _) in itertools.pairwise(places):
        assert below > y or right > x + width(name)
    top = min(y for line in drawn(picture) for _, y in line)
    assert top > max(y for y, _, _ in places), "the lines begin below the legend"


# --- bars


def test_bars_are_as_long_as_their_values() -> None:
    picture = ET.fromstring(
        bars({ODD: {"x": (1.0, 0.1), "y": (3.0, math.inf)}, "b": {"x": (-2.0, 0.0), "y": (math.inf, 0.0)}}, "t", "a")
    )
    widths = [float(r.get("width", "")) for r in list(picture.iter(f"{SVG}rect"))[1:]]
    assert (
        widths[1] == pytest.approx(3 * widths[0], abs=0.2)
        and widths[2] == pytest.approx(2 * widths[0], abs=0.2)
        and len(widths) == 3
    )
    assert {ODD, "b", "x", "y", "inf"} <= {t.text for t in picture.iter(f"{SVG}text")}
