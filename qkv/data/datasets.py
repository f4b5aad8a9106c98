"""Public translation data by name: multi30k, tatoeba, opus/CORPUS/VERSION, and WMT's test sets (wmt14 ... wmt20).

Each is read from a path where one is given, and otherwise fetched into the cache (`qkv.data.fetch`). Data that comes without
splits is split here, by sentence, so that what is tested was never trained on.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from qkv.data.dataset_files import check_split
from qkv.data.fetch import cache, fetch
from qkv.data.lines import COMPRESSED
from qkv.data.sources import Corpus, DerivedCorpus, InMemorySource, Parallel, Record, TableSource
from qkv.errors import ConfigError, FileError

MB = 1_000_000
NAMES = "multi30k, tatoeba, opus/CORPUS/VERSION, wmt08 to wmt20"
HELD_OUT = 3000
"""Pairs of a validation or test set that is made here, at the most."""


def dataset(name: str, source: str, target: str, split: str, path: str | Path | None = None) -> Corpus:
    """Pairs (source, target) of a named data set: its `split` train, valid, test, or one that only this data set has."""
    local = None if path is None else Path(path)
    if local is not None and not local.exists():
        raise FileError(f"{local} does not exist; correct the path, or leave it out to download {name}")
    kind, _, rest = name.partition("/")
    if kind == "multi30k" and not rest:
        return multi30k(source, target, split, local)
    if kind == "tatoeba" and not rest:
        return tatoeba(source, target, split, local)
    if kind == "opus" and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", rest):
        corpus, version = rest.split("/")
        return opus(corpus, version, source, target, split, local)
    if re.fullmatch(r"wmt\d\d", kind):
        return wmt(name, source, target, split, local)
    raise ConfigError(f"no data set {name!r}: there are {NAMES}")


# --- Multi30k (Elliott et al. 2016): captions of 31,014 images

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
MULTI30K_TEXTS = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
"""SHA-256 of the decompressed text, computed from a copy of the files and not published by their authors; the other test sets
(2017, 2018) and Czech have none, and are held to what the first fetch brought."""


def multi30k(source: str, target: str, split: str, local: Path | None) -> Corpus:
    """One file per language, in step. The test set of 2016 unless `split` names another (test_2017_flickr ...)."""
    check_languages("multi30k", {"en", "de", "fr", "cs"}, source, target)
    split = MULTI30K_SPLITS.get(split, split)
    if not re.fullmatch(r"train|val|test_201\d_\w+", split):
        raise ConfigError(
            f"multi30k has no split {split!r}, but train, valid, test, test_2017_flickr, test_2017_mscoco"
        )
    return Parallel([multi30k_file(f"{split}.{language}", local) for language in (source, target)])


def multi30k_file(name: str, local: Path | None) -> Path:
    if local is None:
        place = cache() / "multi30k" / f"{name}.gz"
        return fetch(f"{MULTI30K}/{name}.gz", place, 10 * MB, MULTI30K_TEXTS.get(name))
    return one_of(local, [name, *(name + ending for ending in COMPRESSED)])


def one_of(folder: Path, names: list[str]) -> Path:
    """The first of these files that the folder has."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileError(f"{folder} has no {names[0]} (nor {', '.join(names[1:])}); is it the right folder?")


# --- Tatoeba's pairs with English, as ManyThings.org hands them out for learning vocabulary

TATOEBA = "https://www.manythings.org/anki"  # its files grow from month to month, so no checksum can be written here
ISO3 = {
    "de": "deu", "fr": "fra", "es": "spa", "it": "ita", "pt": "por", "nl": "nld", "pl": "pol", "ru": "rus", "uk": "ukr",
    "cs": "ces", "sv": "swe", "da": "dan", "fi": "fin", "hu": "hun", "tr": "tur", "el": "ell", "ja": "jpn", "zh": "cmn",
}  # fmt: skip


def tatoeba(source: str, target: str, split: str, local: Path | None) -> Corpus:
    """English TAB other language (TAB where it is from), in LANGUAGE.txt within a .zip, or a text file of that kind."""
    check_languages("tatoeba", {"en", *ISO3}, source, target)
    if "en" not in (source, target):
        raise ConfigError(f"tatoeba pairs another language with English ('en'), given {source!r} and {target!r}")
    code = ISO3[target if source == "en" else source]
    place = local or fetch(f"{TATOEBA}/{code}-eng.zip", cache() / "tatoeba" / f"{code}-eng.zip", 500 * MB)
    if place.is_dir():
        found = sorted(place.glob(f"{code}-eng*.zip"))
        place = found[-1] if found else one_of(place, [f"{code}.txt", f"{code}-eng.zip"])
    table = place / f"{code}.txt" if place.suffix == ".zip" else place
    english = 0 if source == "en" else 1
    return HeldOut(TableSource(table, (0, 1) if english == 0 else (1, 0)), check_split("tatoeba", split), english)


# --- OPUS (Tiedemann 2012): many corpora, each pair of languages a .zip with two files in step ("Moses format")

OPUS = "https://object.pouta.csc.fi"


def opus(corpus: str, version: str, source: str, target: str, split: str, local: Path | None) -> Corpus:
    """CORPUS.a-b.a and CORPUS.a-b.b, the languages in alphabetical order, within a .zip or a folder."""
    for language in (source, target):
        if not re.fullmatch(r"[A-Za-z]{2,3}(_\w+)?", language):
            raise ConfigError(f"OPUS names languages like 'de' or 'pt_BR', not {language!r}")
    pair = "-".join(sorted((source, target)))
    url = f"{OPUS}/OPUS-{corpus}/{version}/moses/{pair}.txt.zip"
    place = local or fetch(url, cache() / "opus" / corpus / version / f"{pair}.txt.zip", 20_000 * MB)
    sides = [place / f"{corpus}.{pair}.{language}" for language in (source, target)]
    return HeldOut(Parallel(sides), check_split(f"opus/{corpus}", split), int(source > target))


# --- WMT's test sets: SGML files in a .tgz, listed by sacreBLEU with the MD5 of each


def wmt(name: str, source: str, target: str, split: str, local: Path | None) -> Corpus:
    """A test set, or the validation set of a later year. Segments as sacreBLEU reads them, so that scores can be compared."""
    from sacrebleu.dataset import DATASETS
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    known = DATASETS.get(name)
    pair = f"{source}-{target}"
    if not isinstance(known, FakeSGMLDataset) or known.data is None or len(known.data) != 1:
        raise ConfigError(f"no WMT test set {name!r} of one archive of SGML files: there are wmt08 to wmt20")
    if split not in ("valid", "test"):
        raise ConfigError(f"{name} is a test set, not for training; use it as data.valid or data.test")
    if pair not in known.langpairs:
        raise ConfigError(f"{name} has no {pair}, but {', '.join(sorted(known.langpairs))}")
    url, md5 = known.data[0], known.md5[0] if known.md5 else None
    place = local or fetch(url, cache() / "wmt" / f"{name.replace('/', '-')}.tgz", 200 * MB, md5=md5)
    first, second, *_ = known.langpairs[pair]
    ours, theirs = (segments(place, member) for member in (first, second))
    if len(ours) != len(theirs) or not ours:
        raise FileError(f"{place}: {len(ours)} and {len(theirs)} segments in {first} and {second}; download it again")
    return InMemorySource(list(zip(ours, theirs, strict=True)))


def segments(archive: Path, member: str) -> list[str]:
    """The <seg> lines of one file of the archive; white space as one space each, entities left as they are."""
    try:
        with tarfile.open(archive, "r:*") as held:
            file: IO[bytes] | None = held.extractfile(held.getmember(member))
            data = b"" if file is None else file.read(100 * MB)
    except KeyError:
        raise FileError(f"{archive} holds no {member}; is it the right archive?") from None
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise FileError(f"{archive} is damaged ({error}); download it again") from None
    rows = (line for line in data.decode("utf-8", "replace").split("\n") if line.startswith("<seg "))
    return [" ".join(re.sub(r"<seg.*?>(.*)</seg>.*?", r"\1", line).split()) for line in rows]


# --- splits


@dataclass
class HeldOut(DerivedCorpus):
    """One split of a corpus that comes without: about 1 % is valid, 1 % test, by a hash of the sentence on one side.

    All pairs with the same sentence there, whatever its case and marks, are in the same split, and training leaves out
    pairs whose other side was held out: nothing that is tested was seen, in either direction.
    """

    split: str
    deciding: int
    """Which side is hashed: the same language in both directions."""
    held: set[int] = field(default_factory=set)
    """Hashes of the other side of all that is held out; found at the first reading."""

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        if self.split != "train":
            chosen = ((n, r) for n, r in self.source.read() if split_of(r[self.deciding]) == self.split)
            yield from ((n, r) for n, r in islice(chosen, HELD_OUT) if n > start)
            return
        if not self.held:
            others = (r[1 - self.deciding] for _, r in self.source.read() if split_of(r[self.deciding]) != "train")
            self.held = {hash_text(text) for text in others}
        for number, record in self.source.read(start, stride):
            if split_of(record[self.deciding]) == "train" and hash_text(record[1 - self.deciding]) not in self.held:
                yield number, record


def split_of(text: str) -> str:
    return {0: "test", 1: "valid"}.get(hash_text(text) % 100, "train")


def hash_text(text: str) -> int:
    """A number for the letters and digits of a text, the same on every machine."""
    letters = "".join(filter(str.isalnum, text.casefold())) or text
    return int.from_bytes(hashlib.blake2b(letters.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def check_languages(name: str, known: set[str], source: str, target: str) -> None:
    for language in (source, target):
        if language not in known:
            raise ConfigError(f"{name} has no language {language!r}, but {', '.join(sorted(known))}")
    if source == target:
        raise ConfigError(f"{name}: source and target are both {source!r}")
