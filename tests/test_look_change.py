"""Switching parts off, patching between two inputs, attribution: properties on tiny random networks of every family."""

from dataclasses import replace

import pytest
import torch

from qkv.api import Model
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.errors import QkvError
from qkv.generate.search import make_samplers, stream
from qkv.look import attribution
from qkv.look.ablate import effect_of_heads, without
from qkv.look.attention import sites
from qkv.look.attribution import attribute, input_modules
from qkv.look.patch import PARTS, activations, patch_activations, patch_sites, sweep
from qkv.look.target import Target, find_target
from qkv.models.build import build
from qkv.models.example import example
from qkv.parts.tap import edit, record
from qkv.presets import tiny

FAMILIES = ["gpt2", "llama-7b", "palm-8b", "bert-base", "vit-b16", "t5-small", "transformer-base", "albert-base"]
RECURRENT = ["lstm-lm", "rnnsearch", "lstm-seq2seq"]


def made(name: str) -> tuple[ModelConfig, torch.nn.Module, Batch, Batch]:
    """A network and two inputs of one shape."""
    c = tiny(name)
    torch.manual_seed(0)
    network = build(c).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    one, other = (example(c, rows=1, draw=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    return c, network, one, other


def logits(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return network(batch).logits


# --- ablation


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("fast", [True, False])
def test_a_head_that_is_off_adds_nothing(name: str, fast: bool) -> None:
    """It is as if its columns of the output matrix were 0; and outside the block all is as it was."""
    c, network, batch, _ = made(name)
    for module in network.modules():
        if hasattr(module, "fast"):
            module.fast = fast
    for site in sites(network)[:2] + sites(network)[-1:]:
        before, head = logits(network, batch), site.heads - 1
        layers = range(c.n_layers) if c.share_layers else [site.layer]  # one matrix serves all layers of ALBERT
        with without(network, [(layer, head) for layer in layers], kind=site.kind):
            off = logits(network, batch)
        assert (off - before).abs().max() > 1e-5
        output = network.get_submodule(site.name).output
        kept = output.weight.detach().clone()
        width = kept.size(1) // site.heads
        with torch.no_grad():
            output.weight[:, head * width : (head + 1) * width] = 0
        torch.testing.assert_close(off, logits(network, batch), atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            output.weight.copy_(kept)
        assert torch.equal(logits(network, batch), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_any_layer_the_head_reads_the_embedding(name: str) -> None:
    """Through the norms alone: those that stand behind the sublayers (post-norm), and the last one."""
    c, network, batch, _ = made(name)
    count = c.decoder_layers if c.family == "encoder-decoder" else c.n_layers
    with without(network, layers=range(count)):
        off = logits(network, batch)
    embed, stack = ("target", network.decoder) if c.family == "encoder-decoder" else ("embed", network.stack)
    with record(network, [embed]) as kept, torch.no_grad():
        network(batch)
        x = kept[embed]
        for block in stack.blocks:
            for part in ("attention", "cross", "feedforward"):
                x = getattr(getattr(block, part, None), "after", torch.nn.Identity())(x)
        torch.testing.assert_close(off, network.head(stack.norm(x)), atol=1e-6, rtol=1e-5)


def test_a_layer_has_two_names() -> None:
    """-1 and 1 are one layer of two: both heads are off."""
    _, network, batch, _ = made("gpt2")
    with without(network, [(-1, 0), (1, 1)]):
        mixed = logits(network, batch)
    with without(network, [(1, 0), (1, 1)]):
        torch.testing.assert_close(mixed, logits(network, batch))
    with without(network, [(1, 1)]):
        assert (mixed - logits(network, batch)).abs().max() > 1e-5


def test_the_mean_of_a_text_of_one_word_said_again_is_the_word_itself() -> None:
    """Without positions every token of 'a a a a' has the same vectors: their mean in their place changes nothing."""
    c = ModelConfig(
        family="encoder", head="masked", vocab_size=20, d_model=16, n_layers=2, n_heads=2, d_ff=16, position="none"
    )
    torch.manual_seed(0)
    network = build(c).eval()
    same, other = Batch(torch.full((1, 5), 7)), Batch(torch.tensor([[7, 3, 1, 2, 9]]))
    cut = [(0, 0), (1, 1)]
    with without(network, cut, layers=[1], mean_of=same):
        torch.testing.assert_close(logits(network, same), logits(build_like(network, c), same), atol=1e-6, rtol=1e-5)
        changed = logits(network, other)
    assert (changed - logits(network, other)).abs().max() > 1e-4


def build_like(network: torch.nn.Module, c: ModelConfig) -> torch.nn.Module:
    twin = build(c).eval()
    twin.load_state_dict(network.state_dict())
    return twin


def test_heads_stay_off_while_a_text_is_written() -> None:
    _, network, batch, _ = made("gpt2")
    with without(network, [(0, 0), (1, 2)]):
        written = [row[0] for row in stream(network, batch, make_samplers(batch, 4))]
        ids = torch.cat([batch.inputs, torch.tensor([written])], 1)
        again = logits(network, Batch(ids))[0].argmax(-1)
    assert written == again[batch.inputs.size(1) - 1 : -1].tolist()


def test_the_attention_of_a_recurrent_decoder_can_be_off() -> None:
    _, network, batch, other = made("rnnsearch")
    with without(network, [(0, 0)]):
        off = logits(network, batch)
    assert (off - logits(network, batch)).abs().max() > 1e-4
    with pytest.raises(QkvError, match="mean"), without(network, [(0, 0)], mean_of=other):
        pass


def test_what_cannot_be_cut_is_said() -> None:
    _, network, _, _ = made("lstm-lm")
    for cut in ({"layers": [0]}, {"heads": [(0, 0)]}):
        with pytest.raises(QkvError), without(network, **cut):
            pass
    _, network, _, _ = made("gpt2")
    for cut in ({"layers": [5]}, {"heads": [(0, 9)]}, {"heads": [(9, 0)]}):
        with pytest.raises(QkvError), without(network, **cut):
            pass
    with pytest.raises(QkvError, match="packed"), without(pack(network), [(0, 0)]):
        pass


def test_the_effect_of_each_head() -> None:
    _, network, batch, _ = made("gpt2")
    ask = find_target(network, batch)
    effect = effect_of_heads(network, batch, ask)
    assert effect.whole == pytest.approx(float(logits(network, batch)[0, -1].max()), abs=1e-5)
    with without(network, [(1, 3)]):
        assert float(effect.alone[1, 3]) == pytest.approx(float(logits(network, batch)[0, -1, ask.answer]), abs=1e-5)


@pytest.mark.parametrize("name", ["llama-7b", "vit-b16", "transformer-base", "albert-base", "rnnsearch"])
def test_all_heads_of_a_layer_are_measured_in_one_pass(name: str) -> None:
    """Each row of the pass has another head off, which equals one pass for each; one layer is measured alone."""
    _, network, batch, _ = made(name)
    ask, passes = find_target(network, batch), []
    handle = network.register_forward_pre_hook(lambda *_: passes.append(1))
    effect = effect_of_heads(network, batch, ask)
    handle.remove()
    own = [site for site in sites(network) if site.kind == effect.kind]
    assert len(passes) == len(own) + 1
    with torch.no_grad():
        for row, site in enumerate(own):
            for head in range(site.heads):
                with without(network, [(site.layer, head)], kind=site.kind):
                    assert float(effect.alone[row, head]) == pytest.approx(float(ask(network(batch))[0]), abs=1e-4)
    last = effect_of_heads(network, batch, ask, layer=own[-1].layer)
    assert last.layers == [own[-1].layer]
    torch.testing.assert_close(last.alone[0], effect.alone[-1])


# --- patching


@pytest.mark.parametrize("name", [*FAMILIES, *RECURRENT])
def test_patching_everything_is_the_other_run(name: str) -> None:
    c, network, batch, other = made(name)
    names = input_modules(network)
    with patch_activations(network, activations(network, other, names)):
        torch.testing.assert_close(logits(network, batch), logits(network, other))
    stack = "decoder" if c.family == "encoder-decoder" else "stack"
    with patch_activations(network, activations(network, other, [stack])):
        torch.testing.assert_close(logits(network, batch), logits(network, other))
    length = batch.inputs.size(1) if batch.inputs is not None else None
    if length:
        half = list(range(length // 2))
        with patch_activations(network, activations(network, other, names[-1:]), half):
            found = logits(network, batch)
        mixed, segments = (None if new is None else torch.cat([new[:, : length // 2], old[:, length // 2 :]], 1)
                           for new, old in ((other.inputs, batch.inputs), (other.segments, batch.segments)))  # fmt: skip
        wanted = logits(network, Batch(mixed, source=batch.source, segments=segments))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "palm-8b", "bert-base", "transformer-base"])
def test_a_sweep_patches_one_place_at_a_time(name: str) -> None:
    c, network, batch, other = made(name)
    ask = Target(3, position=4, contrast=5)
    for what in PARTS:
        if not patch_sites(network, what, False):
            with pytest.raises(QkvError, match="to patch"):
                sweep(network, batch, other, ask, what)
            continue
        found = sweep(network, batch, other, ask, what)
        assert found.without == pytest.approx(
            float(logits(network, batch)[0, 4, 3] - logits(network, batch)[0, 4, 5]), abs=1e-5
        )
        _, tap = patch_sites(network, what, False)[-1]
        donor = activations(network, other, [tap])
        if what == "heads":  # the second head, at all positions

            def put(x: torch.Tensor, new: torch.Tensor = donor[tap]) -> torch.Tensor:
                return torch.cat([x[:, :1], new[:, 1:2], x[:, 2:]], 1)

            with edit(network, {tap: put}):
                value = logits(network, batch)[0, 4]
        else:
            with patch_activations(network, donor, [4]):
                value = logits(network, batch)[0, 4]
        column = 1 if what == "heads" else 4
        assert float(found.values[-1, column]) == pytest.approx(float(value[3] - value[5]), abs=1e-4)
        assert what != "heads" or abs(found.values[-1, 1] - found.without) > 1e-4
    if c.family == "decoder":
        stream = sweep(network, batch, other, ask, "stream")
        assert stream.carried[-1, 4] == pytest.approx(1, abs=1e-4)  # the last vector alone is read
        assert stream.carried[:, 5:].abs().max() < 1e-4  # and nothing after it


def test_heads_of_both_kinds_are_swept() -> None:
    _, network, batch, other = made("transformer-base")
    assert sweep(network, batch, other, Target(3), "heads").places == ["0", "0 cross", "1", "1 cross"]


def test_two_inputs_with_the_same_answer_have_nothing_to_carry_over() -> None:
    """The result says so, and its numbers are finite: the changes themselves."""
    _, network, batch, other = made("gpt2")
    assert sweep(network, batch, other, Target(3)).note == ""
    found = sweep(network, batch, batch, Target(3))
    assert found.without == found.other and "no difference to carry over" in found.to_json()["note"]
    assert found.carried.isfinite().all() and found.carried.abs().max() < 1e-4
    moved = replace(found, values=found.values + 0.5)
    torch.testing.assert_close(moved.carried, found.carried + 0.5)


def test_two_inputs_of_other_length_are_refused() -> None:
    _, network, batch, _ = made("gpt2")
    with pytest.raises(QkvError, match="same number of tokens"):
        sweep(network, batch, Batch(batch.inputs[:, :-1]), Target(1))
    with pytest.raises(QkvError, match="one input"):
        sweep(network, Batch(batch.inputs.repeat(2, 1)), batch, Target(1))


# --- attribution


@pytest.mark.parametrize("name", [*FAMILIES, *RECURRENT, "longformer-base", "mamba-130m"])
def test_integrated_gradients_add_up(name: str) -> None:
    c, network, batch, _ = made(name)
    if c.head in ("none", "pooled"):
        with pytest.raises(QkvError, match="vectors"):
            find_target(network, batch)
        return
    ask = find_target(network, batch)
    scores, difference = attribute(network, batch, [ask], "integrated", c.pad_id)
    assert abs(difference[0]) > 1e-3
    assert float(scores.sum()) == pytest.approx(float(difference[0]), rel=0.01)


def test_integrated_gradients_say_when_they_have_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few points of the path the scores do not add up: the gap is reported, and that it is one."""
    c, network, _, _ = made("gpt2")
    look = Model(c, network, device="cpu").look([5, 6, 7, 8, 9])
    done = look.attribution("integrated")
    assert (
        done.converged == [True]
        and not done.note
        and abs(float(done.gap)) <= 0.0051 * abs(float(done.difference)) + 1e-6
    )
    monkeypatch.setattr(attribution, "NODES", 1)
    monkeypatch.setattr(attribution, "MOST_NODES", 1)
    rough = look.attribution("integrated")
    told = rough.to_json()
    assert rough.converged == [False] == told["converged"] and "not converged" in rough.note == told["note"]
    assert told["gap"][0] == pytest.approx(float(rough.scores.sum() - rough.difference[0]), abs=1e-5)
    other = look.attribution("gradient")
    assert other.converged is None and not other.note and other.to_json()["converged"] is None


def test_of_a_linear_network_all_methods_agree() -> None:
    """Without layers that bend, f is linear: x gradient, its integral and what is lost without x are one, up to the blank."""
    c = ModelConfig(family="encoder", head="classes", pooling="mean", pooler=False, vocab_size=20, d_model=8, n_layers=1, n_heads=2,
                    d_ff=8, position="none", norm_order="pre", final_norm=False)  # fmt: skip
    torch.manual_seed(0)
    network, batch = build(c).eval(), Batch(torch.tensor([[4, 5, 6]]))
    with torch.no_grad():
        network.embed.tokens.weight[0] = 0  # the blank
    ask = Target(1, None)
    with without(network, layers=[0]):
        found = [attribute(network, batch, [ask], method, 0)[0] for method in ("gradient", "integrated", "occlusion")]
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found[0], found[2], atol=1e-6, rtol=1e-4)
    assert found[0].abs().min() > 1e-4


@pytest.mark.parametrize("method", ["gradient", "integrated", "occlusion"])
def test_what_comes_later_did_nothing(method: str) -> None:
    c, network, batch, _ = made("gpt2")
    scores, _ = attribute(network, batch, [Target(3, 2), Target(3, 5)], method, c.pad_id)
    assert scores[0, 3:].abs().max() < 1e-5 and scores[0, :3].abs().min() > 1e-6 and scores[1, 5].abs() > 1e-6


def test_a_translation_is_explained_by_its_source_and_what_was_written() -> None:
    c, network, batch, _ = made("transformer-base")
    asked = [find_target(network, batch, t) for t in range(3)]
    scores, _ = attribute(network, batch, asked, "gradient", c.pad_id)
    sources = batch.source.size(1)
    assert scores.shape == (3, sources + batch.inputs.size(1))
    assert scores[:, :sources].abs().min() > 0 and scores[0, sources + 1 :].abs().max() == 0


def test_a_target_that_does_not_exist_is_an_error() -> None:
    _, network, batch, _ = made("gpt2")
    for wrong in ({"position": 99}, {"answer": 1000}, {"contrast": -2}):
        with pytest.raises(QkvError):
            find_target(network, batch, **wrong)
    with pytest.raises(QkvError, match="method"):
        attribute(network, batch, [Target(1)], "guess", 0)
