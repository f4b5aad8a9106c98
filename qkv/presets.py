"""Named configurations, each with its paper; no torch import. Where a preset departs from the paper, its line says so.

Numbers are data: a new size of a known architecture is one line here and nothing anywhere else.
"""

from __future__ import annotations

import difflib
from typing import Any

from qkv.config.model import ModelConfig, RotaryScaling
from qkv.errors import ConfigError

PRESETS: dict[str, ModelConfig] = {}
"""Name -> configuration, in the order of the definitions below."""
ABOUT: dict[str, str] = {}
"""Name -> what it is and where it comes from."""


def define(name: str, about: str, like: ModelConfig | None = None, **fields: Any) -> ModelConfig:
    """Enter a preset: fields alone, or the changes to another one."""
    config = ModelConfig(**fields) if like is None else like.changed(**fields)
    PRESETS[name], ABOUT[name] = config, about
    return config


def preset(name: str) -> ModelConfig:
    """The configuration of that name."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "'qkv presets' lists all"
    raise ConfigError(f"no preset {name!r}; {hint}")


# --- encoder-decoders

BASE = define(
    "transformer-base",
    "Vaswani et al. 2017, Attention is all you need: base, English-German vocabulary of 37,000",
    family="encoder-decoder", vocab_size=37_000, d_model=512, n_layers=6, n_heads=8, d_ff=2048, feedforward="relu",
    norm_order="post", position="sinusoidal", embed_scale=True, tie="all", attention_bias="none", dropout=0.1,
    pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define("transformer-big", "Vaswani et al. 2017: big", BASE, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3)
define(
    "transformer-relative",
    "Shaw et al. 2018, Self-attention with relative position representations: base, distances clipped at 16, vectors per head",
    BASE, d_ff=1024, position="relative", relative_distance=16, relative_per_head=True,
)  # fmt: skip
define(
    "tiny",
    "a 2017 Transformer for a few minutes on a CPU (the size the benchmarks train)",
    BASE, vocab_size=10_000, d_model=128, n_layers=4, n_heads=4, d_ff=256, attention_bias="all",
)  # fmt: skip

SEQ2SEQ = define(
    "lstm-seq2seq",
    "Sutskever et al. 2014, Sequence to sequence learning: 4 layers of 1000 cells, source reversed",
    family="encoder-decoder", recurrent="lstm", vocab_size=160_000, target_vocab_size=80_000, d_model=1000, n_layers=4,
    reverse_source=True, position="none", dropout=0.0, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define(
    "rnnenc",
    "Cho et al. 2014, RNN encoder-decoder: the encoder's last vector is an input at every time step; no maxout before the output layer",
    family="encoder-decoder", recurrent="gru", vocab_size=15_000, target_vocab_size=15_000, d_model=1000, d_embed=100,
    n_layers=1, fixed_context=True, position="none", dropout=0.0, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define(
    "rnnsearch",
    "Bahdanau et al. 2015: bidirectional GRU, additive attention; here the directions share d_model, no maxout before the output layer",
    family="encoder-decoder", recurrent="gru", vocab_size=30_000, target_vocab_size=30_000, d_model=1000, d_embed=620,
    n_layers=1, bidirectional=True, decoder_attention="additive", position="none", dropout=0.0, pad_id=0, bos_id=1,
    eos_id=2,
)  # fmt: skip
define(
    "luong",
    "Luong et al. 2015: LSTM with bilinear attention and input feeding; here also query and key are projected",
    SEQ2SEQ, vocab_size=50_000, target_vocab_size=50_000, decoder_attention="bilinear", input_feeding=True, dropout=0.2,
)  # fmt: skip

T5 = define(
    "t5-small",
    "Raffel et al. 2020, T5 v1.0: unscaled dot products, bucketed distances, RMS norm, no biases",
    family="encoder-decoder", vocab_size=32_128, d_model=512, n_layers=6, n_heads=8, d_head=64, d_ff=2048,
    feedforward="relu", norm="rms", norm_eps=1e-6, norm_order="pre", position="t5", score="dot", attention_bias="none",
    ffn_bias=False, tie="all", output_scale=True, dropout=0.1, attention_dropout=0.1, ffn_dropout=0.1,
    init="lecun", init_embed_std=1.0, pad_id=0, eos_id=1, start_id=0,
)  # fmt: skip
define("t5-base", "T5 v1.0 base", T5, d_model=768, n_layers=12, n_heads=12, d_ff=3072)
define("t5-large", "T5 v1.0 large", T5, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
T5_3B = define("t5-3b", "T5 v1.0 3B", T5, d_model=1024, n_layers=24, n_heads=32, d_head=128, d_ff=16_384)
define("t5-11b", "T5 v1.0 11B", T5_3B, n_heads=128, d_ff=65_536)
T5_1 = define(
    "t5-v1.1-small",
    "T5 v1.1: gated GELU (Shazeer 2020), output matrix not tied to the embedding",
    T5, n_layers=8, n_heads=6, d_ff=1024, feedforward="geglu-tanh", tie="embeddings", output_scale=False,
)  # fmt: skip
define("t5-v1.1-base", "T5 v1.1 base", T5_1, d_model=768, n_layers=12, n_heads=12, d_ff=2048)

BART = define(
    "bart-base",
    "Lewis et al. 2020, BART: a denoising autoencoder; learned positions after two unused rows",
    family="encoder-decoder", vocab_size=50_265, d_model=768, n_layers=6, n_heads=12, d_ff=3072, feedforward="gelu",
    norm_order="post", embed_norm=True, position="learned", position_offset=2, max_length=1024, tie="all",
    output_bias=True, dropout=0.1, attention_dropout=0.1, ffn_dropout=0.1, init_std=0.02,
    pad_id=1, bos_id=0, eos_id=2, start_id=2,
)  # fmt: skip
define("bart-large", "BART large", BART, d_model=1024, n_layers=12, n_heads=16, d_ff=4096)
define(
    "marian",
    "Junczys-Dowmunt et al. 2018, in the OPUS-MT sizes (Tiedemann and Thottingal 2020), English-German",
    family="encoder-decoder", vocab_size=58_101, d_model=512, n_layers=6, n_heads=8, d_ff=2048, feedforward="silu",
    norm_order="post", position="sinusoidal", position_layout="halves", embed_scale=True, tie="all", output_bias=True,
    dropout=0.1, init_std=0.02, pad_id=58_100, eos_id=0, start_id=58_100,
)  # fmt: skip

# --- encoders

BERT = define(
    "bert-base",
    "Devlin et al. 2019, BERT (uncased)",
    family="encoder", head="masked", vocab_size=30_522, d_model=768, n_layers=12, n_heads=12, d_ff=3072,
    feedforward="gelu", norm_order="post", norm_eps=1e-12, embed_norm=True, position="learned", n_segments=2,
    tie="output", output_bias=True, dropout=0.1, attention_dropout=0.1, init_std=0.02,
)  # fmt: skip
define("bert-large", "BERT large", BERT, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
define(
    "minilm-l6",
    "Wang et al. 2020, MiniLM: 6 layers x 384, distilled; the size of sentence-transformers' all-MiniLM-L6-v2",
    BERT, d_model=384, n_layers=6, n_heads=12, d_ff=1536,
)  # fmt: skip
ROBERTA = define(
    "roberta-base",
    "Liu et al. 2019, RoBERTa: BERT trained longer; byte-level BPE, one segment",
    BERT, vocab_size=50_265, norm_eps=1e-5, n_segments=1, position_offset=2, pad_id=1, bos_id=0, eos_id=2,
)  # fmt: skip
define("roberta-large", "RoBERTa large", ROBERTA, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
ELECTRA = define(
    "electra-small",
    "Clark et al. 2020, ELECTRA: replaced-token detection (the discriminator)",
    BERT, head="replaced", d_model=256, n_heads=4, d_ff=1024, d_embed=128, tie="none", output_bias=False,
)  # fmt: skip
define(
    "electra-small-generator",
    "ELECTRA: the small masked-word model that proposes replacements",
    ELECTRA, head="masked", tie="output", output_bias=True,
)  # fmt: skip
define("electra-base", "ELECTRA base (generator_size: 1/3)", ELECTRA, d_model=768, n_heads=12, d_ff=3072, d_embed=768)
define("electra-large", "ELECTRA large", ELECTRA, d_model=1024, n_layers=24, n_heads=16, d_ff=4096, d_embed=1024)
define(
    "deberta-base",
    "He et al. 2021, DeBERTa: disentangled attention; without the absolute positions before its masked-word head, as in transformers",
    ROBERTA, position="disentangled", relative_distance=512, attention_bias="all-but-key", n_segments=0, position_offset=0,
    norm_eps=1e-7, pad_id=0, bos_id=1,
)  # fmt: skip
ALBERT = define(
    "albert-base",
    "Lan et al. 2020, ALBERT v2: one block used twelve times, narrow token embeddings",
    BERT, vocab_size=30_000, d_embed=128, share_layers=True, feedforward="gelu-tanh", dropout=0.0,
    attention_dropout=0.0, bos_id=2, eos_id=3,
)  # fmt: skip
define("albert-large", "ALBERT v2 large", ALBERT, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
define("albert-xlarge", "ALBERT v2 xlarge", ALBERT, d_model=2048, n_layers=24, n_heads=16, d_ff=8192)
define("albert-xxlarge", "ALBERT v2 xxlarge", ALBERT, d_model=4096, n_heads=64, d_ff=16_384)
define(
    "roformer",
    "Su et al. 2021, RoFormer: BERT with rotary positions",
    BERT, position="rotary-interleaved", max_length=1536,
)  # fmt: skip
define(
    "longformer-base",
    "Beltagy et al. 2020, Longformer: 256 neighbours on each side, the first token global (with the same projections)",
    ROBERTA, mixer=("window",), window=256, n_global=1, max_length=4096, attention_dropout=0.0,
)  # fmt: skip
define(
    "linformer",
    "Wang et al. 2020, Linformer: keys and values projected from 512 positions to 256",
    ROBERTA, mixer=("linformer",), mixer_rank=256, attention_dropout=0.0,
)  # fmt: skip
VIT = define(
    "vit-b16",
    "Dosovitskiy et al. 2021, An image is worth 16x16 words: Base, 224 pixels, ImageNet's 1000 classes",
    family="encoder", head="classes", n_classes=1000, pooler=False, image_size=224, patch_size=16, d_model=768,
    n_layers=12, n_heads=12, d_ff=3072, feedforward="gelu", norm_order="pre", norm_eps=1e-12, position="learned",
    max_length=197, dropout=0.0, init_std=0.02,
)  # fmt: skip
define("vit-l16", "ViT Large", VIT, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
define(
    "vit-h14", "ViT Huge, patches of 14 pixels", VIT, d_model=1280, n_layers=32, n_heads=16, d_ff=5120, patch_size=14,
    max_length=257,
)  # fmt: skip

# --- decoders

GPT2 = define(
    "gpt2",
    "Radford et al. 2019, GPT-2",
    family="decoder", vocab_size=50_257, d_model=768, n_layers=12, n_heads=12, d_ff=3072, feedforward="gelu-tanh",
    norm_order="pre", position="learned", max_length=1024, tie="output", dropout=0.1, attention_dropout=0.1,
    init_std=0.02, init_residual=True, pad_id=50_256, bos_id=50_256, eos_id=50_256,
)  # fmt: skip
define("gpt2-medium", "GPT-2 medium", GPT2, d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
define("gpt2-large", "GPT-2 large", GPT2, d_model=1280, n_layers=36, n_heads=20, d_ff=5120)
define("gpt2-xl", "GPT-2 XL", GPT2, d_model=1600, n_layers=48, n_heads=25, d_ff=6400)
define(
    "gpt",
    "Radford et al. 2018, GPT: post-norm",
    GPT2, vocab_size=40_478, norm_order="post", max_length=512, init_residual=False, pad_id=0, bos_id=None, eos_id=None,
)  # fmt: skip

GPT3 = GPT2.changed(max_length=2048, dropout=0.0, attention_dropout=0.0)
for _name, _size, _layers, _width, _heads, _head in [
    ("small", "125M", 12, 768, 12, 64),
    ("medium", "350M", 24, 1024, 16, 64),
    ("large", "760M", 24, 1536, 16, 96),
    ("xl", "1.3B", 24, 2048, 24, 128),  # as printed: 24 x 128 is not 2048
    ("2.7b", "2.7B", 32, 2560, 32, 80),
    ("6.7b", "6.7B", 32, 4096, 32, 128),
    ("13b", "13B", 40, 5140, 40, 128),  # as printed: 40 x 128 is not 5140
    ("175b", "175B", 96, 12_288, 96, 128),
]:
    define(
        f"gpt3-{_name}",
        f"Brown et al. 2020, GPT-3 {_size}, table 2.1; all layers dense",
        GPT3, d_model=_width, n_layers=_layers, n_heads=_heads, d_head=_head, d_ff=4 * _width,
    )  # fmt: skip

LLAMA = define(
    "llama-7b",
    "Touvron et al. 2023, LLaMA: RMS norm, SwiGLU, rotary positions, no biases",
    family="decoder", vocab_size=32_000, d_model=4096, n_layers=32, n_heads=32, d_ff=11_008, feedforward="swiglu",
    norm="rms", norm_eps=1e-6, norm_order="pre", position="rotary", attention_bias="none", ffn_bias=False,
    max_length=2048, dropout=0.0, init_std=0.02, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define("llama-13b", "LLaMA 13B", LLAMA, d_model=5120, n_layers=40, n_heads=40, d_ff=13_824)
define("llama-30b", "LLaMA 33B, released as 30B", LLAMA, d_model=6656, n_layers=60, n_heads=52, d_ff=17_920)
define("llama-65b", "LLaMA 65B", LLAMA, d_model=8192, n_layers=80, n_heads=64, d_ff=22_016)
LLAMA2 = define("llama2-7b", "Touvron et al. 2023, Llama 2", LLAMA, max_length=4096, norm_eps=1e-5)
define(
    "llama2-70b",
    "Llama 2 70B: grouped-query attention with 8 key-value heads (Ainslie et al. 2023)",
    LLAMA2, d_model=8192, n_layers=80, n_heads=64, n_kv_heads=8, d_ff=28_672,
)  # fmt: skip
LLAMA3 = define(
    "llama3-8b",
    "Grattafiori et al. 2024, Llama 3: vocabulary of 128,256, rotary base 500,000",
    LLAMA2, vocab_size=128_256, n_kv_heads=8, d_ff=14_336, position_base=500_000.0, max_length=8192,
    pad_id=128_001, bos_id=128_000, eos_id=128_001,
)  # fmt: skip
define("llama3-70b", "Llama 3 70B", LLAMA3, d_model=8192, n_layers=80, n_heads=64, d_ff=28_672)
STRETCH = RotaryScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
LLAMA31 = define(
    "llama3.1-8b",
    "Llama 3.1: 131,072 tokens by scaling the long rotary wavelengths",
    LLAMA3, max_length=131_072, rotary_scaling=STRETCH, pad_id=128_004,
)  # fmt: skip
define(
    "llama3.2-1b",
    "Llama 3.2 1B: tied embeddings, rotary scaling by 32",
    LLAMA31, d_model=2048, n_layers=16, d_head=64, d_ff=8192, tie="output", rotary_scaling=STRETCH.changed(factor=32.0),
)  # fmt: skip
PALM = define(
    "palm-8b",
    "Chowdhery et al. 2022, PaLM 8B: parallel sublayers, multi-query attention, SwiGLU, no biases",
    family="decoder", vocab_size=256_000, d_model=4096, n_layers=32, n_heads=16, n_kv_heads=1, d_head=256, d_ff=16_384,
    feedforward="swiglu", norm="layer-without-bias", norm_order="parallel", position="rotary", attention_bias="none",
    ffn_bias=False, tie="output", output_scale=True, max_length=2048, dropout=0.0, init="lecun", init_embed_std=1.0,
    pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define("palm-62b", "PaLM 62B", PALM, d_model=8192, n_layers=64, n_heads=32, d_ff=32_768)
define("palm-540b", "PaLM 540B", PALM, d_model=18_432, n_layers=118, n_heads=48, d_ff=73_728)
BLOOM = define(
    "bloom-560m",
    "Scao et al. 2022, BLOOM: ALiBi and a norm on the embeddings",
    family="decoder", vocab_size=250_880, d_model=1024, n_layers=24, n_heads=16, d_ff=4096, feedforward="gelu-tanh",
    norm_order="pre", embed_norm=True, position="alibi", tie="output", max_length=2048, dropout=0.0, init_std=0.02,
    init_residual=True, pad_id=3, bos_id=1, eos_id=2,
)  # fmt: skip
define("bloom-176b", "BLOOM 176B", BLOOM, d_model=14_336, n_layers=70, n_heads=112, d_ff=57_344)

define(
    "transformer-dmca",
    "Liu et al. 2018, Generating Wikipedia: alternating local and memory-compressed layers; a sliding window for their blocks, no experts",
    family="decoder", vocab_size=32_000, d_model=512, n_layers=5, n_heads=8, d_ff=2048, mixer=("window", "compressed"),
    window=256, compression=3, norm_order="post", position="sinusoidal", embed_scale=True, tie="output",
    attention_bias="none", max_length=11_000, dropout=0.1, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
PERFORMER = define(
    "performer",
    "Choromanski et al. 2021, Performer: causal attention by 256 positive random features",
    GPT2, vocab_size=32_000, d_model=512, n_layers=6, n_heads=8, d_ff=2048, mixer=("performer",), mixer_rank=256,
    max_length=8192, attention_dropout=0.0, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define(
    "linear-transformer",
    "Katharopoulos et al. 2020, Transformers are RNNs: the softmax replaced by elu(x) + 1",
    PERFORMER, mixer=("linear",),
)  # fmt: skip
define(
    "based",
    "Arora et al. 2024, Based: alternating Taylor linear attention and windows of 64; here without its gated convolutions",
    family="decoder", vocab_size=50_257, d_model=1024, n_layers=26, n_heads=16, d_key=16, d_ff=2048,
    mixer=("taylor", "window"), window=64, feedforward="swiglu", norm="rms", norm_order="pre", position="rotary",
    attention_bias="none", ffn_bias=False, tie="output", max_length=2048, dropout=0.0, init_std=0.02,
    pad_id=50_256, bos_id=50_256, eos_id=50_256,
)  # fmt: skip
GLA = define(
    "gla-340m",
    "Yang et al. 2023, Gated linear attention: 4 heads, keys half as wide as values, no positions",
    family="decoder", vocab_size=32_000, d_model=1024, n_layers=24, n_heads=4, d_key=128, d_ff=2816,
    mixer=("gated-linear",), head_norm_eps=1e-6, feedforward="swiglu", norm="rms", norm_eps=1e-6, norm_order="pre",
    position="none", attention_bias="none", ffn_bias=False, tie="output", max_length=2048, dropout=0.0, init_std=0.02,
    init_residual=True, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define("gla-1.3b", "GLA 1.3B", GLA, d_model=2048, d_key=256, d_ff=5632)
define(
    "s4d",
    "Gu et al. 2022, S4D: diagonal state spaces of 64 in place of attention, in the blocks of S4's language model (Gu et al. 2021)",
    family="decoder", vocab_size=32_000, d_model=1024, n_layers=16, d_ff=4096, mixer=("s4d",), d_state=64,
    feedforward="gelu", norm_order="pre", position="none", tie="output", max_length=8192, dropout=0.1,
    pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
MAMBA = define(
    "mamba-130m",
    "Gu and Dao 2023, Mamba: selective state spaces, which are the feed-forward layer too",
    family="decoder", vocab_size=50_280, d_model=768, n_layers=24, mixer=("selective",), d_state=16,
    feedforward="none", norm="rms", norm_order="pre", position="none", attention_bias="none", tie="output",
    max_length=2048, dropout=0.0, init="torch", init_embed_std=0.02, init_residual=True, pad_id=0, bos_id=0, eos_id=0,
)  # fmt: skip
define("mamba-370m", "Mamba 370M", MAMBA, d_model=1024, n_layers=48)
define("mamba-790m", "Mamba 790M", MAMBA, d_model=1536, n_layers=48)
define("mamba-1.4b", "Mamba 1.4B", MAMBA, d_model=2048, n_layers=48)
define("mamba-2.8b", "Mamba 2.8B", MAMBA, d_model=2560, n_layers=64)

ELMAN = define(
    "rnn-lm",
    "Elman 1990; Mikolov et al. 2010: a recurrent language model",
    family="decoder", recurrent="elman", vocab_size=10_000, d_model=512, n_layers=1, position="none", output_bias=True,
    dropout=0.0, pad_id=0, bos_id=1, eos_id=2,
)  # fmt: skip
define("gru-lm", "Cho et al. 2014, Chung et al. 2014: gated recurrent units", ELMAN, recurrent="gru")
define(
    "lstm-lm",
    "Hochreiter and Schmidhuber 1997; Zaremba et al. 2014: the medium model",
    ELMAN, recurrent="lstm", d_model=650, n_layers=2, dropout=0.5,
)  # fmt: skip


# --- the same architectures, small


def tiny(name: str) -> ModelConfig:
    """The architecture of a preset in a size that builds and runs in milliseconds: what tests check contracts on."""
    c = preset(name)
    grouped = 1 < c.kv_heads < c.n_heads
    apart = c.n_heads * c.head_width != c.d_model  # heads x width is not d_model: stay so
    image = c.image_size is not None
    small: dict[str, Any] = {
        "d_model": 32,
        "n_layers": 2,
        "d_ff": 48,
        "vocab_size": 0 if image else 60,
        "target_vocab_size": c.target_vocab_size and 50,
        "n_heads": min(c.n_heads, 4),
        "n_kv_heads": 2 if grouped else c.n_kv_heads,
        "d_head": 10 if apart else None,
        "d_key": c.d_key and 12,
        "d_state": 8 if {"s4d", "selective"} & {*c.mixer} else c.d_state,
        "d_embed": c.d_embed and 16,
        "max_length": 5 if image else 64,  # [class] and 2 x 2 patches
        "image_size": c.image_size and 16,
        "patch_size": c.patch_size and 8,
        "n_classes": 3,
        "window": 4,
        "mixer_rank": 64,
        "relative_distance": 16,
        "relative_buckets": 8,
        "rotary_scaling": c.rotary_scaling and c.rotary_scaling.changed(original_length=16),
        "init_std": None,  # weights large enough for an error to show
        "init_embed_std": c.init_embed_std and 1.0,
        **small_ids(c),
    }
    return c.changed(**{field: value for field, value in small.items() if value != getattr(c, field)})


def small_ids(c: ModelConfig) -> dict[str, int]:
    """The special ids below 50, equal where they were equal and different where they were different."""
    ids = {name: getattr(c, name) for name in ("pad_id", "bos_id", "eos_id", "start_id")}
    large = sorted({value for value in ids.values() if value is not None and value >= 50})
    return {name: 49 - large.index(value) for name, value in ids.items() if value in large}
