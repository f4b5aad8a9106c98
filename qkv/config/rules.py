"""Rules for combinations of fields: invalid ones, each with its error message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.config.model import ModelConfig
    from qkv.config.run import TrainConfig

Rules = list[tuple[bool, str]]
"""(whether the rule is broken, the error message)."""


HEADS = {
    "encoder": ("masked", "masked-next", "replaced", "classes", "tags", "span", "pooled", "none"),
    "decoder": ("vocabulary", "classes", "classes-words"),
    "encoder-decoder": ("vocabulary", "classes"),
}
"""Heads that each family supports."""


def impossible(c: ModelConfig) -> list[str]:
    """Return what is wrong with a configuration as a whole; empty if it can be built."""
    groups = (sizes, positions, heads_and_words, images, mixers, switches, recurrence, encoder_width, experts)
    return [message for rules in groups for broken, message in rules(c) if broken]


def config_warnings(c: ModelConfig) -> list[str]:
    """Return warnings about settings that can be built but hardly learn from scratch, each with what to set instead."""
    text, added = c.image_size is None, c.position == "sinusoidal" and c.position_use != "concat"
    if not (text and added and not c.embed_scale):
        return []
    std = c.init_embed_std or c.init_std or (c.d_embed or c.d_model) ** -0.5
    return [
        f"warning: sinusoidal positions (about 0.7 per component) outweigh token embeddings that are not scaled (about {std:.2g}): "
        'the input of an untrained network is hardly affected by the tokens. Set model.embed_scale = true or model.position = "rotary"'
    ]


def outside(c: ModelConfig) -> list[str]:
    """Special ids for which a word matrix has no row: "eos_id = 50256". A recipe may have some until its vocabulary is known."""
    sizes = {c.vocab_size, c.target_size} if c.family == "encoder-decoder" and c.image_size is None else {c.target_size}
    ids = {"bos_id": c.bos_id, "start_id": c.start_id, "forced_id": c.forced_id}
    named = [*ids.items(), *(("eos_id", i) for i in c.eos_ids)]
    wrong = [(name, i) for name, i in named if i is not None and i >= c.target_size]
    wrong += [("pad_id", c.pad_id)] if c.pad_id >= min(sizes) else []
    return [f"{name} = {i}" for name, i in wrong] if c.target_size else []


def sizes(c: ModelConfig) -> Rules:
    """Sizes that must divide each other, and what attention blocks need."""
    return [
        (c.d_head is None and c.recurrent is None and c.d_model % c.n_heads != 0,
         f"n_heads = {c.n_heads} does not divide d_model = {c.d_model}: change one, or set d_head"),
        (c.n_heads % c.kv_heads != 0,
         f"n_kv_heads = {c.kv_heads} does not divide n_heads = {c.n_heads}"),
        ("low-rank" in (c.score, c.decoder_attention) and c.score_rank is None,
         "score or decoder_attention = 'low-rank' needs score_rank"),
        (c.recurrent is None and c.feedforward != "none" and "d_ff" not in c.model_fields_set,
         "d_ff is missing: attention blocks have a feed-forward layer (or feedforward = 'none')"),
        (c.norm_order == "parallel" and c.family == "encoder-decoder" and c.recurrent is None,
         "norm_order = 'parallel' has no slot for cross-attention: use 'pre' or 'post' in family 'encoder-decoder'"),
        (c.norm_order == "parallel" and (c.feedforward == "none" or not c.residual),
         "norm_order = 'parallel' adds attention and feed-forward layer to the residual stream: use 'pre' or 'post' with "
         "feedforward = 'none' or residual = false"),
    ]  # fmt: skip


ABSOLUTE = ("sinusoidal", "learned", "linear", "geometric", "exponential", "binary", "unitary")
"""Positions that are vectors; the others act on queries and keys or on scores."""


def positions(c: ModelConfig) -> Rules:
    """Requirements of the position schemes."""
    return [
        (c.position.startswith("rotary") and c.head_width % 2 != 0,
         f"position = {c.position!r} rotates pairs of dimensions, but the head width is odd ({c.head_width}): set an even d_head"),
        (c.position_use != "add" and c.position not in ABSOLUTE,
         f"position_use = {c.position_use!r} needs position vectors ({', '.join(ABSOLUTE)}), not position = {c.position!r}"),
        (c.position_use == "concat" and (c.d_embed is None or c.d_embed >= c.d_model),
         f"position_use = 'concat' needs d_embed below d_model = {c.d_model} (the rest holds the position), not {c.d_embed}"),
        (c.rotary_scaling is not None and c.position not in ("rotary", "rotary-interleaved"),
         f"rotary_scaling needs position 'rotary' or 'rotary-interleaved', not {c.position!r}"),
        (c.position == "t5" and not 2 <= c.relative_buckets // 2 < c.relative_distance,
         f"position = 't5' needs 4 or more relative_buckets, not {c.relative_buckets}, and a relative_distance above "
         f"half of them, not {c.relative_distance}"),
        (c.position == "disentangled" and c.score not in ("dot", "scaled-dot"),
         f"position = 'disentangled' adds dot products with position vectors to the score: use score 'scaled-dot', not {c.score!r}"),
        (c.rotary_scaling is not None and c.rotary_scaling.low_freq_factor >= c.rotary_scaling.high_freq_factor,
         "rotary_scaling: low_freq_factor must be below high_freq_factor"),
    ]  # fmt: skip


def heads_and_words(c: ModelConfig) -> Rules:
    """Heads of each family, and which embedding matrices can be tied."""
    own = HEADS[c.family]
    return [
        (c.family != "encoder-decoder" and (c.n_decoder_layers is not None or c.target_vocab_size is not None),
         f"n_decoder_layers and target_vocab_size belong to family 'encoder-decoder', not {c.family!r}"),
        (c.family == "encoder" and c.head in ("vocabulary", "classes-words"),
         f"head = {c.head!r}: family 'encoder' does not predict the next token; head is one of {', '.join(map(repr, own))}"),
        (c.family != "encoder" and c.head not in own,
         f"head = {c.head!r} belongs to family 'encoder'; {c.family!r} has {', '.join(map(repr, own))}"),
        (c.is_causal and c.head in ("classes", "classes-words", "pooled") and c.pooling == "first",
         "pooling = 'first': the first vector under a causal mask has seen one token only; use 'last' or 'mean'"),
        (c.is_causal and c.head == "masked-next", "head = 'masked-next' reads the first vector, which under a causal mask has "
         "seen one token only: use head 'masked'"),
        (c.family == "encoder-decoder" and c.head == "classes" and (c.image_size is not None or c.target_size != c.vocab_size),
         "head = 'classes' in family 'encoder-decoder': both halves read the text, so they need one vocabulary and no images"),
        (c.head in ("classes", "classes-words", "tags") and len(c.labels) not in (0, c.n_classes),
         f"n_classes = {c.n_classes}, but labels has {len(c.labels)} names: give one name per class, or leave labels out"),
        (len(set(c.labels)) < len(c.labels), "labels contains a name twice: give each class a different name"),
        (c.tie in ("embeddings", "all") and c.family != "encoder-decoder",
         f"tie = {c.tie!r} shares matrices between encoder and decoder; family {c.family!r} can tie 'output' or 'none'"),
        (c.tie in ("embeddings", "all") and c.target_size != c.vocab_size,
         f"tie = {c.tie!r} needs one vocabulary, but vocab_size = {c.vocab_size} and target_vocab_size = {c.target_size}"),
        (c.copy_source and (c.family != "encoder-decoder" or c.head != "vocabulary" or c.image_size is not None),
         f"copy_source = true copies words of a source text: family 'encoder-decoder' with text, not {c.family!r}"),
        (c.copy_source and c.target_size != c.vocab_size,
         f"copy_source = true needs one vocabulary, but vocab_size = {c.vocab_size} and target_vocab_size = {c.target_size}"),
        (c.n_segments > 0 and c.family != "encoder",
         f"n_segments = {c.n_segments} belongs to family 'encoder', not {c.family!r}"),
        (c.bigram_buckets > 0 and (c.family != "encoder" or c.image_size is not None),
         f"bigram_buckets = {c.bigram_buckets} belongs to family 'encoder' with text: a decoding step reads one token"),
        (any(not 0 <= i < 10_000_000 for i in c.eos_ids) or len(c.eos_ids) > 1000,
         f"eos_id = {str(c.eos_id)[:60]} is not a token: ids are from 0 to 9,999,999"),
    ]  # fmt: skip


def images(c: ModelConfig) -> Rules:
    """Requirements of image models, which read patches instead of tokens."""
    image = c.image_size is not None
    return [
        (image and (c.patch_size is None or c.image_size % c.patch_size != 0),  # type: ignore[operator]
         f"image_size = {c.image_size} is not a multiple of patch_size = {c.patch_size}"),
        (image and c.position == "learned" and c.max_length <= (c.image_size // (c.patch_size or 1)) ** 2,  # type: ignore[operator]
         f"max_length = {c.max_length} is too short for the patches of image_size = {c.image_size} and the [class] vector"),
        (image and c.family == "decoder", "images are read by an encoder: family 'encoder' or 'encoder-decoder'"),
        (not image and c.vocab_size == 0, "vocab_size = 0: set it (or image_size and patch_size for images)"),
        (image and c.tie in ("embeddings", "all"),
         f"tie = {c.tie!r} ties the source embeddings, and an image model has none: use 'output' or 'none'"),
        (image and c.family == "encoder" and c.head not in ("classes", "pooled", "none"),
         f"head = {c.head!r} predicts tokens, and an image has none: use 'classes', 'pooled' or 'none'"),
        (image and c.position_use == "concat", "position_use = 'concat' is for text: use 'add' or 'every-layer' with images"),
    ]  # fmt: skip


CARRIED = {"gated-linear", "s4d", "selective"}
"""Mixers that are no average: a state goes from token to token, in one direction. Encoders have two layers, one per direction."""


SUMMARIES = ("linear", "performer", "taylor", "linformer")
"""Mixers that can be cross-attention: what they read of the source is of fixed size, however long it is."""


def mixers(c: ModelConfig) -> Rules:
    """Requirements of mixers other than softmax attention."""
    return [
        ("s4d" in c.mixer and c.d_state % 2 != 0,
         f"mixer 's4d' has pairs of conjugate numbers, but d_state = {c.d_state} is odd: change it by one"),
        (c.d_key is not None and not {"taylor", "gated-linear"} & {*c.mixer, c.cross_mixer},
         f"d_key = {c.d_key} is for mixers 'taylor' and 'gated-linear'; all others have d_head"),
        (c.position.startswith("rotary") and not {*c.mixer} - CARRIED - {"taylor"},
         f"position = {c.position!r} rotates queries and keys, which mixer = {c.mixer} does not support: use 'none'"),
        (c.position.startswith("rotary") and "linear" in c.mixer,
         f"position = {c.position!r} does not work with mixer 'linear', whose feature map elu(x) + 1 loses the relative position: "
         "use position 'learned', 'sinusoidal' or 'none', or mixer 'performer'"),
        ((c.family != "encoder" or c.is_causal) and "linformer" in c.mixer,
         "mixer 'linformer' mixes all positions, so it cannot be causal: use it in family 'encoder', without causal = true"),
        (any(m != "softmax" for m in (*c.mixer, c.cross_mixer)) and c.score not in ("dot", "scaled-dot"),
         f"mixer = {c.mixer}, cross_mixer = {c.cross_mixer!r} work on dot products, not on score = {c.score!r}"),
        (any(m != "softmax" for m in c.mixer) and c.position in ("relative", "t5", "alibi", "disentangled"),
         f"position = {c.position!r} acts on scores, which mixer = {c.mixer} does not form; use 'learned' or 'sinusoidal'"),
        (c.share_layers and len(set(c.mixer)) > 1,
         f"share_layers = true has one block, so it can have one mixer, not {c.mixer}"),
        (c.attention_dropout > 0 and any(m != "softmax" for m in (*c.mixer, c.cross_mixer)),
         f"attention_dropout = {c.attention_dropout} needs weights to drop, which mixer = {c.mixer}, cross_mixer = "
         f"{c.cross_mixer!r} do not form: set 0"),
        (c.cross_mixer not in ("softmax", *SUMMARIES),
         f"cross_mixer = {c.cross_mixer!r} has no meaning between two texts, which have no common positions and no common order: "
         f"use 'softmax', {', '.join(map(repr, SUMMARIES))}"),
        (c.cross_mixer != "softmax" and (c.family != "encoder-decoder" or c.recurrent is not None),
         f"cross_mixer = {c.cross_mixer!r} is for attention blocks in family 'encoder-decoder'"),
    ]  # fmt: skip


def switches(c: ModelConfig) -> Rules:
    """Parts that can be switched off, and what needs them."""
    carried = ", ".join(sorted(CARRIED & {*c.mixer}))
    return [
        (c.recurrent is not None and not (c.residual and c.causal is None),
         f"residual and causal are for attention blocks, not for recurrent = {c.recurrent!r}: leave them out"),
        (c.recurrent is not None and not c.projections and c.decoder_attention is None,
         "projections = false needs attention: set decoder_attention in a recurrent network"),
        (not c.projections and (c.n_heads * c.head_width != c.d_model or c.kv_heads != c.n_heads or c.d_key is not None),
         f"projections = false splits the input of width {c.d_model} into heads: n_heads * d_head must be d_model, and n_kv_heads "
         "and d_key must be left out"),
        (not c.projections and bool(carried), f"projections = false is for attention; mixer {carried} has maps of its own"),
        (c.causal is False and c.family != "encoder" and bool(carried),
         f"causal = false: mixer {carried} passes a state from token to token, so a decoder cannot see later tokens"),
        (c.prefix_mask and (c.family != "decoder" or c.head != "vocabulary" or not c.is_causal or c.recurrent is not None),
         "prefix_mask = true is for attention blocks in family 'decoder' with head 'vocabulary' and a causal mask"),
        (c.prefix_mask and set(c.mixer) != {"softmax"},
         f"prefix_mask = true needs mixer 'softmax', which attends to any set of tokens, not {c.mixer}"),
        (c.share_encoder_decoder and (c.family != "encoder-decoder" or c.recurrent is not None),
         "share_encoder_decoder = true is for attention blocks in family 'encoder-decoder'"),
        (c.share_encoder_decoder and bool(carried),
         f"share_encoder_decoder = true: mixer {carried} reads in both directions in the encoder and in one in the decoder"),
        (c.share_encoder_decoder and c.decoder_layers != c.n_layers,
         f"share_encoder_decoder = true needs as many decoder layers as encoder layers, not n_layers = {c.n_layers} and "
         f"n_decoder_layers = {c.decoder_layers}"),
    ]  # fmt: skip


def experts(c: ModelConfig) -> Rules:
    """Mixtures of experts replace a feed-forward layer."""
    return [
        (c.n_experts > 0 and (c.recurrent is not None or c.feedforward == "none"),
         f"n_experts = {c.n_experts} needs attention blocks with a feed-forward layer: leave out recurrent and feedforward = 'none'"),
        (0 < c.n_experts < c.experts_per_token,
         f"experts_per_token = {c.experts_per_token} is more than n_experts = {c.n_experts}"),
        (c.n_experts > c.experts_per_token == 1 and c.expert_softmax == "chosen",
         "experts_per_token = 1 with expert_softmax = 'chosen': the weight of a single chosen expert is always 1, so the router "
         "would not be trained; set expert_softmax = 'all' (Switch) or more experts_per_token"),
    ]  # fmt: skip


def encoder_width(c: ModelConfig) -> Rules:
    """An encoder of another width than the decoder."""
    wide = c.d_encoder is not None and c.d_encoder != c.d_model
    return [
        (c.d_encoder is not None and c.family != "encoder-decoder",
         f"d_encoder = {c.d_encoder} belongs to family 'encoder-decoder', not {c.family!r}: use d_model"),
        (wide and c.recurrent is None and c.d_head is None and c.d_encoder % c.n_heads != 0,  # type: ignore[operator]
         f"n_heads = {c.n_heads} does not divide d_encoder = {c.d_encoder}: change one, or set d_head"),
        (wide and c.bidirectional and c.d_encoder % 2 != 0,  # type: ignore[operator]
         f"bidirectional = true gives each direction half of d_encoder, which is odd ({c.d_encoder})"),
        (wide and c.share_encoder_decoder, "share_encoder_decoder = true needs sides of one width: leave out d_encoder"),
        (wide and c.tie in ("embeddings", "all") and c.d_embed is None,
         f"tie = {c.tie!r} needs embeddings of one width: set d_embed, from which both sides are projected"),
        (wide and c.position_use == "concat" and (c.d_embed or 0) >= c.d_encoder,  # type: ignore[operator]
         f"position_use = 'concat' needs d_embed below d_encoder = {c.d_encoder}"),
        (wide and not c.projections and (c.recurrent is None or c.decoder_attention not in ("bilinear", "low-rank")),
         f"projections = false with d_encoder = {c.d_encoder} and d_model = {c.d_model}: only a recurrent decoder with a bilinear or "
         "low-rank decoder_attention compares vectors of different widths"),
    ]  # fmt: skip


def recurrence(c: ModelConfig) -> Rules:
    """Recurrent stacks and the fields that apply only to them."""
    return [
        (c.recurrent is None and (c.bidirectional or c.input_feeding or c.fixed_context or c.reverse_source
                                  or c.decoder_attention is not None),
         "bidirectional, input_feeding, fixed_context, reverse_source and decoder_attention need recurrent = 'elman', 'gru' or "
         "'lstm'"),
        (c.bidirectional and c.family == "decoder", "bidirectional = true reads later tokens: not in family 'decoder'"),
        (c.recurrent is not None and c.bidirectional and c.d_model % 2 != 0,
         f"bidirectional = true gives each direction half of d_model, which is odd ({c.d_model})"),
        (c.input_feeding and c.decoder_attention is None, "input_feeding = true needs decoder_attention"),
        (c.fixed_context and c.decoder_attention is not None,
         "fixed_context = true is for a decoder without attention: leave out decoder_attention"),
        (c.fixed_context and c.family != "encoder-decoder",
         f"fixed_context = true passes the encoder's last vector to the decoder: use family 'encoder-decoder', not {c.family!r}"),
        (c.decoder_attention is not None and c.family != "encoder-decoder",
         f"decoder_attention attends to a source: use family 'encoder-decoder', not {c.family!r}"),
        (c.recurrent is not None and (c.position_use == "every-layer" or c.share_layers or c.mixer != ("softmax",)),
         f"position_use = 'every-layer', share_layers and mixer are for attention blocks, not for recurrent = {c.recurrent!r}"),
        (c.reverse_source and c.family == "decoder", "reverse_source = true reverses a source: not in family 'decoder'"),
    ]  # fmt: skip


# --- training on several workers

DIVISIBLE_MIXERS = {"softmax", "window"}
"""Mixers whose heads have no parameters besides query, key, value and output."""
DIVISIBLE_POSITIONS = {"none", "sinusoidal", "learned", "linear", "geometric", "exponential", "binary", "unitary",
                       "rotary", "rotary-interleaved"}  # fmt: skip
"""Positions that have no term or parameter of the scores of each head."""


def impossible_training(c: ModelConfig, train: TrainConfig, adapts: bool = False) -> list[str]:
    """Return why the recipe's network cannot be divided among workers as `train` requires; `adapts`: with LoRA."""
    rules = [*blocks_alone(c, train), *(tensor_parallel(c, train, adapts) if train.tensor_parallel > 1 else [])]
    return [message for broken, message in rules if broken]


def blocks_alone(c: ModelConfig, train: TrainConfig) -> Rules:
    """Sharding and activation checkpointing work block by block."""
    sharded = train.sharding == "full" or train.tensor_parallel > 1
    return [
        (c.recurrent is not None and (sharded or train.activation_checkpointing),
         "train.sharding, train.tensor_parallel and train.activation_checkpointing are for attention blocks, not for recurrent = "
         f"{c.recurrent!r}: leave them out"),
        (sharded and c.share_encoder_decoder,
         "share_encoder_decoder = true: layers that two blocks share cannot be sharded; leave out train.sharding and "
         "train.tensor_parallel"),
        (sharded and train.compile, "train.compile = true is for whole networks: leave it out, or train.sharding"),
    ]  # fmt: skip


def tensor_parallel(c: ModelConfig, train: TrainConfig, adapts: bool) -> Rules:
    """Every worker of a group has as many heads, and as much of the inner width."""
    n, name = train.tensor_parallel, f"train.tensor_parallel = {train.tensor_parallel}"
    mixers = {*c.mixer, c.cross_mixer} - DIVISIBLE_MIXERS
    return [
        (any(size % n for size in (c.n_heads, c.kv_heads, c.d_ff)),
         f"{name} does not divide n_heads = {c.n_heads}, n_kv_heads = {c.kv_heads} and d_ff = {c.d_ff}: choose a common divisor"),
        (train.workers is not None and train.workers % n != 0,
         f"{name} does not divide train.workers = {train.workers}: start a multiple of {n} workers"),
        (bool(mixers), f"{name} divides heads of softmax attention and windows, not of the mixer {', '.join(sorted(mixers))!r}"),
        (c.position not in DIVISIBLE_POSITIONS, f"{name} does not divide the scores of position = {c.position!r}"),
        (c.score not in ("dot", "scaled-dot"), f"{name} does not divide the parameters of score = {c.score!r}"),
        (c.n_experts > 0, f"{name} does not divide experts: leave out n_experts = {c.n_experts}"),
        (not c.projections, f"{name} divides projections of attention: leave out projections = false"),
        (adapts, f"{name} does not divide LoRA's matrices: leave out tune.lora_rank"),
    ]  # fmt: skip
