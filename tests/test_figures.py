"""Pictures: well-formed, complete, safe."""

import itertools
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from qkv.look.figures import curves, heatmap, ticks

SVG = "{http://www.w3.org/2000/svg}"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ticks_span_the_values_in_equal_steps(values: list[float]) -> None:
    found = ticks(values)
    assert found[0] <= min(values) + 1e-6 and found[-1] >= max(values) - 1e-6 and 2 <= len(found) <= 13
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert max(steps) - min(steps) <= 1e-6 * max(1, max(map(abs, found)))


def test_curves_have_a_line_for_each_series_and_survive_nan() -> None:
    picture = ET.fromstring(
        curves(
            {"loss": {"train": [(1, 2.0), (2, float("nan")), (3, 1.0)], "valid": [(1, 2.5)]}, "empty": {"x": []}},
            "a <b> & c",
            "updates",
        )
    )
    assert len(picture.findall(f".//{SVG}polyline")) == 2
    assert any(t.text == "a <b> & c" for t in picture.iter(f"{SVG}text"))


def test_a_heatmap_has_a_square_for_each_weight_darker_for_more() -> None:
    picture = ET.fromstring(heatmap(["Ich", "<esse>"], ["I", "eat", "&"], [[1.0, 0.0, 0.2], [0.1, 0.9, 0.0]], "t"))
    squares = [r for r in picture.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    shades = [float(s.get("fill", "").rstrip(")").split(",")[-1]) for s in squares]
    assert shades == [1.0, 0.0, 0.2, 0.1, 0.9, 0.0]
    assert squares[4].find(f"{SVG}title").text == "<esse> - eat: 0.90"


def test_panels_share_one_axis() -> None:
    """The same x stands at the same place in every panel, whatever range each panel's points have."""
    panels = {"a": {"l": [(0, 1.0), (1500, 2.0)]}, "b": {"l": [(250, 1.0), (1000, 2.0)]}, "c": {"l": [(250, 3.0)]}}
    lines = ET.fromstring(curves(panels, "t", "x")).findall(f".//{SVG}polyline")
    starts = [float(line.get("points", "").split(",")[0]) for line in lines]
    assert starts[0] < starts[1] == starts[2]


def test_a_single_point_is_seen_and_a_label_keeps_its_colour() -> None:
    panels = {"loss": {"training": [(1, 1.0), (2, 2.0)], "held out": [(2, 2.5)]}, "BLEU": {"held out": [(2, 30.0)]}}
    picture = ET.fromstring(curves(panels, "t", "x"))
    training, *held_out = [line.get("stroke") for line in picture.findall(f".//{SVG}polyline")]
    assert held_out[0] == held_out[1] != training
    assert len(picture.findall(f".//{SVG}circle")) == 4
    many = ET.fromstring(curves({"loss": {"training": [(x, x) for x in range(500)]}}, "t", "x"))
    assert not many.findall(f".//{SVG}circle")


def test_labels_do_not_cover_each_other() -> None:
    lines = {"training, labels smoothed by 0.1": [(1, 1.0), (2, 2.0)], "held out": [(2, 2.5)], "other": [(1, 1.0)]}
    found = {t.text: float(t.get("x", "")) for t in ET.fromstring(curves({"a": lines}, "t", "x")).iter(f"{SVG}text")}
    ends = [(found[label] - 6 * len(label), found[label]) for label in lines]  # a letter is about half as wide as high
    assert all(right < left for (left, _), (_, right) in itertools.pairwise(ends))


def test_a_heatmap_is_as_wide_as_its_title() -> None:
    narrow, wide = (
        ET.fromstring(heatmap(["a"], ["b"], [[1.0]], title)) for title in ("t", "a title of many words" * 3)
    )
    assert float(wide.get("width", 0)) > 10 * 60 > float(narrow.get("width", 0))
