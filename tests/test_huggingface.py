"""Parity with transformers on tiny random models of fourteen families: every hidden state, caches, greedy words, the way back."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import Tensor, nn

hf = pytest.importorskip("transformers")

import qkv  # noqa: E402
from qkv.batch import Batch  # noqa: E402
from qkv.config import ModelConfig  # noqa: E402
from qkv.convert.hf_family import labels  # noqa: E402
from qkv.convert.huggingface import FAMILIES, from_foreign, to_foreign  # noqa: E402
from qkv.convert.tables import active  # noqa: E402
from qkv.errors import FileError, QkvError  # noqa: E402
from qkv.parts.state import State  # noqa: E402
from qkv.parts.tap import record  # noqa: E402
from tests.hf_models import (  # noqa: E402
    CLASSIFIERS,
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    EVERY,
    PAD,
    VISION,
    close,
    open_ours,
    opened,
    read_folder,
    save,
    save_ours,
)  # fmt: skip

LENGTHS = (7, 4, 1)
SIDES = ("none", "right", "left")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return opened(tmp_path_factory)


def sentences(side: str, vocab: int, pad: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """ids (B, T) and mask (B, T) of sentences of different lengths, padded on a side; `none`: all equally long."""
    torch.manual_seed(seed)
    lengths = (max(LENGTHS),) * len(LENGTHS) if side == "none" else LENGTHS
    ids = torch.full((len(lengths), max(lengths)), pad)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for i, n in enumerate(lengths):
        places = slice(-n, None) if side == "left" else slice(0, n)
        ids[i, places], mask[i, places] = torch.randint(5, vocab, (n,)), True
    return ids, mask


def places(mask: Tensor) -> Tensor:
    """Positions that count real tokens: what transformers must be told where padding stands on the left."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def our_states(network: nn.Module, batch: Batch, embed: str, stack: str) -> tuple[list[Tensor], object]:
    """The output of the embedding and of each block, and of the whole network."""
    names = [embed] + [f"{stack}.blocks.{i}" for i in range(len(network.get_submodule(stack).blocks))]
    with record(network, names) as kept, torch.no_grad():
        output = network(batch)
        output.logits  # noqa: B018
    return [kept[name] for name in names], output


def compare_states(
    ours: list[Tensor], final: Tensor | None, theirs: tuple[Tensor, ...], mask: Tensor | None = None
) -> None:
    """Every hidden state; `final` is our last one where transformers returns it after the final norm."""
    ours = ours if final is None else [*ours[:-1], final]
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other, mask)


# --- reading families


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(pair, name, side):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    segments = torch.randint(0, config.n_segments, ids.shape) if config.n_segments else None
    states, output = our_states(network, Batch(inputs=ids, mask=mask, segments=segments), "embed", "stack")
    where = {} if config.position_offset else {"position_ids": places(mask)}
    typed = lambda s: {"token_type_ids": s} if config.n_segments else {}  # noqa: E731
    with torch.no_grad():
        expected = theirs(ids, mask.long(), **typed(segments), output_hidden_states=True, **where)
        alone = [
            theirs(i[m][None], **typed(s[m][None]))
            for i, m, s in zip(ids, mask, ids if segments is None else segments, strict=True)
        ]
    compare_states(states, output.hidden if config.has_final_norm else None, expected.hidden_states, mask)
    if config.head == "none":
        close(output.logits, expected.last_hidden_state, mask)
    elif config.head in ("pooled", "classes"):  # transformers reads place 0, which on the left is padding
        close(output.logits, torch.cat([a.pooler_output if config.head == "pooled" else a.logits for a in alone]))
    elif config.head == "masked-next":
        close(output.logits, expected.prediction_logits, mask)
        close(network.head.next(output.hidden, mask), torch.cat([a.seq_relationship_logits for a in alone]))
    elif config.head == "span":
        close(output.logits, torch.stack([expected.start_logits, expected.end_logits], -1), mask)
    else:
        close(output.logits, expected.logits, mask)


@pytest.mark.parametrize("name", VISION)
def test_vision(pair, name):
    theirs, config, _, network, _ = pair(name)
    images = torch.randn(2, 3, 12, 12)
    states, output = our_states(network, Batch(images=images), "embed", "stack")
    with torch.no_grad():
        expected = theirs(images, output_hidden_states=True)
    compare_states(states, None, expected.hidden_states)
    if config.head == "pooled":
        close(output.hidden, expected.last_hidden_state)
        close(output.logits, expected.pooler_output)
    else:
        close(output.logits, expected.logits)


# --- writing families


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", DECODERS)
def test_decoder(pair, name, side):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    states, output = our_states(network, Batch(inputs=ids, mask=mask), "embed", "stack")
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), position_ids=places(mask), output_hidden_states=True)
    compare_states(states, output.hidden, expected.hidden_states, mask)
    close(output.logits, expected.logits, mask)


@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 1, 3)])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_with_cache(pair, name, side, chunks):
    """Ours in pieces = theirs in the same pieces = theirs at once."""
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    state, past, start = network.start(Batch(inputs=ids)), None, 0
    ours, others = [], []
    with torch.no_grad():
        whole = theirs(ids, attention_mask=mask.long(), position_ids=places(mask)).logits
        for size in chunks:
            now = slice(start, start + size)
            start += size
            hidden, state = network.step(ids[:, now], state, mask[:, now])
            ours.append(network.head(hidden))
            step = theirs(ids[:, now], attention_mask=mask[:, :start].long(), position_ids=places(mask)[:, now],
                          past_key_values=past, use_cache=True)  # fmt: skip
            past = step.past_key_values
            others.append(step.logits)
    close(torch.cat(ours, 1), torch.cat(others, 1), mask)
    close(torch.cat(ours, 1), whole, mask)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_of_a_decoder(pair, name, side):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), position_ids=places(mask)).logits
    close(network(Batch(inputs=ids, mask=mask)).logits, expected)


# --- labels


def test_labels_keep_their_names(pair, tmp_path):
    _, config, weights, _, _ = pair("bert-labels")
    assert config.labels == ("no", "yes", "maybe")
    folder = save_ours(config.changed(labels=("a", "b", "c")), weights, tmp_path / "named")
    opened = hf.AutoConfig.from_pretrained(folder)
    assert opened.id2label == {0: "a", 1: "b", 2: "c"} and opened.label2id == {"a": 0, "b": 1, "c": 2}


def test_two_classes_of_one_name_are_told_apart():
    twice = {"model_type": "vit", "id2label": {"0": "crane", "1": "dog", "2": "crane"}}
    assert labels(twice) == ("crane", "dog", "crane (2)")
    for wrong in ({"0": "a", "2": "b"}, {"x": "a"}, {"0": 1}):
        with pytest.raises(FileError, match="id2label"):
            labels({"id2label": wrong})


# --- both halves


def source_and_target(config: ModelConfig, side: str) -> Batch:
    source, source_mask = sentences(side, config.vocab_size, config.pad_id, seed=1)
    target, target_mask = sentences(side, config.target_size, config.pad_id, seed=2)
    order = torch.tensor([1, 0, 2])  # a long source with a short target and the other way round
    return Batch(inputs=target[order], mask=target_mask[order], source=source, source_mask=source_mask)


def rows_alone(theirs: nn.Module, batch: Batch) -> list:
    """transformers' answer for each example without any padding."""
    rows = zip(batch.source, batch.source_mask, batch.inputs, batch.mask, strict=True)
    with torch.no_grad():
        return [
            theirs(input_ids=s[sm][None], decoder_input_ids=t[tm][None], output_hidden_states=True)
            for s, sm, t, tm in rows
        ]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder(pair, name, side):
    """Against each example alone, since BART and Marian have no way to say where left-padded words stand."""
    theirs, config, _, network, _ = pair(name)
    batch = source_and_target(config, side)
    encoder, output = our_states(network, batch, "source", "encoder")
    decoder, _ = our_states(network, batch, "target", "decoder")
    if config.has_final_norm:
        encoder[-1], decoder[-1] = network.encoder.norm(encoder[-1]), output.hidden
    for i, alone in enumerate(rows_alone(theirs, batch)):
        compare_states([x[i][batch.source_mask[i]][None] for x in encoder], None, alone.encoder_hidden_states)
        compare_states([x[i][batch.mask[i]][None] for x in decoder], None, alone.decoder_hidden_states)
        close(output.logits[i][batch.mask[i]][None], alone.logits)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_padded_as_theirs(pair, name):
    """Right padding is the side on which all of them agree in one batch."""
    theirs, config, _, network, _ = pair(name)
    batch = source_and_target(config, "right")
    with torch.no_grad():
        expected = theirs(
            input_ids=batch.source, attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.inputs, decoder_attention_mask=batch.mask.long(),
        )  # fmt: skip
        close(network(batch).logits, expected.logits, batch.mask)


@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 1, 3)])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_with_cache(pair, name, chunks):
    theirs, config, _, network, _ = pair(name)
    source, source_mask = sentences("right", config.vocab_size, config.pad_id, seed=1)
    target, _ = sentences("none", config.target_size, config.pad_id, seed=2)
    ours, others, past, start = [], [], None, 0
    with torch.no_grad():
        state = network.start(Batch(source=source, source_mask=source_mask))
        read = theirs.get_encoder()(source, attention_mask=source_mask.long())
        for size in chunks:
            piece = target[:, start : start + size]
            start += size
            hidden, state = network.step(piece, state)
            ours.append(network.head(hidden))
            step = theirs(encoder_outputs=read, attention_mask=source_mask.long(), decoder_input_ids=piece,
                          past_key_values=past, use_cache=True)  # fmt: skip
            past = step.past_key_values
            others.append(step.logits)
    close(torch.cat(ours, 1), torch.cat(others, 1))


# --- greedy generation, token by token


@torch.no_grad()
def greedy(network: nn.Module, state: State, ids: Tensor, mask: Tensor | None, fresh: bool) -> Tensor:
    """The most probable word, 50 times: (B, 50). `fresh`: no pair of words twice, so that nothing is written for ever."""
    text, seen = ids, ids.size(1)
    for _ in range(50):
        hidden, state = network.step(ids, state, mask)
        scores = network.head(hidden)[:, -1]  # (B, V)
        if fresh:
            scores = scores.masked_fill(repeats(text, scores.size(-1)), float("-inf"))
        ids, mask = scores.argmax(-1, keepdim=True), None
        text = torch.cat([text, ids], 1)
    return text[:, seen:]


def repeats(text: Tensor, vocab: int) -> Tensor:
    """(B, V): the words that have already followed the last word."""
    banned = torch.zeros(text.size(0), vocab, dtype=torch.bool)
    for row, words in zip(banned, text, strict=True):
        row[words[1:][words[:-1] == words[-1]]] = True
    return banned


def their_greedy(theirs: nn.Module, ids: Tensor, mask: Tensor, fresh: bool) -> Tensor:
    """50 tokens and no end."""
    for ending in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
        setattr(theirs.generation_config, ending, None)
    return theirs.generate(
        ids, attention_mask=mask.long(), do_sample=False, num_beams=1, min_new_tokens=50, max_new_tokens=50,
        pad_token_id=PAD, use_cache=True, no_repeat_ngram_size=2 if fresh else 0,
    )  # fmt: skip


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_decoder(pair, name, fresh):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences("left", config.vocab_size, config.pad_id)
    ours = greedy(network, network.start(Batch(inputs=ids)), ids, mask, fresh)
    assert torch.equal(ours, their_greedy(theirs, ids, mask, fresh)[:, ids.size(1) :])


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_greedy_encoder_decoder(pair, name, fresh):
    theirs, config, _, network, _ = pair(name)
    source, mask = sentences("right", config.vocab_size, config.pad_id)
    first = torch.full((source.size(0), 1), config.first_id)
    ours = greedy(network, network.start(Batch(source=source, source_mask=mask)), first, None, fresh)
    assert torch.equal(ours, their_greedy(theirs, source, mask, fresh)[:, 1:])


# --- the way back


@pytest.mark.parametrize("name", EVERY)
def test_round_trip(pair, name, tmp_path):
    """Ours -> folder -> transformers finds all it wants and nothing else -> its folder -> ours: the same bits."""
    theirs, config, weights, _, _ = pair(name)
    folder = save_ours(config, weights, tmp_path / "ours", theirs.config.model_type)
    kind = getattr(hf, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert kind is type(theirs)
    again, back, _ = open_ours(save(model, tmp_path / "theirs"))
    assert again == config
    assert all(torch.equal(back[key], weights[key]) for key in weights)


@pytest.mark.parametrize("name", EVERY)
def test_tables_cover_every_weight_once(pair, name):
    """Each of our weights has one row, and no foreign name has two."""
    _, config, weights, _, folder = pair(name)
    family = FAMILIES[read_folder(folder)[0]["model_type"]]
    rows = active(family.table(config), weights)
    assert sorted(n for row in rows for n in row.ours) == sorted(weights)
    foreign = [row.foreign for row in rows]
    assert len(foreign) == len(set(foreign))


def test_stored_type_is_kept(pair):
    _, config, weights, _, _ = pair("gpt2")
    half = {name: tensor.bfloat16() for name, tensor in weights.items()}
    config_json, tensors = to_foreign(config, half)
    assert config_json["torch_dtype"] == "bfloat16" and {t.dtype for t in tensors.values()} == {torch.bfloat16}
    back = from_foreign(config, config_json, tensors)
    assert all(torch.equal(back[name], half[name]) and back[name].dtype == torch.bfloat16 for name in half)


def test_encoder_without_pooler_opens_without_pooler(pair, tmp_path):
    _, config, weights, _, _ = pair("bert-base")
    bare = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    folder = save_ours(config.changed(head="none"), bare, tmp_path / "bare")
    _, info = hf.BertModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert open_ours(folder)[0].head == "none"


@pytest.mark.parametrize("number", [None, 99_999, 2**63, -1])
def test_a_marian_whose_start_token_is_outside_the_vocabulary_is_refused(number, pair, tmp_path):
    """Without decoder_start_token_id the one of Marian's published models counts, 58,100."""
    shutil.copytree(pair("marian")[-1], tmp_path / "marian")
    values = json.loads((tmp_path / "marian" / "config.json").read_text())
    del values["decoder_start_token_id"]
    values |= {} if number is None else {"decoder_start_token_id": number}
    (tmp_path / "marian" / "config.json").write_text(json.dumps(values))
    with pytest.raises(QkvError, match="start"):
        qkv.load(tmp_path / "marian")
