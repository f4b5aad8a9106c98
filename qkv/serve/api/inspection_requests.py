"""Fields of requests that inspect a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qkv.serve.api.native import NativeRequest
from qkv.serve.http.limits import BoundedStr, Many

Index = Annotated[int, Field(ge=-(2**31), le=2**31)]
"""A layer, head or token: from 0, or negative from the end."""
Indices = Annotated[list[Index], Field(max_length=10_000, fail_fast=True)]
LayerHead = Annotated[list[Index], Field(min_length=2, max_length=2, fail_fast=True)]
AttentionKind = Literal["self", "encoder", "decoder", "cross"] | None


class InspectRequest(NativeRequest):
    """The input to inspect."""

    text: BoundedStr | None = None
    """Text that the model reads."""
    image: BoundedStr | None = None
    """Image (PNG, JPEG ...) in base64, for a model that reads images."""
    target: BoundedStr | None = None
    """Output of an encoder-decoder or of a decoder trained on summaries; default: the model's own output."""
    pair: BoundedStr | None = None
    """Second text of a model that compares two; the question of a model that answers questions about a text."""
    chat: bool = False
    """Treat the text as a user message and apply the chat template."""


class AnswersRequest(InspectRequest):
    position: Index | None = None
    """Token at which to predict; default: the last, or the gap of a text with a gap."""
    top_k: int = Field(default=10, ge=1, le=2**31)


class AttentionKindRequest(InspectRequest):
    kind: AttentionKind = None


class AttentionRequest(AttentionKindRequest):
    layer: Index = -1
    heads: Indices | None = None
    """Default: all heads of the layer."""
    rows: Indices | None = None
    """Query tokens; default: all."""


class WalkRequest(AttentionKindRequest):
    layer: Index = -1
    head: Index = 0


class EffectsRequest(AttentionKindRequest):
    position: Index | None = None
    """Token at whose prediction heads are measured; default: the last."""
    layer: Index | None = None
    """Measure the heads of this layer; default: of all layers."""


class LensRequest(InspectRequest):
    top_k: int = Field(default=5, ge=1, le=2**31)
    columns: Indices | None = None
    """Tokens at which to predict; default: all."""


class AblatedRequest(AttentionKindRequest):
    heads: Annotated[list[LayerHead], Field(max_length=10_000, fail_fast=True)] = []
    """Heads to ablate, as [layer, head]."""
    layers: Indices = []
    """Layers to ablate."""
    max_tokens: int = Field(default=20, ge=0, le=2**31)
    """Tokens to generate; 0 = none."""


class AblationRequest(AblatedRequest, AnswersRequest):
    """Predictions before and after an ablation."""


class PatchRequest(InspectRequest):
    other: BoundedStr | None = None
    """Another text with the same number of tokens, whose activations are used."""
    other_image: BoundedStr | None = None
    """The other image in base64, for a model that reads images."""
    other_target: BoundedStr | None = None
    what: Literal["stream", "attention", "cross", "feedforward", "heads"] = "stream"
    source: bool = False
    """Patch the encoder of an encoder-decoder."""


class AttributionRequest(InspectRequest):
    method: Literal["gradient", "integrated", "occlusion"] = "integrated"
    positions: Indices | None = None
    """Tokens whose predictions are explained; default: the last."""


class PositionsRequest(NativeRequest):
    length: int = Field(default=64, ge=1, le=256)
    source: bool = False
    """Use the encoder of an encoder-decoder."""


class WordRequest(NativeRequest):
    word: str = Field(min_length=1, max_length=200)


class NeighboursRequest(WordRequest):
    top_k: int = Field(default=10, ge=1, le=2**31)


class ContextsRequest(WordRequest):
    texts: Many[BoundedStr] = Field(min_length=1)
    layer: Index = -1
