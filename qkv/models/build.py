"""Build a network from a ModelConfig: the only place that branches on the family.

Read `build` first: it assembles embedding, stack and head. Each function below builds one of their parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.config import ModelConfig
from qkv.config.rules import CARRIED
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.models.initial import initialise
from qkv.parts.attention import Attention, SummaryAttention
from qkv.parts.bidirectional import Bidirectional
from qkv.parts.block import Block, NoResidual, ParallelBlock, Residual
from qkv.parts.compressed import Compressed
from qkv.parts.disentangled import Disentangled, distance_vectors
from qkv.parts.embed import Bigrams, PatchEmbed, TokenEmbed
from qkv.parts.experts import Experts
from qkv.parts.feedforward import GATED, FeedForward
from qkv.parts.heads import (
    Classes,
    ClassesWords,
    MaskedNext,
    MaskedWord,
    Nothing,
    Pick,
    Pooler,
    Replaced,
    Span,
    Tags,
    Vocabulary,
)
from qkv.parts.linear_attention import GatedLinear, Linear, LinearAttention, Performer, Taylor
from qkv.parts.mixers import Linformer, Window
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.pointer import PointerGenerator
from qkv.parts.position_candidates import CANDIDATES, CandidatePosition, LearnedRotary, Unitary
from qkv.parts.positions import Alibi, Learned, Relative, Rotary, Sinusoidal, T5Bias
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.scores import Dot, make_score
from qkv.parts.softmax import Softmax
from qkv.parts.stack import Stack
from qkv.parts.state_space import Selective, StateSpace

Network = Encoder | Decoder | EncoderDecoder


def build(c: ModelConfig) -> Network:
    """Return the network that `c` describes, with newly initialised weights."""
    if c.family == "encoder-decoder":
        encoder_config = c.changed(d_model=c.d_encoder, d_encoder=None) if c.d_encoder else c
        source, target = embedding(encoder_config, c.vocab_size), token_embedding(c, c.target_size)
        if c.tie in ("embeddings", "all") and isinstance(source, TokenEmbed):
            target.tokens = source.tokens
        encoder = stack(encoder_config, c.n_layers)
        decoder = stack(c, c.decoder_layers, causal=c.is_causal, cross=True)
        if c.share_encoder_decoder:
            share_sublayers(encoder, decoder)
        network: Network = EncoderDecoder(source, encoder, target, decoder, head(c, target), n_patches(c), c.is_causal)
    elif c.family == "encoder":
        embed = embedding(c, c.vocab_size)
        network = Encoder(embed, stack(c, c.n_layers, causal=c.is_causal), head(c, embed), n_patches(c), c.is_causal)
    else:
        embed = embedding(c, c.vocab_size)
        network = Decoder(embed, stack(c, c.n_layers, causal=c.is_causal), head(c, embed), c.is_causal, separator(c))
    initialise(network, c)
    return network


def separator(c: ModelConfig) -> int | None:
    """Return the token before which a decoder with a prefix mask attends in both directions; None = no prefix mask.

    -1, which no token has, where the model names none: no row then has a prefix.
    """
    return None if not c.prefix_mask else -1 if c.first_id is None else c.first_id


def skeleton(c: ModelConfig) -> Network:
    """Return the network on the meta device: names and shapes of all weights, but no memory for their values."""
    with torch.device("meta"), ShapesOnly():
        return build(c)


class NoDraws(TorchFunctionMode):
    """Skip random initialisation within the block: weights that a file overwrites need none, and drawing them takes seconds."""

    DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        return (torch.zeros if func is torch.randn else func)(*args, **(kwargs or {}))


class ShapesOnly(NoDraws):
    """Replace elementwise operations within the block by empty tensors of their shape, which is all that the meta device needs.

    Torch itself would compute these shapes in Python, and import its compiler for that (1.4 s).
    """

    ELEMENTWISE = (Tensor.add, Tensor.sub, Tensor.__rsub__, Tensor.mul, Tensor.div, Tensor.neg, Tensor.__rpow__,
                   Tensor.exp, Tensor.expm1, Tensor.log, Tensor.sin, Tensor.cos, Tensor.clamp)  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.arange:
            return torch.empty(len(range(*args)))
        if func in self.ELEMENTWISE:
            return torch.empty_like(torch.broadcast_tensors(*(arg for arg in args if isinstance(arg, Tensor)))[0])
        return super().__torch_function__(func, types, args, kwargs)


# --- stacks


def stack(c: ModelConfig, n_layers: int, causal: bool = False, cross: bool = False) -> nn.Module:
    """Return the layers of an encoder (not causal) or a decoder; `cross` adds cross-attention to each."""
    if c.recurrent is not None:
        return recurrent_stack(c, n_layers, causal, cross)
    if c.share_layers:  # ALBERT: one block, applied n_layers times
        blocks = [block(c, 0, causal, cross)] * n_layers
    else:
        blocks = [block(c, index, causal, cross) for index in range(n_layers)]
    return Stack(blocks, norm(c) if c.has_final_norm else None, stack_positions(c, n_layers, causal))


def share_sublayers(encoder: Any, decoder: Any) -> None:
    """Let the decoder use the self-attention and feed-forward layers of the encoder; each keeps its own norms."""
    for own, other in zip(decoder.blocks, encoder.blocks, strict=True):
        own.attention.layer = other.attention.layer
        if own.feedforward is not None:
            own.feedforward.layer = other.feedforward.layer


def recurrent_stack(c: ModelConfig, n_layers: int, causal: bool, cross: bool) -> nn.Module:
    """Return the recurrent layers of an encoder (not causal) or a decoder; `cross`: of an encoder-decoder."""
    encodes = not causal
    return RecurrentStack(
        c.recurrent or "", c.d_model, n_layers, dropout=c.dropout,
        bidirectional=encodes and c.bidirectional, reverse=encodes and c.reverse_source,
        score=c.decoder_attention if cross else None, score_rank=c.score_rank, input_feeding=cross and c.input_feeding,
        fixed_context=cross and c.fixed_context, starts_from_memory=cross,
        bridge=cross and (c.bidirectional or c.n_layers != c.decoder_layers or c.d_encoder not in (None, c.d_model)),
        d_memory=c.d_encoder, projections=c.projections,
    )  # fmt: skip


def block(c: ModelConfig, index: int, causal: bool, cross: bool) -> nn.Module:
    """Return layer `index` of a stack: self-attention or what replaces it, feed-forward, and with `cross` cross-attention."""
    self_attention, feedforward = self_attention_layer(c, index, causal), feed_forward(c)
    if c.norm_order == "parallel":
        assert feedforward is not None
        return ParallelBlock(norm(c), self_attention, feedforward, c.dropout)
    cross_attention = cross_attention_layer(c) if cross else None
    return Block(
        residual(c, self_attention),
        None if feedforward is None else residual(c, feedforward),
        None if cross_attention is None else residual(c, cross_attention),
    )


def feed_forward(c: ModelConfig) -> nn.Module | None:
    """Return the feed-forward layer of a block, or the experts in its place."""
    if c.feedforward == "none":
        return None
    layers = [FeedForward(c.d_model, c.d_ff, c.feedforward, c.ffn_bias, c.ffn_dropout) for _ in range(c.n_experts or 1)]
    if not c.n_experts:
        return layers[0]
    return Experts(layers, c.d_model, c.experts_per_token, c.expert_softmax, c.balance_weight)


def residual(c: ModelConfig, layer: nn.Module) -> Residual:
    """Wrap a sublayer with its residual connection, dropout, and the norm before (pre) or after it (post)."""
    pre = c.norm_order == "pre"
    kind = Residual if c.residual else NoResidual
    return kind(layer, norm(c) if pre else None, None if pre else norm(c), c.dropout)


def self_attention_layer(c: ModelConfig, index: int, causal: bool) -> nn.Module:
    """Return the self-attention of layer `index`, or the linear attention or state space in its place.

    The kinds in `model.mixer` alternate: ("window", "softmax") gives window, softmax, window, ... One that reads in a single
    direction (CARRIED) is used twice in an encoder, once per direction.
    """
    kind = c.mixer[index % len(c.mixer)]
    if kind in CARRIED and not causal:
        return Bidirectional(mixer_layer(c, kind), mixer_layer(c, kind))
    return mixer_layer(c, kind)


def mixer_layer(c: ModelConfig, kind: str) -> nn.Module:
    """Return an attention layer with this mixer, or the layer that replaces attention."""
    heads = c.d_model, c.n_heads, c.kv_heads, c.head_width
    if kind == "gated-linear":
        return GatedLinear(*heads, c.attention_bias, c.d_key, c.head_norm_eps)
    if kind == "s4d":
        return StateSpace(c.d_model, c.d_state)
    if kind == "selective":
        return Selective(c.d_model, c.d_state, c.attention_bias == "all")
    if kind in ("linear", "performer", "taylor"):
        d_key = c.d_key if kind == "taylor" else None
        return LinearAttention(*heads, make_mixer(c, kind), c.attention_bias, d_key=d_key, projections=c.projections)
    return Attention(*heads, make_mixer(c, kind), c.attention_bias, projections=c.projections)


def cross_attention_layer(c: ModelConfig) -> Attention:
    """Return the cross-attention of a decoder layer: softmax, or a linear one that reads a summary of the source."""
    linear, heads = c.cross_mixer != "softmax", (c.d_model, c.n_heads, c.kv_heads, c.head_width)
    mixer, d_key = (
        make_mixer(c, c.cross_mixer) if linear else softmax(c),
        c.d_key if c.cross_mixer == "taylor" else None,
    )
    kind = SummaryAttention if linear else Attention
    return kind(*heads, mixer, c.attention_bias, True, d_key, c.projections, c.d_encoder)


def softmax(c: ModelConfig) -> Softmax:
    """Return the softmax mixer with the score that `c.score` names."""
    return Softmax(make_score(c.score, c.n_heads, c.head_width, c.score_rank), c.attention_dropout)


def score_scale(c: ModelConfig, terms: int) -> float:
    """Return the factor of a score that is a sum of so many products."""
    return 1 / math.sqrt(terms) if c.score == "scaled-dot" else 1.0


def make_mixer(c: ModelConfig, kind: str) -> nn.Module:
    """Return the mixer of an attention layer: how its heads compute weights from scores and average the values."""
    scale = score_scale(c, c.head_width)
    if kind == "window":
        return Window(scale, c.window, c.n_global)
    if kind == "linformer":
        return Linformer(scale, c.max_length, c.mixer_rank)
    if kind == "performer":
        return Performer(scale, c.head_width, c.mixer_rank)
    if kind == "linear":
        return Linear()
    if kind == "taylor":
        return Taylor(score_scale(c, c.d_key or c.head_width))
    if kind == "compressed":
        return Compressed(scale, c.kv_heads, c.head_width, c.compression)
    return (
        Softmax(Dot(score_scale(c, 3 * c.head_width)), c.attention_dropout)
        if c.position == "disentangled"
        else softmax(c)
    )


def norm(c: ModelConfig, width: int | None = None) -> nn.Module:
    """Return a norm of this width (None = d_model), as `c.norm` names it."""
    width = width or c.d_model
    if c.norm == "none":
        return nn.Identity()
    return RMSNorm(width, c.norm_eps) if c.norm == "rms" else LayerNorm(width, c.norm_eps, c.norm == "layer")


# --- positions


def absolute_position(c: ModelConfig, width: int) -> nn.Module | None:
    """Return the scheme of position vectors; None for the schemes that act inside the stack (rotary, T5, ALiBi, Shaw, DeBERTa)."""
    if c.position == "sinusoidal":
        return Sinusoidal(width, c.position_base, c.position_layout)
    if c.position == "learned":
        return Learned(c.max_length, width, c.position_offset)
    if c.position == "unitary":
        return Unitary(width, c.position_base)
    return CandidatePosition(c.position, width, c.position_base) if c.position in CANDIDATES else None


def stack_positions(c: ModelConfig, n_layers: int, causal: bool) -> list[nn.Module]:
    """Return the position encodings inside a stack: none, one for all layers, or (Shaw, DeBERTa, learned rotation) one per layer."""
    if c.position_use == "every-layer":
        return [p] if (p := absolute_position(c, c.d_model)) else []
    layers = 1 if c.share_layers else n_layers
    if c.position == "rotary-learned":
        return [LearnedRotary(c.head_width, c.position_base) for _ in range(layers)]
    if c.position.startswith("rotary"):
        return [Rotary(c.head_width, c.position_base, c.position == "rotary-interleaved", c.rotary_scaling)]
    if c.position == "t5":
        return [T5Bias(c.n_heads, c.relative_buckets, c.relative_distance, causal and not c.prefix_mask)]
    if c.position == "alibi":
        return [Alibi(c.n_heads)]
    if c.position == "disentangled":
        vectors = distance_vectors(c.relative_distance, c.d_model)
        return [
            Disentangled(vectors, c.n_heads, c.head_width, score_scale(c, 3 * c.head_width), c.dropout)
            for _ in range(layers)
        ]
    if c.position == "relative":
        heads = c.n_heads if c.relative_per_head else None
        return [Relative(c.head_width, c.relative_distance, score_scale(c, c.head_width), heads) for _ in range(layers)]
    return []


# --- embeddings and heads


def embedding(c: ModelConfig, vocab_size: int) -> TokenEmbed | PatchEmbed:
    """Return the embedding of the input: of patches where the model reads images, of tokens otherwise."""
    if c.image_size is not None:
        position = absolute_position(c, c.d_model) if c.position_use == "add" else None
        return PatchEmbed(
            c.patch_size or 1, c.n_channels, c.d_model, position, norm(c) if c.embed_norm else None, c.dropout
        )
    return token_embedding(c, vocab_size)


def token_embedding(c: ModelConfig, vocab_size: int) -> TokenEmbed:
    """Return the embedding of tokens, with position vectors unless these act in every layer."""
    width = c.d_embed or c.d_model
    concat = c.position_use == "concat"
    full = c.d_model if concat else width  # width of token and position vectors together
    return TokenEmbed(
        nn.Embedding(vocab_size, width),
        c.d_model,
        position=None
        if c.position_use == "every-layer"
        else absolute_position(c, c.d_model - width if concat else width),
        concat=concat,
        n_segments=c.n_segments,
        scale=c.embed_scale,
        norm=norm(c, full) if c.embed_norm else None,
        project=nn.Linear(full, c.d_model) if full != c.d_model else None,
        dropout=c.dropout,
        bigrams=Bigrams(c.bigram_buckets, width) if c.bigram_buckets else None,
    )


def n_patches(c: ModelConfig) -> int:
    """Return the number of patches of an image, 0 where the model reads text."""
    return 0 if c.image_size is None else (c.image_size // (c.patch_size or 1)) ** 2


def head(c: ModelConfig, embed: nn.Module) -> nn.Module:
    """Return the head named `c.head`; `embed` holds the matrix that a tied output layer shares."""
    kind = "gelu" if c.feedforward in ("none", "linear") else c.feedforward  # a head has a non-linearity in any case
    activation = GATED.get(kind, kind)
    if c.head == "vocabulary":
        return vocabulary(c, embed, c.d_model)
    if c.head == "masked":
        return masked_word(c, embed, activation)
    if c.head == "masked-next":
        return MaskedNext(masked_word(c, embed, activation), Classes(c.d_model, 2, Pooler(c.d_model)))
    if c.head == "classes":
        # GPT's has no bias (Radford et al. 2018, eq. 3)
        return Classes(c.d_model, c.n_classes, pooler(c), c.dropout, bias=c.family != "decoder")
    if c.head == "classes-words":
        return ClassesWords(c.d_model, c.n_classes, pooler(c), vocabulary(c, embed, c.d_model), c.dropout)
    if c.head == "span":
        return Span(c.d_model)
    if c.head == "tags":
        return Tags(c.d_model, c.n_classes, c.dropout)
    if c.head == "replaced":
        return Replaced(c.d_model, activation)
    return Pooler(c.d_model, c.pooling) if c.head == "pooled" else Nothing()


def pooler(c: ModelConfig) -> nn.Module:
    """Return the pooling of a sequence into one vector: with a dense layer and tanh (BERT) or without."""
    return Pooler(c.d_model, c.pooling) if c.pooler else Pick(c.pooling)


def masked_word(c: ModelConfig, embed: nn.Module, activation: str) -> MaskedWord:
    width = c.d_embed or c.d_model
    return MaskedWord(vocabulary(c, embed, width), c.d_model, width, activation, norm(c, width))


def vocabulary(c: ModelConfig, embed: nn.Module, d_in: int) -> Vocabulary:
    """Return the output layer, vectors of width `d_in` -> logits; when tied, its matrix is that of the embedding."""
    tied = embed.tokens.weight if c.tie in ("output", "all") else None  # type: ignore[union-attr]
    width = (c.d_embed or c.d_model) if tied is not None else d_in
    scale = c.d_model**-0.5 if c.output_scale else 1.0
    if c.copy_source:
        return PointerGenerator(c.target_size, width, d_in, tied, c.output_bias, scale, c.d_encoder)  # type: ignore[arg-type]
    return Vocabulary(c.target_size, width, d_in, tied, c.output_bias, scale)  # type: ignore[arg-type]
