"""Our folder and the Model around it: what is saved is what is loaded; what does not fit is named, all at once."""

import json
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import qkv
from qkv.api import Model
from qkv.config import ModelConfig
from qkv.config.rules import outside
from qkv.convert import folder
from qkv.convert.files import read_tensors, write_json, write_tensors
from qkv.convert.manifest import seal
from qkv.device import pick_device
from qkv.errors import ConfigError, FileError, QkvError
from qkv.models.build import build
from qkv.presets import PRESETS, tiny
from qkv.text.tokenizer import Tokenizer

DECODER = ModelConfig(
    family="decoder", vocab_size=12, d_model=16, n_layers=2, n_heads=2, d_ff=32, position="learned", max_length=10,
    norm_order="pre", tie="output", bos_id=1, eos_id=2, init_std=0.4,
)  # fmt: skip
BERT = ModelConfig(
    family="encoder", head="masked", vocab_size=12, d_model=16, n_layers=2, n_heads=2, d_ff=32, position="learned",
    max_length=10, n_segments=2, embed_norm=True, tie="output", output_bias=True, feedforward="gelu",
)  # fmt: skip
TRANSLATION = ModelConfig(
    family="encoder-decoder", vocab_size=12, d_model=16, n_layers=2, n_heads=2, d_ff=32, bos_id=1, eos_id=2
)
WORDS = ["<pad>", "<s>", "</s>", "[UNK]", "a", "b", "c", "d", "e", "f", "g", "h"]


def letters(settings=None) -> Tokenizer:
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend, settings)


def model(config=DECODER, tokenizer=None) -> Model:
    torch.manual_seed(0)
    return Model(config, build(config), tokenizer, device="cpu")


@pytest.fixture
def saved(tmp_path):
    model(tokenizer=letters()).save(tmp_path / "model")
    return tmp_path / "model"


# --- the folder


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_saved_is_loaded_bit_for_bit(name, tmp_path):
    config = tiny(name)
    network = build(config)
    folder.save(tmp_path / "m", config, network)
    again_config, again, tokenizer = folder.load(tmp_path / "m")
    assert again_config == config and tokenizer is None and not again.training
    before, after = folder.weights(network), folder.weights(again)
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    # shared weights are stored once and shared again
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in network.parameters())
    assert read_tensors(tmp_path / "m").keys() == before.keys()


def test_a_loaded_model_answers_as_before(saved):
    before, after = model(), qkv.load(saved)
    assert torch.equal(before.logits([[1, 4, 5]]), after.logits([[1, 4, 5]]))
    assert after.tokenizer.encode("a b") == [4, 5]
    assert "parameters" in (saved / "README.md").read_text()


def test_saving_again_replaces(saved):
    other = model(DECODER.changed(n_layers=1))
    other.save(saved)
    assert qkv.load(saved).config.n_layers == 1


def test_an_interrupted_save_leaves_the_old_model(saved, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    before = qkv.load(saved).logits([[1, 4, 5]])
    monkeypatch.setattr(folder, "write_tensors", fails)
    with pytest.raises(KeyboardInterrupt):
        model(DECODER.changed(n_layers=1)).save(saved)
    assert torch.equal(qkv.load(saved).logits([[1, 4, 5]]), before)
    assert [p.name for p in saved.parent.iterdir()] == ["model"]
    with pytest.raises(KeyboardInterrupt):
        model().save(saved.parent / "first")
    assert not (saved.parent / "first").exists()


def test_a_folder_without_its_marker_is_not_opened(saved):
    (saved / "COMPLETE").unlink()
    with pytest.raises(FileError, match="interrupted"):
        qkv.load(saved)


def test_a_save_killed_between_two_renames_is_explained(saved):
    saved.rename(saved.with_name(".model.old"))
    with pytest.raises(FileError, match=r"interrupted: the model before it is .*\.model\.old"):
        qkv.load(saved)
    model(DECODER.changed(n_layers=1)).save(saved)
    assert qkv.load(saved).config.n_layers == 1 and [p.name for p in saved.parent.iterdir()] == ["model"]


def test_other_files_stay_when_a_model_is_saved_again(saved):
    (saved / "notes").mkdir()
    (saved / "notes" / "config.json").write_text("mine")
    model().save(saved)
    assert (saved / "notes" / "config.json").read_text() == "mine"
    assert qkv.load(saved).tokenizer is None  # the old one was another model's


def test_what_is_no_model_of_ours_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for path, words in [(tmp_path, "holds no model"), (tmp_path / "thesis.txt", "is a file")]:
        with pytest.raises(FileError, match=words):
            model().save(path)
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    with pytest.raises(FileError, match="another kind"):
        model().save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_all_weights_that_do_not_fit_are_named_at_once(saved):
    tensors = read_tensors(saved)
    tensors["stack.norm.weight"] = torch.zeros(3)
    tensors["extra.weight"] = tensors.pop("stack.blocks.0.attention.layer.query.weight").clone()
    write_tensors(saved / "model.safetensors", tensors)
    seal(saved, ())
    with pytest.raises(FileError) as caught:
        qkv.load(saved)
    for words in ("missing stack.blocks.0.attention.layer.query.weight", "unknown extra.weight",
                  "stack.norm.weight is (3,) instead of (16,)"):  # fmt: skip
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def edited(folder_path, **fields):
    values = json.loads((folder_path / "config.json").read_text())
    values["model"] |= fields
    write_json(folder_path / "config.json", values)
    seal(folder_path, ())


@pytest.mark.parametrize(
    "fields",
    [
        {"d_model": 999_998, "d_ff": 9_000_000},
        {"n_layers": 10_000},
        {"vocab_size": 9_000_000},
        {"max_length": 100_000_000},
        {"n_heads": 1, "mixer": ["performer"], "mixer_rank": 10**12},
    ],
)
def test_absurd_sizes_take_no_memory(saved, fields, monkeypatch):
    """Petabytes in config.json: refused from the outline alone, no network is built."""
    edited(saved, **fields)
    monkeypatch.setattr(folder, "build", lambda config: pytest.fail("memory was taken"))
    with pytest.raises(QkvError, match=r"do not belong together|absurd|mixer"):
        qkv.load(saved)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"n_heads": "2"}, "n_heads"), ({"heads": 3}, "unknown key 'model.heads'"), ({"n_heads": 3}, "does not divide")],
)
def test_a_wrong_configuration_says_which_field(saved, fields, words):
    edited(saved, **fields)
    with pytest.raises(ConfigError, match=words):
        qkv.load(saved)


@pytest.mark.parametrize(
    "fields",
    [
        {"eos_id": 12},
        {"eos_id": [2, 50_256]},
        {"bos_id": 12},
        {"pad_id": 12},
        {"start_id": 9_999_999},
        {"forced_id": 12},
    ],
)
def test_special_ids_outside_the_vocabulary_are_refused(saved, fields):
    (name,) = fields
    edited(saved, **fields)
    with pytest.raises(FileError, match=f"{name} = .* is outside the vocabulary of 12 words"):
        qkv.load(saved)


def test_special_ids_belong_to_the_vocabulary_that_is_written():
    two = TRANSLATION.changed(vocab_size=20, target_vocab_size=12, eos_id=11)
    assert outside(two) == [] and outside(two.changed(eos_id=12)) == ["eos_id = 12"]
    assert outside(two.changed(pad_id=12)) == ["pad_id = 12"]  # padding is read in both
    assert outside(two.changed(vocab_size=10, pad_id=10)) == ["pad_id = 10"]
    for name in PRESETS:
        assert not outside(tiny(name)) and not outside(PRESETS[name]), name


def test_config_json_of_other_shape(saved):
    for values, words in [({"model_type": "qkv"}, "must hold"), ({"model_type": "qkv", "model": {}, "x": 1}, "not x"),
                          ({"model_type": "whisper"}, "whisper"), ({}, "model_type")]:  # fmt: skip
        write_json(saved / "config.json", values)
        seal(saved, ())
        with pytest.raises(QkvError, match=words):
            qkv.load(saved)


# --- finding out what a path is


def test_what_is_not_a_model_is_said_to_be_none(tmp_path):
    def refused(path, words):
        with pytest.raises(FileError, match=words):
            qkv.load(path)

    refused(tmp_path, "looked for config.json")
    refused(tmp_path / "nowhere", "does not exist")
    for name, words in [("x.pt", "torch_transformer.read"), ("x.pth", "can run code"), ("x.txt", "no supported format"),
                        ("x.safetensors", "config.json beside"), ("x.gguf", "not a GGUF"), ("x.bin", "truncated")]:  # fmt: skip
        (tmp_path / name).write_bytes(b"hello")
        refused(tmp_path / name, words)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04hello")
    refused(tmp_path / "pytorch_model.bin", "can run code")
    (tmp_path / "y.gguf").write_bytes(b"")
    refused(tmp_path, "several models, x.gguf, y.gguf")
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    refused(tmp_path, "no model.safetensors")


def test_a_configuration_is_read_without_weights(saved):
    config = qkv.api.read_config(saved)
    assert config == DECODER
    (saved / "model.safetensors").unlink()
    assert qkv.api.read_config(saved) == DECODER


@pytest.mark.parametrize(
    "arguments", [["generate", "nowhere", "hello"], ["check", "nowhere"], ["export", "nowhere", "out"]]
)
def test_the_command_line_says_it_in_one_line_and_exits_with_2(arguments, tmp_path):
    done = subprocess.run([sys.executable, "-m", "qkv", *arguments], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"})  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "does not exist" in done.stderr


# --- Model


def test_ragged_rows_are_padded_and_masked():
    for config in (DECODER, BERT):
        m = model(config)
        together = m.logits([[1, 4, 5], [6, 7]])
        assert together.shape == (2, 3, 12)
        assert torch.allclose(together[1, :2], m.logits([6, 7])[0], atol=1e-6)
    m = model(TRANSLATION)
    together = m.logits([[4, 5, 6], [7]], [[1, 4], [1, 5]])
    assert torch.allclose(together[1], m.logits([[7]], [[1, 5]])[0], atol=1e-6)


def test_masks_and_segments_reach_the_network():
    m = model(BERT)
    ids = torch.tensor([[4, 5, 6]])
    alone = m.logits(torch.tensor([[4, 5]]))
    assert torch.allclose(m.logits(ids, mask=torch.tensor([[1, 1, 0]]))[:, :2], alone, atol=1e-6)
    assert not torch.allclose(m.logits(ids, segments=torch.tensor([[0, 1, 1]])), m.logits(ids), atol=1e-3)
    m = model(TRANSLATION)
    short, target = m.logits([[4, 5]], [[1, 6]]), [[1, 6]]
    assert torch.allclose(m.logits(ids, target, source_mask=torch.tensor([[1, 1, 0]])), short, atol=1e-6)


def test_hidden_is_every_layer_and_ends_before_the_head():
    for config in (DECODER, BERT, BERT.changed(share_layers=True)):
        m = model(config)
        layers = m.hidden([[1, 4, 5]])
        assert [tuple(x.shape) for x in layers] == [(1, 3, 16)] * 3
        assert torch.equal(m.network.head(layers[-1]), m.logits([[1, 4, 5]]))
        assert len({float(x.sum()) for x in layers}) == 3
        assert not any(module._forward_hooks for module in m.network.modules())
    m = model(TRANSLATION)
    source, target = m.hidden([[4, 5, 6]]), m.hidden([[4, 5, 6]], [[1, 5]])
    assert [x.shape[1] for x in source] == [3, 3, 3] and [x.shape[1] for x in target] == [2, 2, 2]
    assert torch.equal(m.network.head(target[-1]), m.logits([[4, 5, 6]], [[1, 5]]))


def test_hidden_of_several_sources_needs_no_start_token():
    m = model(TRANSLATION.changed(bos_id=None))
    together = m.hidden([[4, 5, 6], [7]])
    assert [tuple(x.shape) for x in together] == [(2, 3, 16)] * 3
    for a, b in zip(together, m.hidden([[7]]), strict=True):
        assert torch.allclose(a[1, :1], b[0], atol=1e-6)
    masked = m.hidden([[4, 5, 6]], source_mask=[[1, 1, 0]])
    assert torch.allclose(masked[-1][:, :2], m.hidden([[4, 5]])[-1], atol=1e-6)
    with pytest.raises(QkvError, match="source_mask goes with the source"):
        m.hidden([[4, 5]], mask=[[1, 1]])


MASKS = {"wrong width": torch.ones(1, 2), "a row too many": torch.ones(2, 3), "one dimension": torch.ones(3),
         "additive": torch.tensor([[0.0, 0.0, -1e9]]), "ragged": [[1, 1], [1]], "words": "110", "a number": 3,
         "nothing real": torch.zeros(1, 3)}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_bad_masks(mask):
    for config in (DECODER, BERT):
        with pytest.raises(QkvError, match="mask"):
            model(config).logits([[4, 5, 6]], mask=mask)
    with pytest.raises(QkvError, match="mask"):
        model(TRANSLATION).logits([[4, 5, 6]], [[1, 4]], source_mask=mask)
    with pytest.raises(QkvError, match="source_mask goes with"):
        model().logits([[4, 5, 6]], source_mask=torch.ones(1, 3))


def test_a_mask_may_be_a_list_and_never_brings_padding_back():
    m = model(BERT)
    assert torch.equal(m.logits([[4, 5, 6]], mask=[[1, 1, 0]]), m.logits([[4, 5, 6]], mask=torch.tensor([[1, 1, 0]])))
    all_real = m.logits([[4, 5, 6], [7, 8]], mask=torch.ones(2, 3))
    assert torch.equal(all_real, m.logits([[4, 5, 6], [7, 8]]))


@pytest.mark.parametrize(
    "segments", [[[0, 2, 0]], [[0, -1, 0]], [[0, 1]], [[0, 1, 0]] * 2, torch.zeros(1, 3), "010", 3]
)
def test_bad_segments(segments):
    with pytest.raises(QkvError, match=r"segments are|whole numbers"):
        model(BERT).logits([[4, 5, 6]], segments=segments)


def test_segments_of_a_model_that_has_none():
    for config, more in [(DECODER, {}), (BERT.changed(n_segments=0), {}), (TRANSLATION, {"target_ids": [[1]]})]:
        with pytest.raises(QkvError, match="has no segments"):
            model(config).logits([[4, 5]], segments=[[0, 0]], **more)


def test_images_of_an_encoder_decoder_are_masked():
    """Captions: (B, 1 + patches) says which patches are seen; ints are as good as bools."""
    m = model(ModelConfig(family="encoder-decoder", target_vocab_size=12, image_size=4, patch_size=2, d_model=8, d_ff=8,
                          n_layers=1))  # fmt: skip
    images = torch.randn(2, 3, 4, 4)
    whole, target = m.logits(images, [[1, 4], [1]]), [[1, 4], [1]]
    seen = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]])
    masked = m.logits(images, target, source_mask=seen)
    assert torch.equal(masked[1], whole[1]) and not torch.allclose(masked[0], whole[0])
    changed = images.clone()
    changed[0, :, :2, 2:] += 1  # the patch that is not seen
    assert torch.allclose(m.logits(changed, target, source_mask=seen), masked, atol=1e-6)
    assert torch.equal(m.logits(images, [[1, 4], [1, 5]], mask=[[1, 1], [1, 0]])[0], whole[0])
    with pytest.raises(QkvError, match="mask"):
        m.logits(images, target, source_mask=torch.ones(2, 4))


def test_auto_takes_the_best_device_there_is(monkeypatch):
    for cuda, mps, expected in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=mps: found)
        assert pick_device("auto").type == expected


def test_images():
    config = ModelConfig(
        family="encoder",
        head="classes",
        image_size=4,
        patch_size=2,
        d_model=8,
        d_ff=8,
        n_layers=1,
        position="learned",
        max_length=5,
    )
    m = model(config)
    assert m.logits(torch.randn(3, 3, 4, 4)).shape == (3, 2)
    for bad in (torch.randn(3, 3, 4, 5), [[1, 2]], torch.zeros(1, 3, 4, 4, dtype=torch.long)):
        with pytest.raises(QkvError, match="reads images"):
            m.logits(bad)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[1, 12]], "token id 12 is not in the vocabulary, which has 12 words"),
        ([[-1]], "token id -1"),
        ([], "empty"),
        ([[]], "empty"),
        ([[1], []], "empty"),
        ([[1] * 11], "11 tokens, but this model reads at most 10"),
        ([["a"]], "whole numbers"),
        (torch.randn(1, 2), "whole numbers"),
        (torch.zeros(1, 2, 3, dtype=torch.long), "rows"),
        ([[2**80]], "whole numbers"),
        (None, "whole numbers"),
        (3, "whole numbers"),
        ([1, [2]], "whole numbers"),
        ([None], "whole numbers"),
        ("12", "whole numbers"),
        (torch.zeros(1, 2, dtype=torch.complex64), "whole numbers"),
    ],
)
def test_bad_ids(ids, words):
    with pytest.raises(QkvError, match=words):
        model().logits(ids)


def test_each_family_takes_what_it_reads():
    with pytest.raises(QkvError, match="takes ids"):
        model().logits([[1]], [[1]])
    with pytest.raises(QkvError, match=r"\(source_ids, target_ids\)"):
        model(TRANSLATION).logits([[1]])
    with pytest.raises(QkvError, match="2 sources but 1 targets"):
        model(TRANSLATION).logits([[1], [2]], [[1]])
    with pytest.raises(QkvError, match="cannot generate text"):
        model(BERT).generate([1])
    with pytest.raises(QkvError, match="has no tokenizer"):
        model().generate("a")
    with pytest.raises(QkvError, match="no chat template"):
        model(tokenizer=letters()).chat([{"role": "user", "content": "a"}])
    with pytest.raises(QkvError, match="pooling is one of"):
        model(tokenizer=letters()).embed(["a"], "max")
    with pytest.raises(QkvError, match="start token of the target"):
        model(TRANSLATION.changed(bos_id=None)).generate([4])
    with pytest.raises(QkvError, match="not available on this machine"):
        Model(DECODER, build(DECODER), device="cuda:9")


def test_text_gives_text_and_ids_give_ids():
    m = model(tokenizer=letters())
    ids = list(m.generate([4, 5], max_new_tokens=5))
    assert 1 <= len(ids) <= 5 and not set(ids) & {2}
    assert "".join(m.generate("a b", max_new_tokens=5)).split() == m.tokenizer.decode(ids).split()


def test_writing_stops_at_the_wall_of_learned_positions():
    m = model(DECODER.changed(eos_id=None))
    assert len(list(m.generate([4] * 8, max_new_tokens=50))) == 3  # the last one is written, not read


def test_chat_goes_through_the_template():
    template = "{{ bos_token }}{% for m in messages %} {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} h{% endif %}"
    m = model(tokenizer=letters({"chat_template": template, "bos_token": {"content": "a"}}))
    assert m.chat_ids([{"role": "user", "content": "b c"}]) == [4, 5, 6, 11]
    assert m.chat([{"role": "user", "content": "b c"}], max_new_tokens=3) == m.tokenizer.decode(
        list(m.generate([4, 5, 6, 11], max_new_tokens=3))
    )
    assert (
        "".join(m.generate("b c", max_new_tokens=3, chat=True)).split()
        == m.chat([{"role": "user", "content": "b c"}], max_new_tokens=3).split()
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for x in range(10**9) %}a{% endfor %}",
        "{{ raise_exception('no') }}",
        "{% if %}",
        "{{ nothing.at.all }}",
    ],
)
def test_templates_run_in_a_sandbox(template):
    with pytest.raises(QkvError):
        letters({"chat_template": template}).chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("messages", [[], "hello", [{"role": "user"}], [{"role": "user", "content": 3}], [3]])
def test_broken_messages(messages):
    with pytest.raises(QkvError, match="chat takes messages"):
        model(tokenizer=letters({"chat_template": "a"})).chat(messages)


def test_embed_is_the_mean_over_real_tokens():
    m = model(BERT, letters())
    texts = ["a b c d", "e", "f g"]
    together = m.embed(texts, batch_size=2)
    assert torch.allclose(together.norm(dim=-1), torch.ones(3))
    for row, text in zip(together, texts, strict=True):
        vectors = m.hidden([m.encode(text)])[-1][0]
        assert torch.allclose(row, vectors.mean(0) / vectors.mean(0).norm(), atol=1e-6)
        assert torch.allclose(m.embed([text], "cls", normalize=False)[0], vectors[0], atol=1e-6)
    with pytest.raises(QkvError, match="at most 10"):
        m.embed(["a " * 11])
    assert torch.allclose(m.embed(["a " * 12 + "b"], truncate=True), m.embed(["a " * 9 + "b"]), atol=1e-6)


# --- export


def test_an_export_is_checked_before_it_gets_its_name(tmp_path, monkeypatch):
    m = model(tokenizer=letters({"chat_template": "x"}))
    assert m.export(tmp_path / "out", "qkv") == 0
    assert torch.equal(qkv.load(tmp_path / "out").logits([[1, 4]]), m.logits([[1, 4]]))
    assert qkv.load(tmp_path / "out").tokenizer.chat_template == "x"
    with pytest.raises(FileError, match="not empty"):
        m.export(tmp_path / "out", "qkv")
    with pytest.raises(QkvError, match="'hf'"):
        m.export(tmp_path / "other", "onnx")

    def damaged(path, tensors, metadata=None):
        write_tensors(path, {name: tensor + 1e-3 for name, tensor in tensors.items()}, metadata)

    monkeypatch.setattr(folder, "write_tensors", damaged)
    with pytest.raises(QkvError, match="differ"):
        m.export(tmp_path / "wrong", "qkv")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # nothing half-made stays


def test_an_export_into_the_current_folder_asks_for_a_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="give a new folder"):
        model().export(".", "qkv")
    assert model().export("new/one", "qkv") == 0 and [p.name for p in tmp_path.iterdir()] == ["new"]


def test_export_to_hugging_face_opens_here_and_there(tmp_path):
    transformers = pytest.importorskip("transformers")
    m = model(BERT, letters())
    assert m.export(tmp_path / "hf") == 0
    assert qkv.load(tmp_path / "hf").tokenizer.encode("a b") == [4, 5]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.tensor([[4, 5, 6]])
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, m.logits(ids), atol=1e-5)
