"""Embed texts as vectors: one per token or one per text, from any layer.

A word's vector depends on the words around it, so that a linear model on top of it can tell what a list of words cannot
(Peters et al. 2018; of whole texts, Reimers and Gurevych 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.convert.files import write_array, write_tensors, write_text
from qkv.engine.ragged import concatenate_rows, possible
from qkv.errors import FileError, QkvError
from qkv.look.residual_stream import layer_outputs, side_modules
from qkv.models.inputs import batch_of, has_fixed_length
from qkv.text.tokenizer import Tokenizer, in_words

POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda vectors: vectors.mean(0),
    "cls": lambda vectors: vectors[0],
    "last": lambda vectors: vectors[-1],
}
"""(T, C) of all tokens -> (C,): their mean, the first ([CLS] of BERT), or the last, which in a decoder has seen all others."""


@dataclass(frozen=True)
class Tokens:
    """The pieces of one text, special tokens by their names, and a vector for each."""

    pieces: list[str]
    vectors: Tensor
    """(T, C)."""


class EmbeddingRow(NamedTuple):
    """One text as a network reads it."""

    ids: list[int]
    pieces: list[str]


class Embedder:
    """A network whose vectors are wanted, not its answers. Of an encoder-decoder it is the encoder.

    `layer` 0 is the embeddings, n the last; -1 is the last too, -2 the one below. A recurrent stack has only these two.
    """

    def __init__(self, c: ModelConfig, network: Any, tokenizer: Tokenizer | None, layer: int = -1, batch_size: int = 32,
                 packed: Any = None):  # fmt: skip
        """`packed`: the same network for fast inference, which gives the vectors of the last layer."""
        stack = network.get_submodule(side_modules(network, source=True)[1])
        n = len(getattr(stack, "blocks", (None,)))
        if not -n - 1 <= layer <= n:
            raise QkvError(
                f"there is no layer {layer}: this model has 0 (its embeddings) to {n}, or from above -1 to {-n - 1}"
            )
        if batch_size < 1:
            raise QkvError(f"batch_size is at least 1, given {batch_size}")
        self.config, self.network, self.tokenizer = c, network, tokenizer
        self.layer, self.batch_size = layer, batch_size
        self.packed = packed if layer in (-1, n) else None
        self.seen = 0
        """Texts so far: an error says which one it is about."""

    @torch.no_grad()
    def embed(self, given: Sequence[str] | Tensor, pooling: str = "mean", normalize: bool = True, truncate: bool = False
              ) -> Tensor:  # fmt: skip
        """One vector for each text, or image (N, channels, height, width), of length 1 if normalized: (N, C)."""
        if pooling not in POOLINGS:
            raise QkvError(f"pooling is one of {', '.join(POOLINGS)}, given {pooling!r}; of each token: embed_tokens")
        rows = given if isinstance(given, Tensor) else [row.ids for row in self.rows(given, truncate)]
        found = torch.zeros(len(rows), self.config.d_model, device=next(self.network.parameters()).device)
        for number, vectors in self.read(rows):
            found[number] = POOLINGS[pooling](vectors)
        return nn.functional.normalize(found, dim=-1) if normalize else found

    @torch.no_grad()
    def tokens(self, texts: Sequence[str], normalize: bool = True, truncate: bool = False) -> list[Tokens]:
        """A vector for each token of each text."""
        rows = self.rows(texts, truncate)
        found = dict(self.read([row.ids for row in rows]))
        vectors = [nn.functional.normalize(found[i], dim=-1) if normalize else found[i] for i in range(len(rows))]
        return [Tokens(row.pieces, v) for row, v in zip(rows, vectors, strict=True)]

    def read(self, rows: Sequence[list[int]] | Tensor) -> Iterator[tuple[int, Tensor]]:
        """The number of a row and its vectors (T, C), in any order. Here, and only here, rows become batches."""
        both, device = self.config.family == "encoder-decoder", next(self.network.parameters()).device
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # similar lengths together: little padding
        for at in range(0, len(order), self.batch_size):
            some = order[at : at + self.batch_size]
            given = rows[some] if isinstance(rows, Tensor) else [rows[i] for i in some]
            batch = batch_of(self.config, given, encoding=both).to(device)
            if self.packed is not None:
                hidden = self.packed.encode(batch).vectors if both else self.packed(batch).hidden  # (B, T, C)
                for number, row in zip(some, hidden.float(), strict=True):
                    yield number, row if isinstance(rows, Tensor) else row[: len(rows[number])]
            elif possible(self.network, batch):  # then no padding is read
                flat = layer_outputs(self.network, concatenate_rows(batch))[self.layer][0].float()  # (N, C)
                yield from zip(some, flat.split([len(rows[i]) for i in some]), strict=True)
            else:
                vectors = layer_outputs(self.network, batch, source_only=both)[self.layer]  # (B, T, C)
                for number, row in zip(some, vectors.float(), strict=True):  # padding stands on the right
                    yield number, row if isinstance(rows, Tensor) else row[: len(rows[number])]

    # --- text

    def rows(self, texts: Sequence[str], truncate: bool) -> list[EmbeddingRow]:
        """The pieces of each text. One over the model's max_length is an error, or with `truncate` loses what is too much
        before its last token."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise QkvError("embed takes a list of texts, given one text: pass [text]")
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer: add tokenizer.json to its folder")
        with in_words():
            found = self.tokenizer.backend.encode_batch(list(texts))
        rows = [self.row(text, one, truncate) for text, one in zip(texts, found, strict=True)]
        for number, row in enumerate(rows, self.seen + 1):
            if not row.ids:
                raise QkvError(f"text {number} has no token, and this model has none to begin with: leave it out")
            if has_fixed_length(self.config) and len(row.ids) > self.config.max_length:
                raise QkvError(f"text {number}: {len(row.ids)} tokens, but this model reads at most "
                               f"{self.config.max_length}: shorten it, or have it cut with truncate")  # fmt: skip
        self.seen += len(rows)
        return rows

    def row(self, text: str, found: Any, truncate: bool) -> EmbeddingRow:
        ids, pieces, most = found.ids, pieces_of(text, found), self.config.max_length
        if not ids and self.config.bos_id is not None:
            ids, pieces = [self.config.bos_id], [self.tokenizer.backend.id_to_token(self.config.bos_id) or ""]  # type: ignore[union-attr]
        if truncate and len(ids) > most:
            return EmbeddingRow([*ids[: most - 1], ids[-1]], [*pieces[: most - 1], pieces[-1]])
        return EmbeddingRow(ids, pieces)


def pieces_of(text: str, found: Any) -> list[str]:
    """Each piece as it stands in the text; what stands nowhere in it ([CLS]) by its name."""
    places = zip(found.offsets, found.tokens, found.special_tokens_mask, strict=True)
    return [token if special or begin == end else text[begin:end] for (begin, end), token, special in places]


# --- files

ENDINGS = (".npy", ".safetensors", ".tsv")


def fits(path: Path) -> None:
    """Is it a file that `write` can write?"""
    if path.suffix not in ENDINGS or path.is_dir():
        raise FileError(f"vectors are written to files that end in {', '.join(ENDINGS)}; given {path}")


def write(path: Path, vectors: Tensor, texts: Sequence[str]) -> None:
    """One vector per text: (N, C) in numpy's format, as the tensor "vectors", or as numbers with tabs between them and
    the texts beside them in NAME.metadata.tsv, both as TensorBoard's projector reads them."""
    store(path, vectors, {})
    if path.suffix == ".tsv":
        write_text(metadata(path), "".join(f"{one_line(text)}\n" for text in texts))


def write_tokens(path: Path, found: Sequence[Tokens], width: int) -> None:
    """The vectors of all texts below each other; NAME.metadata.tsv has the piece and the number of the text of each."""
    where = [number for number, one in enumerate(found, 1) for _ in one.pieces]
    pieces = [piece for one in found for piece in one.pieces]
    vectors = torch.cat([one.vectors.cpu() for one in found]) if found else torch.zeros(0, width)
    store(path, vectors, {"text": torch.tensor(where, dtype=torch.long)})
    lines = (f"{one_line(piece)}\t{number}\n" for piece, number in zip(pieces, where, strict=True))
    write_text(metadata(path), "piece\ttext\n" + "".join(lines))


def store(path: Path, vectors: Tensor, beside: dict[str, Tensor]) -> None:
    if path.suffix == ".npy":
        write_array(path, vectors.cpu().numpy())
    elif path.suffix == ".safetensors":
        write_tensors(path, {"vectors": vectors, **beside})
    else:
        write_text(path, "".join(f"{numbers(row)}\n" for row in vectors.tolist()))


def metadata(path: Path) -> Path:
    return path.with_suffix(".metadata.tsv")


def numbers(vector: Sequence[float]) -> str:
    """All digits that a float32 has."""
    return "\t".join(f"{x:.9g}" for x in vector)


def one_line(text: str) -> str:
    return " ".join(text.split()) if any(mark in text for mark in "\t\r\n") else text
