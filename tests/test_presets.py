"""Presets: their sizes are the published ones, and their small versions keep the architecture."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qkv.config import ModelConfig
from qkv.errors import ConfigError
from qkv.models.build import build
from qkv.models.params import count
from qkv.presets import ABOUT, PRESETS, preset, tiny

PUBLISHED = {  # parameters of the released models, to the last one
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "bart-base": 139_420_416 + 50_265,  # and the bias of the output words, which is released as a buffer
    "bart-large": 406_291_456 + 50_265,
    "marian": 74_410_496 - 2 * 512 * 512 + 58_101,  # the released count has the sinusoid tables, and not the bias
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    # released as DebertaModel; and the head for masked words
    "deberta-base": 138_601_728 + (768 * 768 + 3 * 768 + 50_265),
    "electra-small": 13_549_057,
    "electra-base": 109_483_009,
    "electra-large": 335_142_913,
    "albert-base": 11_221_680,
    # released with a dense layer on the first vector, here with the head for masked words
    "albert-large": 17_683_968 - (1024 * 1024 + 1024) + (1024 * 128 + 3 * 128 + 30_000),
    "albert-xlarge": 58_724_864 - (2048 * 2048 + 2048) + (2048 * 128 + 3 * 128 + 30_000),
    "albert-xxlarge": 222_595_584 - (4096 * 4096 + 4096) + (4096 * 128 + 3 * 128 + 30_000),
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "mamba-130m": 129_135_360,
    "mamba-370m": 371_516_416,
    "mamba-790m": 793_204_224,
    "mamba-1.4b": 1_372_178_432,
    "mamba-2.8b": 2_768_345_600,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
}
ROUNDED = {  # millions, as the papers print them
    "transformer-base": (65, 0.04),
    "transformer-big": (213, 0.01),
    "lstm-seq2seq": (384, 0.001),
    "lstm-lm": (20, 0.02),  # Zaremba's medium model: 13 million in words, 6.8 in cells
    "palm-8b": (8630, 0.001),
    "palm-62b": (62_500, 0.001),
    "palm-540b": (540_350, 0.001),
    "gla-340m": (340, 0.01),
    "gla-1.3b": (1300, 0.01),
    "gpt3-small": (125, 0.01),
    "gpt3-medium": (350, 0.02),
    "gpt3-large": (760, 0.01),
    "gpt3-2.7b": (2700, 0.02),
    "gpt3-6.7b": (6700, 0.01),
    "gpt3-13b": (13_000, 0.01),
    "gpt3-175b": (175_000, 0.005),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_is_the_published_one(name: str) -> None:
    assert count(preset(name)).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_count_is_what_the_paper_rounds(name: str) -> None:
    millions, share = ROUNDED[name]
    assert count(preset(name)).parameters / 1e6 == pytest.approx(millions, rel=share)


def test_shaws_base_model_has_vectors_per_layer_and_head() -> None:
    """Shaw et al. 2018, section 4.1: inner width 1024, and 33 distances for each of 8 heads in 6 + 6 layers, keys and values."""
    c = preset("transformer-relative")
    vectors = 2 * 12 * 8 * 33 * 64
    absolute = c.changed(position="sinusoidal")
    assert c.d_ff == 1024
    assert count(c).parameters - count(absolute).parameters == vectors


def test_gpt3_xl_as_printed_does_not_multiply_out() -> None:
    """24 heads of 128 on 2048 channels: 8.4 million more per layer than 16 heads would have."""
    xl = preset("gpt3-xl")
    sixteen = count(xl.changed(n_heads=16))
    assert sixteen.parameters / 1e9 == pytest.approx(1.3, rel=0.02)
    extra = (24 - 16) * 128 * (4 * 2048 + 3)  # query, key, value with their biases, output
    assert count(xl).parameters - sixteen.parameters == 24 * extra


@pytest.mark.parametrize("name", ["gpt2", "llama2-70b", "palm-8b", "gpt3-13b"])
def test_the_lectures_count_by_its_formula(name: str) -> None:
    """Lecture 003's table, line by line, for sizes it does not print."""
    c = preset(name)
    gated = c.feedforward == "swiglu"
    attention = c.d_model * c.head_width * (2 * c.n_heads + 2 * c.kv_heads)
    layer = attention + c.d_model * c.d_ff * (3 if gated else 2)
    lecture = count(c).lecture
    assert lecture is not None
    assert lecture.weights == 2 * c.vocab_size * c.d_model + c.n_layers * layer
    assert lecture.matrices == 2 + c.n_layers * (c.n_heads + 2 * c.kv_heads + (4 if gated else 3))


def test_only_decoders_of_attention_are_counted_like_the_lecture() -> None:
    assert count(tiny("bert-base")).lecture is None
    assert count(tiny("lstm-lm")).lecture is None
    assert count(tiny("gla-340m")).lecture is None


@pytest.mark.parametrize("name", PRESETS)
def test_count_is_that_of_the_network_itself(name: str) -> None:
    counted, network = count(tiny(name)), build(tiny(name))
    assert counted.parameters == sum(p.numel() for p in network.parameters())
    assert sum(row.times for row in counted.rows) == len(list(network.parameters()))


# --- small versions


def grouping(c: ModelConfig) -> str:
    if c.kv_heads == c.n_heads:
        return "each head its own"
    return "one for all" if c.kv_heads == 1 else "groups"


@pytest.mark.parametrize("name", PRESETS)
def test_tiny_keeps_the_architecture(name: str) -> None:
    """Everything but sizes, ids and the spread of fresh weights is as it was, and it is really small."""
    large, small = preset(name), tiny(name)
    sizes = set(
        "d_model n_layers d_ff vocab_size target_vocab_size n_heads n_kv_heads d_head d_key d_state d_embed max_length "
        "image_size patch_size n_classes window mixer_rank relative_distance relative_buckets rotary_scaling init_std "
        "init_embed_std pad_id bos_id eos_id start_id".split()
    )
    for field in ModelConfig.model_fields:
        if field not in sizes:
            assert getattr(small, field) == getattr(large, field), field
        elif field not in ("d_head", "init_std"):
            assert (getattr(small, field) is None) == (getattr(large, field) is None), field
    assert grouping(small) == grouping(large)
    assert count(small).parameters < 60_000


@pytest.mark.parametrize("name", PRESETS)
def test_tiny_keeps_which_special_ids_are_equal(name: str) -> None:
    def pattern(c: ModelConfig) -> list[bool]:
        ids = [c.pad_id, c.bos_id, c.start_id, *c.eos_ids]
        return [a == b for a in ids for b in ids]

    small = tiny(name)
    assert pattern(small) == pattern(preset(name))
    known = min(small.vocab_size, small.target_size) if small.vocab_size else small.target_size + 1
    assert all(i is None or i < known for i in (small.pad_id, small.bos_id, small.start_id, *small.eos_ids))


# --- names


def test_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'bert_base'; did you mean 'bert-base'"):
        preset("bert_base")
    with pytest.raises(ConfigError, match="qkv presets"):
        preset("zzzzzz")


def test_every_preset_says_where_it_comes_from() -> None:
    assert ABOUT.keys() == PRESETS.keys()
    assert all(len(about) > 5 for about in ABOUT.values())


def test_presets_do_not_import_torch() -> None:
    code = "import qkv.presets, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
