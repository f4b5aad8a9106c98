"""Train, valid and test sets from the records of a file, with no text in two of them.

Records that share a text, whatever its case and spaces, or a group, belong together, directly or through others: they are the
connected components of a graph of records and texts. Whole components are dealt out, in an order that a hash of their text and
the seed decides, so the result depends on nothing else. A first pass over the files keeps 8 bytes per text; a second copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from qkv.data.dataset_files import digest
from qkv.data.raw_records import KINDS, TABLES, RawRecords
from qkv.data.sources import ending
from qkv.errors import ConfigError, FileError, QkvError

SPLITS = ("train", "valid", "test")
"""Their numbers are the values of `SplitPlan.split`."""
MAX_LABELS = 100_000

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class SplitPlan:
    """Which record goes where."""

    split: NDArray[np.uint8]
    """(N,) the number of each record's split."""
    components: Numbers
    """(N,) which records belong together."""
    wanted: dict[str, int]
    """Records that were asked for, of valid and test."""

    @property
    def counts(self) -> dict[str, int]:
        """Records of each split."""
        return dict(zip(SPLITS, np.bincount(self.split, minlength=3).tolist(), strict=True))

    def repeated(self) -> tuple[int, int, int]:
        """How many components have several records, how many records these have, and the largest one has."""
        sizes = np.bincount(self.components)
        several = sizes[sizes > 1]
        return len(several), int(several.sum()), int(sizes.max())


def plan(source: RawRecords, valid: str, test: str, seed: int = 1, shuffle: bool = True) -> SplitPlan:
    """Read all records once and decide where each goes.

    `valid` and `test` are sizes: a share (0.1 or 10%) or a count (500); 0 = no such set. Without `shuffle` the end of the file
    is the test set, and the part before it the valid set. A label column in `source` gives every set the same share of each
    label, as nearly as components allow.
    """
    if source.label is not None and not shuffle:
        raise ConfigError("--stratify chooses records from all of the file, --no-shuffle takes its end: leave one out")
    keys, labels = read_keys(source)
    count = keys.shape[1]
    wanted = {"test": size(test, count, "test"), "valid": size(valid, count, "valid")}
    if sum(wanted.values()) >= count:
        raise ConfigError(
            f"--valid {valid} and --test {test} leave nothing to train on: there are {count:,} {source.noun} in all"
        )
    components = connect(keys)
    _, first, sizes = np.unique(components, return_index=True, return_counts=True)
    order = mixed_order(keys, first, labels, seed) if shuffle else np.argsort(-first)
    chosen = deal(order, sizes, wanted, strict=not shuffle)
    found = SplitPlan(chosen[components], components, wanted)
    fewer = ", or compare fewer columns with --text" if source.text else ""
    for name, want in (("train", 1), *wanted.items()):
        if want and not found.counts[name]:
            raise QkvError(
                f"the {name} set would be empty: {source.noun} that belong together are not divided, and the largest group has "
                f"{sizes.max():,} of {count:,}; ask for other sizes{fewer}"
            )
    return found


def size(text: str, count: int, name: str) -> int:
    """Records of a set: a share of all, at least one, or a count."""
    try:
        given = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        share = text.endswith("%") or "." in text
        if given >= 0 and (given < 1 if share else given == int(given)):
            return (max(1, round(given * count)) if given else 0) if share else int(given)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"--{name} takes a share below 1 (0.1 or 10%) or a whole number of records (500), given {text!r}")


# --- which records belong together


def read_keys(source: RawRecords) -> tuple[NDArray[np.uint64], Numbers]:
    """(K, N) a hash of each text of each record, and of its group, 0 = none; and (N,) the number of its label."""
    keys: list[array[int]] = []
    known: dict[str, int] = {}
    labels = array("q")
    for record in source.read():
        texts = (*record.texts, record.group) if source.group is not None else record.texts
        keys = keys or [array("Q") for _ in texts]
        for column, text in zip(keys, texts, strict=True):
            column.append((digest(text) or 1) if text.strip() else 0)
        if source.label is not None:
            labels.append(known.setdefault(record.label, len(known)))
            if len(known) > MAX_LABELS:
                raise QkvError(
                    f"column {source.label!r} has more than {MAX_LABELS:,} different labels: is it the right one?"
                )
    if not keys:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in source.skipped.items())
        raise FileError(f"{source.paths[0]} has no {source.noun} to split" + (f" ({reasons})" if reasons else ""))
    count = len(keys[0])
    return np.array(keys, np.uint64), np.array(labels, np.int64) if labels else np.zeros(count, np.int64)


def connect(keys: NDArray[np.uint64]) -> Numbers:
    """(K, N) -> (N,) the component of each record, numbered by their first records: those that have a key in common are in
    one."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    count = keys.shape[1]
    rows, nodes, behind = list[Any](), list[Any](), count
    for column in keys:
        different, node = np.unique(column, return_inverse=True)
        rows.append(np.flatnonzero(column))
        nodes.append(behind + node[column != 0])
        behind += len(different)
    edges = (np.concatenate(rows), np.concatenate(nodes))
    graph = coo_matrix((np.ones(len(edges[0]), np.bool_), edges), shape=(behind, behind))
    found = connected_components(graph, directed=False)[1][:count]
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    renumbered: Numbers = np.argsort(np.argsort(first))[number]
    return renumbered


# --- which component goes where


def mixed_order(keys: NDArray[np.uint64], first: Numbers, labels: Numbers, seed: int) -> Numbers:
    """Components in random order; `first` is the first record of each, whose label is the component's. Every stretch of the
    order has each label as often as the whole has."""
    numbers = np.arange(1, keys.shape[1] + 1, dtype=np.uint64)
    text = np.where(keys[-1] != 0, keys[-1], numbers)  # a record without text has only its number
    shuffled = np.argsort(mix_bits(text[first] ^ mix_bits(np.array([seed], np.uint64))), kind="stable")
    kinds = labels[first][shuffled]
    by_label = np.argsort(kinds, kind="stable")
    sizes = np.bincount(kinds)
    begins = np.cumsum(sizes) - sizes
    place = np.empty(len(first))
    place[by_label] = (np.arange(len(first)) - begins[kinds[by_label]] + 0.5) / sizes[kinds[by_label]]
    order: Numbers = shuffled[np.argsort(place, kind="stable")]
    return order


def mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele et al. 2014): every bit of the result depends on every bit of x."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def deal(order: Numbers, sizes: Numbers, wanted: dict[str, int], strict: bool) -> NDArray[np.uint8]:
    """The split of each component: the first ones of the order fill the test set, the next ones the valid set.

    One that does not fit a set any more goes to the next; a `strict` set is closed by it, so that the order is kept.
    """
    chosen = np.zeros(len(sizes), np.uint8)
    left = dict(wanted)
    for component in order.tolist():
        need = int(sizes[component])
        for name in list(left):
            if left[name] >= need:
                left[name] -= need
                chosen[component] = SPLITS.index(name)
                break
            if strict or not left[name]:
                del left[name]
        if not left:
            break
    return chosen


# --- writing


def write(source: RawRecords, found: SplitPlan, files: dict[str, Sequence[TextIO]]) -> None:
    """Copy every record to its split, in the order of the input; each table begins with the header. `files` has an open file
    for each file of `source`, for each split."""
    for some in files.values():
        some[0].write(source.head())
    changed = FileError(f"{source.paths[0]} changed while it was read: start again")
    split = iter(found.split.tolist())
    for record in source.read():
        if (number := next(split, None)) is None:
            raise changed
        for file, text in zip(files[SPLITS[number]], record.written, strict=True):
            file.write(text)
    if next(split, None) is not None:
        raise changed


def file_names(source: RawRecords, name: str) -> list[str]:
    """What the files of a split are called: train.tsv, or train.en and train.de; the format's ending, no compression."""
    if source.kind in TABLES and ending(source.paths[0]) not in KINDS:
        return [f"{name}.{source.kind}"]
    endings = [ending(path) for path in source.paths]
    if len(set(endings)) == len(endings):
        return [name + (suffix or ".txt") for suffix in endings]
    stems = [Path(path).name.partition(ending(path) or "\0")[0] for path in source.paths]
    if len(set(stems)) < len(stems):
        raise ConfigError(f"parallel files need different names, given {', '.join(map(str, source.paths))}")
    return [f"{name}.{stem}{suffix}" for stem, suffix in zip(stems, endings, strict=True)]
