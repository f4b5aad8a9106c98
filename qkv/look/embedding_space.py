"""The embedding space: nearest neighbours among word vectors, similarity of positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import QkvError
from qkv.look.pictures import BarChart, Heatmap, Picture
from qkv.look.residual_stream import side_modules
from qkv.look.result import LookResult
from qkv.parts.disentangled import Disentangled
from qkv.parts.embed import TokenEmbed
from qkv.parts.masks import Mask
from qkv.parts.position_candidates import CandidatePosition, Unitary
from qkv.parts.positions import Alibi, Learned, Relative, Rotary, Sinusoidal, T5Bias

CHUNK = 65_536
"""Number of words compared at a time."""


@dataclass(frozen=True)
class Neighbours(LookResult):
    """The nearest neighbours of a word by cosine similarity."""

    EXPLANATION: ClassVar[str] = "The words with the largest cosine similarity of embeddings."

    word: str
    words: list[str]
    cosines: Tensor
    """(k,)."""
    pieces: list[str] = field(default_factory=list)
    """The tokens of a word that is not in the vocabulary; its vector is the mean of theirs."""

    def picture(self) -> Picture:
        parts = f" (tokens {' + '.join(self.pieces)})" if len(self.pieces) > 1 else ""
        return BarChart(f"nearest words to '{self.word}'{parts}: cosine similarity", self.words, self.cosines)


@dataclass(frozen=True)
class Positions(LookResult):
    """How a network represents order."""

    EXPLANATION: ClassVar[str] = (
        "Cosine similarity of positions: a band along the diagonal means that nearby positions have similar vectors."
    )

    scheme: str
    """sinusoidal, learned, linear, geometric, exponential, binary, unitary, rotary, relative, disentangled, t5 or alibi."""
    table: Tensor
    """(T, C) position vectors; (T, D/2) rotary angles; (H, T, T) score biases of t5 and alibi; (distances, D) key vectors of
    relative positions; (distances, C) vectors of disentangled ones."""
    similarity: Tensor
    """(T, T): cosine of two positions' vectors; for rotary, of one vector rotated by both; for t5 and alibi the mean bias over
    heads; for relative and disentangled positions, (distances, distances)."""

    def picture(self) -> Picture:
        places = [str(i) for i in range(len(self.similarity))]
        return Heatmap(f"positions ({self.scheme}): cosine similarity", {"": self.similarity}, places, places, True)


def token_embed(network: Any) -> TokenEmbed:
    """Return the embedding of the input tokens; of an encoder-decoder the encoder's."""
    embed = network.get_submodule(side_modules(network, source=True)[0])
    if not isinstance(embed, TokenEmbed):
        raise QkvError("this model reads images and has no word vectors")
    return embed


def word_vectors(network: Any) -> Tensor:
    """Return the static word vectors, (V, C)."""
    return token_embed(network).tokens.weight.detach()


@torch.no_grad()
def static_vectors(network: Any, ids: Tensor) -> Tensor:
    """Return the input embeddings of ids (N,), scaled, normed and projected, without position or segment: (N, C)."""
    embed = token_embed(network)
    x = embed.tokens(ids) * embed.scale  # (N, d_embed)
    if embed.concat and embed.position is not None:
        beside = embed.position.vectors(Mask(1, device=x.device)).size(-1)  # type: ignore[operator]
        x = F.pad(x, (0, beside))
    return embed.project(embed.norm(x))


def nearest(table: Tensor, vector: Tensor, k: int = 10) -> tuple[Tensor, Tensor]:
    """Return the k rows of a table (V, C) nearest to a vector (C,): their numbers and cosines, best first."""
    unit = F.normalize(vector.float(), dim=0)
    cosines = torch.cat([F.normalize(part.float(), dim=1) @ unit for part in table.split(CHUNK)])  # (V,)
    found = cosines.topk(min(k, len(cosines)))
    return found.indices, found.values


def positions(network: Any, length: int = 64, source: bool = False) -> Positions:
    """Return the first `length` positions (fewer where learned ones end) and their similarity."""
    embed, stack = (network.get_submodule(name) for name in side_modules(network, source))
    inside = list(getattr(stack, "positions", ()))
    scheme = getattr(embed, "position", None) or (inside[0] if inside else None)
    if scheme is None:
        raise QkvError("this model has no position encoding: order comes from its recurrence or its causal mask")
    length = min(length, scheme.table.size(0) - scheme.offset) if isinstance(scheme, Learned) else length
    mask = Mask(length, device=next(network.parameters()).device)
    with torch.no_grad():
        return position_table(scheme, mask)


def position_table(scheme: Any, mask: Mask) -> Positions:
    """Return the vectors (or angles, or biases) of a position scheme, and their similarity."""
    if isinstance(scheme, Sinusoidal | Learned | CandidatePosition | Unitary):
        vectors = scheme.vectors(mask)[0]  # (T, C)
        name = scheme.kind if isinstance(scheme, CandidatePosition) else type(scheme).__name__.lower()
        return Positions(name, vectors, cosines(vectors))
    if isinstance(scheme, Rotary):
        angles = mask.positions[0, :, None] * scheme.rates  # type: ignore[operator]  # (T, D/2)
        # one vector with equal components rotated by both: the mean over pairs of cos(angle_m - angle_n)
        return Positions("rotary", angles, (angles[:, None] - angles[None]).cos().mean(-1))
    if isinstance(scheme, T5Bias | Alibi):
        bias = scheme(mask).score_bias(torch.zeros(()), torch.zeros(()))[0]  # (H, T, T)
        return Positions("t5" if isinstance(scheme, T5Bias) else "alibi", bias, bias.mean(0))
    if isinstance(scheme, Disentangled):
        return Positions("disentangled", scheme.vectors, cosines(scheme.vectors))  # of the distances -k ... k - 1
    assert isinstance(scheme, Relative)
    # vectors of separate heads are concatenated
    keys = scheme.keys if scheme.keys.dim() == 2 else scheme.keys.transpose(0, 1).flatten(1)  # (2k+1, D or H * D)
    return Positions("relative", keys, cosines(keys))


def cosines(vectors: Tensor) -> Tensor:
    """Return all cosines of vectors (N, C): (N, N)."""
    unit = F.normalize(vectors.float(), dim=-1)
    return unit @ unit.T
