"""Tables of attention weights: well-formed, complete, safe."""

import xml.etree.ElementTree as ET

from qkv.look.figures import heatmap

SVG = "{http://www.w3.org/2000/svg}"


def test_a_heatmap_has_a_square_for_each_weight_darker_for_more() -> None:
    picture = ET.fromstring(heatmap(["Ich", "<esse>"], ["I", "eat", "&"], [[1.0, 0.0, 0.2], [0.1, 0.9, 0.0]], "t"))
    squares = [r for r in picture.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    shades = [float(s.get("fill", "").rstrip(")").split(",")[-1]) for s in squares]
    assert shades == [1.0, 0.0, 0.2, 0.1, 0.9, 0.0]
    assert squares[4].find(f"{SVG}title").text == "<esse> - eat: 0.90"


def test_a_heatmap_is_as_wide_as_its_title() -> None:
    narrow, wide = (
        ET.fromstring(heatmap(["a"], ["b"], [[1.0]], title)) for title in ("t", "a title of many words" * 3)
    )
    assert float(wide.get("width", 0)) > 10 * 60 > float(narrow.get("width", 0))
