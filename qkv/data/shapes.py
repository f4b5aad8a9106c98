"""Drawn shapes with captions: the embedded default for image -> text. Images are made when they are read; there are no files.

    a large red circle in the top left corner
    a small blue star right of a small white cross
    a large green ring, a small red square and a small blue star from left to right

Every caption follows from its image alone: of two shapes the larger is named first, of equals the left or upper one; three
stand in a row. Captions are dealt to the splits by their hash, so that what is tested was never described in training, nor
drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from qkv.data.sources import GeneratedCorpus, Record, sample_runs

SIDE = 32
"""Pictures are SIDE x SIDE."""
COLOURS = {
    "red": (220, 40, 40), "green": (40, 170, 70), "blue": (50, 90, 235), "yellow": (240, 225, 60), "purple": (160, 60, 200),
    "orange": (250, 140, 30), "cyan": (70, 215, 225), "white": (240, 240, 240),
}  # fmt: skip
RADII = {"small": (3.2, 3.9), "large": (5.6, 6.4)}
PLACES = {
    (0, 0): "in the top left corner", (1, 0): "at the top", (2, 0): "in the top right corner",
    (0, 1): "on the left", (1, 1): "in the middle", (2, 1): "on the right",
    (0, 2): "in the bottom left corner", (1, 2): "at the bottom", (2, 2): "in the bottom right corner",
}  # fmt: skip
RELATIONS = (("left of", "right of"), ("above", "below"))
"""Along x and along y: how the first on the way stands to the second, and the second to the first."""
ROWS = ("from left to right", "from top to bottom")
Field = NDArray[np.float64]
Y, X = np.mgrid[:SIDE, :SIDE] + 0.5
"""The middle of each pixel."""


@dataclass(frozen=True)
class Shape:
    """One shape on the canvas; x goes right, y down."""

    kind: str
    colour: str
    size: str
    x: float
    y: float
    radius: float

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """Some shapes and what is to be said of them; `draw` makes the picture."""

    shapes: tuple[Shape, ...]
    caption: str
    noise: int = 0
    """Seed of what differs between two images of the same: background, shade, grain."""

    def draw(self) -> NDArray[np.uint8]:
        """(3, SIDE, SIDE): each shape covers what is below it, its edge by as much of a pixel as it covers."""
        r = np.random.default_rng(self.noise)
        canvas = np.empty((3, SIDE, SIDE))
        canvas[:] = r.uniform(0, 40, (3, 1, 1))  # a dark background
        for shape in self.shapes:
            outside = OUTLINES[shape.kind]((X - shape.x) / shape.radius, (Y - shape.y) / shape.radius) * shape.radius
            cover = np.clip(0.5 - outside, 0, 1)  # (SIDE, SIDE): half a pixel to either side of the edge
            colour = np.array(COLOURS[shape.colour])[:, None, None] + r.uniform(-12, 12, (3, 1, 1))
            canvas += cover * (colour - canvas)
        return np.clip(canvas + r.normal(0, 4, canvas.shape), 0, 255).astype(np.uint8)


# --- outlines: signed distance to the edge of a shape of radius 1 around 0, negative inside


def circle(x: Field, y: Field) -> Field:
    return np.sqrt(x * x + y * y) - 1


def ring(x: Field, y: Field) -> Field:
    return np.abs(np.sqrt(x * x + y * y) - 0.75) - 0.25


def box(x: Field, y: Field, width: float, height: float) -> Field:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


def square(x: Field, y: Field) -> Field:
    return box(x, y, 0.88, 0.88)


def cross(x: Field, y: Field) -> Field:
    return np.minimum(box(x, y, 1, 0.32), box(x, y, 0.32, 1))


def edges(x: Field, y: Field, corners: int, away: float) -> list[Field]:
    """Distances to `corners` straight lines, all `away` from the middle, the first one below."""
    angles = (2 * math.pi * k / corners for k in range(corners))
    return [math.sin(a) * x + math.cos(a) * y - away for a in angles]


def triangle(x: Field, y: Field) -> Field:
    return np.maximum.reduce(edges(x, y - 0.15, 3, 0.55))


def star(x: Field, y: Field) -> Field:
    """A pentagram: the points that lie within at least four of its five lines."""
    return np.sort(edges(x, y, 5, math.cos(math.tau / 5) * 1.15), axis=0)[-2]


OUTLINES = {"circle": circle, "square": square, "triangle": triangle, "cross": cross, "ring": ring, "star": star}


# --- scenes


def scene(split: str, number: int, seed: int = 0) -> Scene:
    """Picture `number` of a split, always the same for a seed: drawn again until its caption belongs to the split."""
    r = random.Random(f"{seed}:{split}:{number}")
    while True:
        found = r.choice((one, two, two, three))(r)
        if split_of(found.caption) == split:
            return found


def split_of(caption: str) -> str:
    """A tenth of all captions is for validation, a tenth for the test."""
    return {0: "valid", 1: "test"}.get(blake2b(caption.encode(), digest_size=8).digest()[0] % 10, "train")


def looks(r: random.Random, size: str = "") -> dict[str, str]:
    return {"kind": r.choice([*OUTLINES]), "colour": r.choice([*COLOURS]), "size": size or r.choice([*RADII])}


def one(r: random.Random) -> Scene:
    """A shape in one of nine places."""
    look, place = looks(r), r.choice([*PLACES])
    x, y = (SIDE / 4 * (1 + at) + r.uniform(-1, 1) for at in place)
    shape = Shape(**look, x=x, y=y, radius=r.uniform(*RADII[look["size"]]))
    return Scene((shape,), f"{shape} {PLACES[place]}", r.getrandbits(32))


def two(r: random.Random) -> Scene:
    """Two side by side or one above the other; the larger one is named first, of equals the left or upper one."""
    axis = r.randrange(2)
    first, second = row([looks(r), looks(r)], axis, r)
    ahead, behind = RELATIONS[axis]
    swap = (first.size, second.size) == ("small", "large")
    caption = f"{second} {behind} {first}" if swap else f"{first} {ahead} {second}"
    return Scene((first, second), caption, r.getrandbits(32))


def three(r: random.Random) -> Scene:
    """Three in a row, of which one at most is large: there is no room for more."""
    axis, large = r.randrange(2), r.randrange(4)
    shapes = row([looks(r, "large" if i == large else "small") for i in range(3)], axis, r)
    caption = f"{shapes[0]}, {shapes[1]} and {shapes[2]} {ROWS[axis]}"
    return Scene(tuple(shapes), caption, r.getrandbits(32))


def row(what: list[dict[str, str]], axis: int, r: random.Random) -> list[Shape]:
    """Shapes along x (0) or y (1), in their order, what room is left between them dealt out at random."""
    radii = [r.uniform(*RADII[look["size"]]) for look in what]
    cuts = sorted(r.random() for _ in radii)
    free = SIDE - 2 * sum(radii) - (len(radii) - 1)  # a pixel between neighbours is certain
    shapes = []
    for i, (look, radius) in enumerate(zip(what, radii, strict=True)):
        along = 2 * sum(radii[:i]) + i + radius + cuts[i] * free
        across = SIDE / 2 + r.uniform(-3, 3)
        shapes.append(Shape(**look, x=across if axis else along, y=along if axis else across, radius=radius))
    return shapes


class ShapeSource(GeneratedCorpus):
    """Scenes with their captions; any of them can be made without those before it."""

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        for number in sample_runs(iter(range(start, self.size)), stride):
            found = scene(self.split, number, self.seed)
            yield number + 1, (found, found.caption)
