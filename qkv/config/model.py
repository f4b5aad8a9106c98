"""ModelConfig: one network, whichever family, as a flat record. Each default is written once, here."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from qkv.config.rules import impossible
from qkv.config.strict import Strict

Family = Literal["encoder-decoder", "encoder", "decoder"]
Position = Literal[
    "none", "sinusoidal", "learned", "linear", "geometric", "exponential", "binary", "unitary",
    "rotary", "rotary-interleaved", "rotary-learned", "relative", "t5", "alibi", "disentangled",
]  # fmt: skip
Score = Literal["dot", "scaled-dot", "bilinear", "low-rank", "additive"]
Mixer = Literal[
    "softmax", "window", "linformer", "performer", "linear", "taylor", "compressed", "gated-linear", "s4d", "selective"
]
FeedForward = Literal[
    "relu", "gelu", "gelu-tanh", "silu", "reglu", "geglu", "geglu-tanh", "swiglu", "bilinear", "linear", "none"
]
Head = Literal[
    "vocabulary", "masked", "masked-next", "replaced", "classes", "classes-words", "tags", "span", "pooled", "none"
]


INITIAL = ("init", "init_std", "init_embed_std", "init_residual")
"""Fields that affect only the initial weights."""


class RotaryScaling(Strict):
    """Llama 3's scaling of rotary wavelengths: long ones by `factor`, short ones unchanged, a ramp in between."""

    factor: float = Field(gt=0)
    """Factor by which the longest wavelengths are multiplied."""
    low_freq_factor: float = Field(gt=0)
    """Wavelengths over original_length / low_freq_factor are scaled by the full factor."""
    high_freq_factor: float = Field(gt=0)
    """Wavelengths under original_length / high_freq_factor are not scaled."""
    original_length: int = Field(gt=0, le=100_000_000)
    """Context length before scaling."""


class ModelConfig(Strict):
    """Configuration of a network of any family: sizes, parts and special token ids."""

    # --- what it is
    family: Family
    """Architecture: encoder-decoder, encoder only or decoder only."""
    head: Head = "vocabulary"
    """Output head: next token (vocabulary), masked tokens (masked-next: also next-sentence prediction, BERT), replaced-token detection
    (ELECTRA), classes (classes-words: also the next token, GPT), tags per token, answer span, pooled vector, or none."""

    # --- sizes
    vocab_size: int = Field(default=0, ge=0, le=10_000_000)
    """Size of the vocabulary (encoder-decoder: of the source); 0 for images."""
    target_vocab_size: int | None = Field(default=None, gt=0, le=10_000_000)
    """Encoder-decoder: size of a separate target vocabulary; None = vocab_size."""
    d_model: int = Field(gt=0, le=1_000_000)
    """Width of the residual stream, C."""
    d_encoder: int | None = Field(default=None, gt=0, le=1_000_000)
    """Encoder-decoder: width of the encoder if it differs from d_model, which is then the decoder's."""
    n_layers: int = Field(gt=0, le=10_000)
    """Number of blocks; in an encoder-decoder, of the encoder."""
    n_decoder_layers: int | None = Field(default=None, gt=0, le=10_000)
    """Encoder-decoder: number of decoder blocks; None = n_layers."""
    n_heads: int = Field(default=1, gt=0, le=10_000)
    """Number of attention heads, H."""
    n_kv_heads: int | None = Field(default=None, gt=0, le=10_000)
    """Number of key and value heads (grouped-query attention); None = n_heads."""
    d_head: int | None = Field(default=None, gt=0, le=1_000_000)
    """Width of one head, D; None = d_model / n_heads."""
    d_key: int | None = Field(default=None, gt=0, le=1_000_000)
    """Mixers taylor and gated-linear: width of a head's queries and keys; None = d_head."""
    d_state: int = Field(default=16, gt=1, le=1_000_000)
    """Mixers s4d and selective: size of the state per channel, N."""
    d_ff: int = Field(default=1, gt=0, le=10_000_000)
    """Inner width of the feed-forward layer."""
    d_embed: int | None = Field(default=None, gt=0, le=1_000_000)
    """Width of the token embeddings if it differs from d_model (ELECTRA, ALBERT; concatenated positions fill the rest of d_model)."""
    max_length: int = Field(default=512, gt=0, le=100_000_000)
    """Maximum sequence length; number of rows of learned positions."""

    # --- parts
    feedforward: FeedForward = "relu"
    """Activation of the feed-forward layer; those ending in glu and bilinear are gated; linear: two linear maps without an
    activation; none: no feed-forward layer (Mamba)."""
    n_experts: int = Field(default=0, ge=0, le=10_000)
    """Mixture of experts: number of feed-forward layers in each block, of which every token uses a few; 0 = one plain layer."""
    experts_per_token: int = Field(default=2, gt=0, le=10_000)
    """Mixture of experts: number of experts that the router chooses for each token."""
    expert_softmax: Literal["chosen", "all"] = "chosen"
    """Mixture of experts: weights of the chosen experts by a softmax over their router logits (Mixtral) or over all (Switch)."""
    balance_weight: float = Field(default=0.01, ge=0)
    """Mixture of experts: weight of the load-balancing loss of each layer in the training loss (Switch Transformer)."""
    norm: Literal["layer", "layer-without-bias", "rms", "none"] = "layer"
    """LayerNorm, LayerNorm without its bias (PaLM), RMSNorm, or no norm anywhere."""
    norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    """Epsilon of the norms, added to the variance under the square root."""
    head_norm_eps: float = Field(default=1e-3, gt=0, lt=1)
    """Mixer gated-linear: epsilon of the norm of each head. Its input at the first token is (q . k) v, which may be close
    to 0; a small epsilon then amplifies rounding errors. The GLA authors' code uses 1e-6."""
    norm_order: Literal["pre", "post", "parallel"] = "post"
    """Place of the norms: before each sublayer (pre), after the residual sum (post), or one norm before parallel sublayers (PaLM)."""
    residual: bool = True
    """Add the output of each sublayer to its input (residual connection); false: the output replaces it."""
    final_norm: bool | None = None
    """Apply a norm after the last block of each stack; None = yes unless post-norm."""
    embed_norm: bool = False
    """Apply a norm to the embeddings (BERT, BART, BLOOM)."""
    embed_scale: bool = False
    """Multiply token embeddings by sqrt(d_model) (2017 Transformer)."""
    position: Position = "sinusoidal"
    """Position encoding: vectors of the positions (sinusoidal, learned; lecture 004's candidates linear, geometric, exponential, binary,
    unitary), rotated queries and keys (rotary), or a term of the scores (relative: Shaw, t5, alibi, disentangled: DeBERTa)."""
    position_use: Literal["add", "concat", "every-layer"] = "add"
    """How position vectors (sinusoidal, learned and the candidates) are combined with the token embeddings."""
    position_base: float = Field(default=10_000.0, gt=1)
    """Base of the sinusoidal or rotary wavelengths (10,000 in 2017; 500,000 in Llama 3)."""
    position_layout: Literal["interleaved", "halves"] = "interleaved"
    """Sinusoids as sin cos sin cos (the paper) or all sines then all cosines (Marian, tensor2tensor)."""
    position_offset: int = Field(default=0, ge=0, le=1_000_000)
    """Rows skipped at the start of a learned table (BART 2, RoBERTa pad + 1)."""
    rotary_scaling: RotaryScaling | None = None
    """Scaling of the rotary wavelengths as in Llama 3."""
    relative_distance: int = Field(default=128, gt=0, le=100_000_000)
    """Maximum relative distance; larger distances are treated as equal (T5, Shaw, DeBERTa)."""
    relative_per_head: bool = False
    """Shaw: separate relative-position vectors per head (the paper's base model) instead of shared ones (its big model)."""
    relative_buckets: int = Field(default=32, gt=1, le=1_000_000)
    """T5: number of distance buckets."""
    attention_bias: Literal["none", "qkv", "all", "all-but-key"] = "all"
    """Attention projections that have a bias (all-but-key: DeBERTa)."""
    projections: bool = True
    """Project to queries, keys, values and back with learned matrices; false: queries, keys and values are the input itself,
    split into heads, softmax(x x^T / sqrt(D)) x, and there is no output projection. Recurrent decoder: decoder_attention compares
    the state with the encoder's vectors directly."""
    ffn_bias: bool = True
    """Use biases in the feed-forward layer."""
    score: Score = "scaled-dot"
    """Score function of query and key."""
    score_rank: int | None = Field(default=None, gt=0, le=1_000_000)
    """Rank of the low-rank bilinear score."""
    mixer: tuple[Mixer, ...] = Field(default=("softmax",), min_length=1)
    """How tokens are mixed: by a form of attention, or by a recurrent state (gated-linear, s4d, selective), which encoders
    compute in both directions and add. A list is assigned to the layers cyclically."""
    cross_mixer: Mixer = "softmax"
    """Encoder-decoder: mixer of the cross-attention: softmax, or one that reduces the source to a summary of fixed size, which is
    computed once and read by every target token: linear, performer, taylor or linformer."""
    causal: bool | None = None
    """Causal mask: a token attends only to itself and those before it; None = in decoders, not in encoders. A decoder with
    causal = false is trained with all tokens visible, including those that it must predict; generation stays token by token.
    Encoder-decoder: applies to the decoder."""
    prefix_mask: bool = False
    """Decoder for translations or summaries: the source, which is all tokens before the first start token, is visible in both
    directions, as in an encoder; the tokens after it are causal."""
    window: int = Field(default=256, gt=0, le=100_000_000)
    """Window mixer: number of tokens on each side that a query attends to."""
    n_global: int = Field(default=0, ge=0, le=100_000_000)
    """Window mixer: number of global tokens at the start, which attend to all tokens and are attended to by all (Longformer)."""
    mixer_rank: int = Field(default=64, gt=0, le=1_000_000)
    """Linformer: projected length; Performer: number of random features."""
    compression: int = Field(default=3, gt=0, le=1_000_000)
    """Compressed mixer: stride of the convolution over keys and values."""
    share_layers: bool = False
    """Share the weights of one block among all layers (ALBERT)."""
    share_encoder_decoder: bool = False
    """Encoder-decoder: the self-attention and feed-forward layers of the encoder are also those of the decoder; norms and
    cross-attention are separate."""

    # --- recurrent stacks
    recurrent: Literal["elman", "gru", "lstm"] | None = None
    """Use a recurrent cell instead of attention blocks. Settings of the blocks do not apply: heads, feed-forward layers, norms,
    and position encodings within attention (rotary, relative, t5, alibi)."""
    bidirectional: bool = False
    """Recurrent encoder: read the source in both directions."""
    decoder_attention: Score | None = None
    """Recurrent decoder: score function of the attention to the source; None = no attention."""
    input_feeding: bool = False
    """Recurrent decoder: attend after the cell and feed the result into the next time step (Luong), instead of before it (Bahdanau)."""
    fixed_context: bool = False
    """Recurrent decoder without attention: the encoder's last vector is an input at every time step (Cho), instead of
    only initialising the decoder (Sutskever)."""
    reverse_source: bool = False
    """Recurrent encoder: reverse the source (Sutskever)."""

    # --- input and output
    n_segments: int = Field(default=0, ge=0, le=1000)
    """Number of segment embeddings (BERT: 2); 0 = none."""
    bigram_buckets: int = Field(default=0, ge=0, le=10_000_000)
    """Text encoders: number of hash buckets of bigram embeddings, which are added to the token embeddings (fastText). They help
    classifiers with little data; 0 = none."""
    image_size: int | None = Field(default=None, gt=0, le=100_000)
    """Side of a square image (ViT); None = text."""
    patch_size: int | None = Field(default=None, gt=0, le=100_000)
    """Side of a square patch."""
    n_channels: int = Field(default=3, gt=0, le=10_000)
    """Colour channels of the image."""
    tie: Literal["none", "embeddings", "output", "all"] = "none"
    """Weight tying: source and target embeddings, (target) embedding and output matrix, or all three."""
    copy_source: bool = False
    """Encoder-decoder: mix the distribution over the vocabulary with one over the source tokens, so that words can be copied (pointer-
    generator, See et al. 2017)."""
    output_bias: bool = False
    """Use a bias in the output layer."""
    output_scale: bool = False
    """Multiply the last hidden vectors by d_model^-0.5 before the output layer (T5 v1.0)."""
    n_classes: int = Field(default=2, gt=0, le=10_000_000)
    """Number of classes or tags."""
    pooler: bool = True
    """Classification: apply a dense tanh layer to the pooled vector (BERT; without: ViT)."""
    pooling: Literal["first", "mean", "last"] = "first"
    """Classification: how token vectors are pooled; decoders use the last, which depends on the whole text."""
    keep: Literal["start", "ends"] = "start"
    """Classification: part to keep of a text that is too long: its start or both ends (Sun et al. 2019)."""
    labels: tuple[str, ...] = ()
    """Names of the classes or tags, in order."""

    # --- regularisation and initial weights
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the embeddings and on the output of each sublayer."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on attention weights; above 0, the fast kernel cannot be used on a CPU."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout within the feed-forward layer, after the activation."""
    init: Literal["xavier", "lecun", "torch"] = "xavier"
    """Initialisation of matrices (out, in): uniform with variance 2 / (in + out), normal with variance 1 / in (T5, PaLM), or uniform within
    1 / sqrt(in), PyTorch's default (Mamba). With score = "dot" queries start smaller by sqrt(d_head)."""
    init_std: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial matrices and embeddings, overriding `init`; None = determined by `init`."""
    init_embed_std: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial token embeddings; None = init_std, or 1 / sqrt(width) without one."""
    init_residual: bool = False
    """Divide the initial output projection of each sublayer by the square root of the number of sublayers in the stack, so that the
    residual stream does not grow with depth (GPT-2, Mamba). No effect in recurrent networks."""

    # --- special tokens
    pad_id: int = Field(default=0, ge=0, lt=10_000_000)
    """Id of the padding token."""
    bos_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Id of the beginning-of-sequence token."""
    eos_id: int | tuple[int, ...] | None = None
    """Id of the end-of-sequence token, or a list of ids."""
    start_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Encoder-decoder: id of the first decoder token; None = bos_id."""
    forced_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Encoder-decoder: id of the token that every output begins with, after start_id (BART's forced_bos_token_id)."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        """Convert lists, which JSON and TOML have, to tuples."""
        if isinstance(values, dict):
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            if isinstance(values.get("mixer"), str):
                values["mixer"] = (values["mixer"],)
        return values

    @model_validator(mode="after")
    def _possible(self) -> ModelConfig:
        for problem in impossible(self):
            raise ValueError(problem)
        return self

    # --- derived sizes, defined once
    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers or self.n_layers

    @property
    def target_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def has_final_norm(self) -> bool:
        return self.norm_order != "post" if self.final_norm is None else self.final_norm

    @property
    def is_causal(self) -> bool:
        return self.family != "encoder" if self.causal is None else self.causal

    @cached_property
    def first_id(self) -> int | None:
        """Return the id of the first decoder token."""
        return self.bos_id if self.start_id is None else self.start_id

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        if self.eos_id is None:
            return ()
        return (self.eos_id,) if isinstance(self.eos_id, int) else self.eos_id
