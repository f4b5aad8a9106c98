"""Images with a label or a caption: idx files (MNIST), folders with one folder per class, tables of paths, scikit-learn's
digits, drawn shapes.

A record is (image, text). The image is first what its corpus has (a path, pixels, a scene to be drawn), so that labels
and captions can be read without opening any; `Fitted` turns it into the pixels that a model reads, uint8 (C, H, W).
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qkv.config import CorpusConfig, DataConfig, ModelConfig
from qkv.data.corpora import take_share
from qkv.data.dataset_files import Mapped, check_split
from qkv.data.fetch import cache, fetch
from qkv.data.header import find_columns
from qkv.data.lines import open_binary
from qkv.data.schema import Schema
from qkv.data.shapes import Scene, ShapeSource
from qkv.data.sources import Corpus, DerivedCorpus, InMemorySource, Listing, Record, SequentialCorpus, TableSource
from qkv.errors import ConfigError, FileError, QkvError

Pixels = NDArray[np.uint8]
"""(C, H, W)."""
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".gif": "GIF", ".bmp": "BMP", ".webp": "WEBP", ".ppm": "PPM",
           ".pgm": "PPM", ".tif": "TIFF", ".tiff": "TIFF"}  # fmt: skip
MAX_BYTES, MAX_PIXELS = 100_000_000, 50_000_000
"""Maximum size of a file, and of the image in it: a few kilobytes can declare terabytes."""


def pictures(c: CorpusConfig, data: DataConfig, model: ModelConfig, split: str, schema: Schema) -> Fitted:
    """Open the corpus of a configuration, with its images as `model` reads them."""
    root = Path(data.root)
    source: Corpus
    if c.shapes is not None:
        source = ShapeSource(split, c.shapes)
    elif c.images is not None:
        source = Listing(listing(root / c.images))
    elif c.table is not None:
        columns = c.columns or find_columns(root / c.table, schema) or (0, 1)
        folder = (root / c.table).parent  # where the paths in the table start
        source = Mapped(TableSource(root / c.table, columns), lambda record: (folder / record[0], record[1]))
    elif c.dataset is not None:
        source = dataset(c.dataset, c.split or split, root / (c.path or "") if data.root or c.path else None)
    elif len(c.files) == 2:
        source = Idx(root / c.files[0], root / c.files[1])
    else:
        raise ConfigError(
            "images come from the fields images, table, dataset, shapes or two idx files (images, labels)"
        )
    return Fitted(take_share(source, c.share), model.image_size or 0, model.n_channels)


def dataset(name: str, split: str, path: Path | None) -> Corpus:
    check_split(name, split)
    if name == "digits":
        return InMemorySource(digits(split))
    if name == "mnist":
        return mnist(split, path)
    raise ConfigError(f"no data set of images {name!r}: there are digits and mnist")


# --- images as a model reads them


@dataclass
class Fitted(DerivedCorpus):
    """The images of another corpus, opened and resized; files that are not images are counted and left out."""

    size: int
    channels: int

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        for number, (picture, text) in self.source.read(start, stride):
            try:
                yield number, (pixels(picture, self.size, self.channels), text)
            except QkvError:
                self.skipped["not an image that can be read"] += 1


def pixels(picture: Any, size: int, channels: int) -> Pixels:
    """A path, a Pillow image, an array (H, W), (H, W, C) or (C, H, W) of uint8, or a scene -> (channels, size, size).

    The shorter side becomes `size`, and the middle is cut out.
    """
    from PIL import Image

    if isinstance(picture, Scene):
        picture = picture.draw()
    if isinstance(picture, np.ndarray):
        if picture.dtype == np.uint8 and picture.shape == (channels, size, size):
            return picture
        return resize(from_array(picture), size, channels)
    if isinstance(picture, str | Path):
        return read_picture(Path(picture), size, channels)
    if not isinstance(picture, Image.Image):
        raise QkvError(f"an image is a path, a Pillow image or an array, given {type(picture).__name__}")
    return resize(picture, size, channels)


def read_picture(path: Path, size: int, channels: int) -> Pixels:
    """Open an untrusted image file: known formats only, with its size checked before anything is unpacked."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(f"{path} has more than {MAX_BYTES // 10**6} MB: make it smaller")
        with open(path, "rb") as file:
            image = open_picture(file, str(path))
            if image.width * image.height > MAX_PIXELS:
                raise FileError(f"{path} has {image.width} x {image.height} pixels: make it smaller")
            return unpack(image, size, channels, str(path))
    except FileNotFoundError:
        raise FileError(f"{path} does not exist: correct the path") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path") from None


def open_picture(file: BinaryIO, name: str) -> Any:
    """A Pillow image of which only the header is read: its pixels are unpacked when its size is known."""
    from PIL import Image

    with decoding(name):
        return Image.open(file, formats=sorted(set(FORMATS.values())))


def unpack(image: Any, size: int, channels: int, name: str) -> Pixels:
    """The pixels of an image that was just opened, (channels, size, size)."""
    from PIL import ImageOps

    with decoding(name):
        image.draft("RGB" if channels == 3 else "L", (size, size))  # a JPEG is unpacked at about this size
        image.load()
        image = ImageOps.exif_transpose(image)
    return resize(image, size, channels)


@contextmanager
def decoding(name: str) -> Iterator[None]:
    """Only Pillow is called within: a broken file can make it raise any exception, which becomes a FileError."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:100]
        raise FileError(f"{name} is not an image that can be read ({reason}): give a PNG or JPEG file") from None


def resize(image: Any, size: int, channels: int) -> Pixels:
    """A Pillow image upright, in grey or colour, its middle square as (channels, size, size)."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a pixel
        image = Image.fromarray((np.asarray(image) // 256).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert({1: "L", 3: "RGB"}[channels])
    if image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    table = np.array(image)  # (H, W) or (H, W, 3)
    return table[None] if channels == 1 else np.ascontiguousarray(table.transpose(2, 0, 1))


def from_array(table: NDArray[Any]) -> Any:
    """A Pillow image of an array (H, W), (H, W, C) or (C, H, W)."""
    from PIL import Image

    if table.ndim == 3 and table.shape[0] in (1, 3) and table.shape[2] not in (1, 3, 4):
        table = table.transpose(1, 2, 0)
    if table.ndim == 3 and table.shape[2] == 1:
        table = table[:, :, 0]
    in_shape = table.ndim == 2 or table.ndim == 3 and table.shape[2] in (3, 4)
    if table.dtype != np.uint8 or table.size == 0 or not in_shape:
        raise QkvError(
            f"an array of pixels is uint8 and (H, W), (H, W, 3) or (3, H, W), given {table.dtype} {table.shape}"
        )
    return Image.fromarray(np.ascontiguousarray(table))


# --- folders and tables


def listing(folder: Path) -> Sequence[Record]:
    """(path, class) of every image in the folders of a folder, in an order that
    mixes the classes and is always the same: a share of it is a fair sample."""
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder: give one that has a folder of images for each class")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    found = [(path, label.name) for label in classes for path in label.iterdir() if path.suffix.lower() in FORMATS]
    if not found:
        raise FileError(f"{folder} has no folders with images in them ({', '.join(FORMATS)})")
    keyed = sorted((hash_text(f"{label}/{path.name}"), str(path), label) for path, label in found)
    return [(path, label) for _, path, label in keyed]


def hash_text(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little")


# --- idx files (LeCun and others 1998): big-endian numbers, then bytes


@dataclass
class Idx(SequentialCorpus):
    """Pictures of one idx file with the labels of another, from number `first` to before `last`."""

    images: Path
    labels: Path
    first: int = 0
    last: int | None = None

    def about(self) -> int:
        with open_binary(self.labels) as file:
            (count,) = header(file, self.labels, 1)
        return max(0, min(count, count if self.last is None else self.last) - self.first)

    def every(self) -> Iterator[Record]:
        return islice(self.whole(), self.first, self.last)

    def whole(self) -> Iterator[Record]:
        """All records of the files."""
        with open_binary(self.images) as images, open_binary(self.labels) as labels:
            count, height, width = header(images, self.images, 3)
            (names,) = header(labels, self.labels, 1)
            if names != count:
                raise FileError(f"{self.images} has {count:,} images, but {self.labels} {names:,} labels: they differ")
            for _ in range(count):
                raw = exactly(images, height * width, self.images)
                (name,) = exactly(labels, 1, self.labels)
                yield np.frombuffer(raw, np.uint8).reshape(1, height, width), str(name)


def header(file: BinaryIO, path: Path, dimensions: int) -> tuple[int, ...]:
    """Read the number of entries, and the size of images. The first four bytes are 0, 0, 8 (bytes), the number of dimensions."""
    magic = exactly(file, 4, path)
    if magic != bytes([0, 0, 8, dimensions]):
        kind = "images" if dimensions == 3 else "labels"
        raise FileError(f"{path} is not an idx file of {kind}: it begins with {magic.hex()}, not 0000080{dimensions}")
    sizes = struct.unpack(f">{dimensions}I", exactly(file, 4 * dimensions, path))
    if any(not 0 < side <= 4096 for side in sizes[1:]) or sizes[0] == 0:
        raise FileError(f"{path} claims to hold {' x '.join(map(str, sizes))} bytes: it is damaged")
    return sizes


def exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    try:
        raw = file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} is damaged ({error}); download it again") from None
    if len(raw) < count:
        raise FileError(f"{path} is cut short; download it again")
    return raw


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the decompressed file, computed from a copy of them."""
MNIST_TRAIN = 55_000
"""Of the 60,000 training images; the rest is for validation."""


def mnist(split: str, folder: Path | None) -> Corpus:
    """The four idx files, packed or not, in a folder or fetched."""
    paths = [mnist_file(name, folder) for name in MNIST_FILES if name.startswith("t10k") == (split == "test")]
    ranges = {"train": (0, MNIST_TRAIN), "valid": (MNIST_TRAIN, None), "test": (0, None)}
    return Idx(paths[0], paths[1], *ranges[split])


def mnist_file(name: str, folder: Path | None) -> Path:
    if folder is None:
        return fetch(f"{MNIST}/{name}.gz", cache() / "mnist" / f"{name}.gz", 20_000_000, MNIST_FILES[name])
    for ending in (".gz", ""):
        if (folder / (name + ending)).is_file():
            return folder / (name + ending)
    raise FileError(f"{folder} has no {name} (nor {name}.gz): data.root is the folder of MNIST's four files")


def digits(split: str) -> list[Record]:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, shuffled once and for all: 1,297 train, 250 valid, 250 test."""
    from sklearn.datasets import load_digits  # slow to import

    found = load_digits()
    order = list(range(len(found.target)))
    random.Random(0).shuffle(order)
    chosen = order[{"test": slice(250), "valid": slice(250, 500), "train": slice(500, None)}[split]]
    tables = np.round(found.images * (255 / 16)).astype(np.uint8)  # 0 to 16 -> 0 to 255
    return [(tables[i][None], str(found.target[i])) for i in chosen]
