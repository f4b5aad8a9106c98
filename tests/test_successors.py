"""Attention's successors: equal to their papers' equations, to themselves with a state of fixed size, and to Hugging Face's Mamba."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import needs_compiler
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.check import check, in_chunks, masks
from qkv.config import ModelConfig
from qkv.engine import scan as engine
from qkv.engine.scan import Scan, quick_scan
from qkv.engine.training_kernels import quicken
from qkv.errors import QkvError
from qkv.models.build import build
from qkv.objectives import objective
from qkv.parts.linear_attention import FASTEST, GatedLinear, GatedSum
from qkv.parts.masks import Mask
from qkv.parts.state_space import Selective, StateSpace, scan
from qkv.presets import preset, tiny

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"mixer": "linear"},
    "performer": {"mixer": "performer", "mixer_rank": 16},
    "based": {"mixer": ["taylor", "window"], "d_key": 4, "window": 3},
    "gated-linear": {"mixer": "gated-linear", "d_key": 4},
    "gated-linear, grouped": {"mixer": "gated-linear", "n_kv_heads": 1},
    "s4d": {"mixer": "s4d", "d_state": 6},
    "mamba": {"mixer": "selective", "d_state": 5, "feedforward": "none"},
    "jamba": {"mixer": ["selective", "softmax"], "d_state": 4},
}
FIXED = [name for name in KINDS if name not in ("based", "jamba")]
"""Those of which no layer keeps its keys and values."""


def config(kind: str, **changes: Any) -> ModelConfig:
    fields = {"family": "decoder", "vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24,
              "norm_order": "pre", "norm": "rms", "position": "none", "dropout": 0.0}  # fmt: skip
    return ModelConfig(**{**fields, **KINDS[kind], **changes})


def network_of(kind: str) -> Any:
    """In double precision: what differs then is the rule, not the rounding. No weight is 0 or 1."""
    torch.manual_seed(0)
    network = build(config(kind)).double().eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return network


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def same(a: Tensor, b: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-7)


def same_gradients(a: Tensor, b: Tensor, inputs: list[Tensor], atol: float = 1e-9) -> None:
    ours, theirs = (torch.autograd.grad(x.sin().sum(), inputs, retain_graph=True) for x in (a, b))
    for x, y in zip(ours, theirs, strict=True):
        same(x, y, atol)


# --- gated linear attention


def gated_inputs(length: int, fade: float = 1.0) -> list[Tensor]:
    """q, k (B, H, T, D_k), v (B, H, T, D), log a, S before (B, H, D_k, D)."""
    decay = (-fade * torch.rand(2, 3, length, 4, dtype=torch.double)).requires_grad_()
    return [double(2, 3, length, 4), double(2, 3, length, 4), double(2, 3, length, 5), decay, double(2, 3, 4, 5)]


def gated_by_hand(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, total: Tensor) -> Tensor:
    """o_t = q_t (prod a) S_0 + sum_(j <= t) (q_t * prod_(j < i <= t) a_i) . k_j v_j: the sum unrolled, pair by pair."""
    outputs = []
    for t in range(q.size(2)):
        o = torch.einsum("bhd,bhde->bhe", q[:, :, t] * decay[:, :, : t + 1].sum(2).exp(), total)
        for j in range(t + 1):
            weight = (q[:, :, t] * k[:, :, j] * decay[:, :, j + 1 : t + 1].sum(2).exp()).sum(-1)  # (B, H)
            o = o + weight[..., None] * v[:, :, j]
        outputs.append(o)
    return torch.stack(outputs, 2)


@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (4, 4), (11, 4), (7, 1), (9, 32)])
def test_gated_sums_are_the_equation(length: int, chunk: int) -> None:
    torch.manual_seed(0)
    inputs, mixer = gated_inputs(length), GatedSum()
    mixer.chunk = chunk
    by_hand, (steps, last), (chunks, end) = (
        gated_by_hand(*inputs), mixer.step_by_step(*inputs), mixer.in_chunks(*inputs)
    )  # fmt: skip
    same(steps, by_hand)
    same(chunks, by_hand)
    same(end, last)
    same_gradients(chunks, by_hand, inputs)
    same_gradients(end, last, inputs[1:])


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_the_first_token_of_gated_attention_by_hand(eps: float) -> None:
    """y = W_o (out / sqrt(mean(out^2) + eps) * silu(W_r x)) with out = (q . k) v / sqrt(D_k): small, so that eps shows."""
    torch.manual_seed(0)
    layer = GatedLinear(8, 2, 2, 4, bias="none", eps=eps)
    x = torch.randn(1, 1, 8) * 0.3
    q, k, v = (part(x).view(2, 4) for part in (layer.query, layer.key, layer.value))
    out = (q * k).sum(-1, keepdim=True) * v / 2  # (H, D)
    normed = out / (out.square().mean(-1, keepdim=True) + eps).sqrt()
    expected = layer.output(normed.flatten() * F.silu(layer.gate(x)))
    torch.testing.assert_close(layer(x, Mask(1, causal=True))[0], expected)


def test_gla_has_the_eps_of_its_reference_code_and_saved_models_keep_theirs() -> None:
    network: Any = build(tiny("gla-340m"))
    assert {block.attention.layer.norm.eps for block in network.stack.blocks} == {1e-6}
    old: Any = build(config("gated-linear"))  # a folder from before that field has none
    assert old.stack.blocks[0].attention.layer.norm.eps == 1e-3


def test_gradients_of_gated_sums_are_those_of_finite_differences() -> None:
    mixer = GatedSum()
    mixer.chunk = 3
    assert torch.autograd.gradcheck(lambda *x: mixer(*x), gated_inputs(5), fast_mode=True)


def test_the_fastest_and_the_slowest_gates_are_exact_in_single_precision() -> None:
    """A whole chunk that fades as fast as can be, and one that does not fade: nothing overflows."""
    torch.manual_seed(0)
    exact = gated_inputs(70)
    with torch.no_grad():
        exact[3][:, :, :32], exact[3][:, :, 32:50], exact[3][:, :, 50:] = FASTEST, 0.0, FASTEST
    single = [x.detach().float().requires_grad_() for x in exact]
    (y, last), (wanted, end) = GatedSum()(*single), GatedSum()(*exact)
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last.double(), end, atol=1e-4, rtol=1e-4)
    for a, b in zip(*(torch.autograd.grad(x.sum(), i) for x, i in ((y, single), (wanted, exact))), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-3, rtol=1e-4)


def test_gates_stay_open_enough_whatever_the_token_says() -> None:
    layer = GatedLinear(8, 2, 2, 4).float()
    nn.init.constant_(layer.decay_up.bias, -1e4)
    y, _ = layer(torch.randn(1, 64, 8, requires_grad=True), Mask(64, causal=True))
    y.sum().backward()
    assert y.isfinite().all() and all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


# --- S4D


def test_the_state_space_is_the_differential_equation_under_a_held_input() -> None:
    """x' = A x + u with u held for dt, by the exponential of a matrix that holds both; y = 2 Re(C x) + D u."""
    torch.manual_seed(0)
    layer, u = StateSpace(3, 4).double(), double(2, 9, 3)
    with torch.no_grad():
        layer.log_decay.normal_()
    a = torch.complex(-layer.log_decay.exp(), layer.frequency)  # (C, N/2)
    dt, leave = layer.log_step.exp(), torch.view_as_complex(layer.leave)
    x = torch.zeros(2, 3, 2, dtype=torch.cdouble)
    outputs = []
    for t in range(9):
        new = torch.empty_like(x)
        for c in range(3):
            for n in range(2):
                both = torch.zeros(2, 2, dtype=torch.cdouble)
                both[0, 0], both[0, 1] = a[c, n] * dt[c], dt[c]
                held = torch.matrix_exp(both)
                new[:, c, n] = held[0, 0] * x[:, c, n] + held[0, 1] * u[:, t, c]
        x = new
        outputs.append(2 * (leave * x).sum(-1).real + layer.skip * u[:, t])
    by_hand = F.glu(layer.output(F.gelu(torch.stack(outputs, 1))), -1)
    y, kept = layer(u, Mask(9, causal=True), state={})
    same(y, by_hand)
    same(torch.view_as_real(kept["hidden"]), torch.view_as_real(x))
    same_gradients(y, by_hand, [u, *layer.parameters()])


def test_the_convolution_is_the_recurrence_after_a_past_and_between_padding() -> None:
    torch.manual_seed(0)
    layer, u = StateSpace(4, 6).double(), double(3, 8, 4)
    past = torch.randn(3, 4, 3, dtype=torch.cdouble)
    for keys in [None, *masks(3, 8), torch.zeros(3, 8).bool()]:
        mask = Mask(8, keys, causal=True)
        real = torch.ones(3, 8).bool() if keys is None else keys
        found = []
        for fast in (True, False):
            layer.fast = fast
            y, kept = layer(u, mask, state={"hidden": past})
            found.append((y[real], torch.view_as_real(kept["hidden"])))
        same(found[0][0], found[1][0])
        same(found[0][1], found[1][1])
        same_gradients(found[0][1], found[1][1], [u, layer.log_step, layer.frequency, layer.log_decay])


# --- selective


def scan_inputs(rows: int, tokens: int, width: int, states: int) -> list[Tensor]:
    step = (torch.rand(rows, tokens, width, dtype=torch.double) / 2).requires_grad_()
    decay = (-3 * torch.rand(states, width, dtype=torch.double)).requires_grad_()
    return [double(rows, tokens, width), step, decay, double(rows, tokens, states), double(rows, tokens, states),
            double(rows, states, width)]  # fmt: skip


def test_the_scan_is_the_equation() -> None:
    """h_t = exp(dt A) h + dt B u, y = C h for one row, channel and state at a time."""
    torch.manual_seed(0)
    u, step, decay, enter, leave, hidden = scan_inputs(2, 5, 3, 4)
    y, last = scan(u, step, decay, enter, leave, hidden)
    for b in range(2):
        for i in range(3):
            h = hidden[b, :, i]
            for t in range(5):
                h = (step[b, t, i] * decay[:, i]).exp() * h + step[b, t, i] * enter[b, t] * u[b, t, i]
                same(y[b, t, i], leave[b, t] @ h)
            same(last[b, :, i], h)


@needs_compiler
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(2, 37, 24, 5), (1, 1, 8, 16), (3, 16, 16, 8), (2, 33, 8, 1)], ids=str)
def test_the_kernel_is_the_scan_with_its_gradients(shape: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    slow = scan_inputs(*shape)
    fast = [x.detach().float().requires_grad_() for x in slow]
    (y, last), (wanted, end) = quick_scan(*fast), scan(*slow)
    assert "Scan" in y.grad_fn.name()  # type: ignore[union-attr]
    torch.testing.assert_close(y.double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last.double(), end, atol=1e-5, rtol=1e-5)
    ours, theirs = (
        torch.autograd.grad(a.sin().sum() + b.cos().sum(), x) for a, b, x in ((y, last, fast), (wanted, end, slow))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-4)


def test_what_the_kernel_does_not_know_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*inputs: Tensor) -> None:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(Scan, "apply", refuse)
    exact, narrow = scan_inputs(1, 4, 8, 2), [x.float() for x in scan_inputs(1, 4, 6, 2)]
    same(quick_scan(*exact)[0], scan(*exact)[0])
    same(quick_scan(*narrow)[0], scan(*narrow)[0])
    monkeypatch.setattr(engine, "library", lambda: None)
    single = [x.float() for x in exact]
    same(quick_scan(*single)[0], scan(*single)[0])


def from_hugging_face(theirs: Any) -> dict[str, Tensor]:
    """Names and shapes of its Mamba -> ours."""
    names = {"in_proj.weight": "enter.weight", "conv1d.weight": "kernel", "conv1d.bias": "kernel_bias",
             "x_proj.weight": "select.weight", "dt_proj.weight": "step_weight", "dt_proj.bias": "step_bias",
             "A_log": "log_decay", "D": "skip", "out_proj.weight": "output.weight"}  # fmt: skip
    weights = {"embed.tokens.weight": theirs["backbone.embeddings.weight"],
               "head.weight": theirs["backbone.embeddings.weight"],
               "stack.norm.weight": theirs["backbone.norm_f.weight"]}  # fmt: skip
    for layer in range(2):
        here, there = f"stack.blocks.{layer}.attention", f"backbone.layers.{layer}"
        weights[f"{here}.before.weight"] = theirs[f"{there}.norm.weight"]
        weights |= {f"{here}.layer.{our}": theirs[f"{there}.mixer.{their}"] for their, our in names.items()}
        weights[f"{here}.layer.kernel"] = weights[f"{here}.layer.kernel"][:, 0]  # (I, 1, 4) -> (I, 4)
    return weights


def test_mamba_is_hugging_faces() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    told = transformers.MambaConfig(vocab_size=30, hidden_size=24, num_hidden_layers=2, state_size=5)
    theirs = transformers.MambaForCausalLM(told).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    ours = build(config("mamba", d_model=24, attention_bias="none", tie="output")).eval()
    ours.load_state_dict(from_hugging_face(theirs.state_dict()), strict=True)
    ids = torch.randint(30, (2, 11))
    wanted = theirs(ids).logits
    torch.testing.assert_close(ours(Batch(inputs=ids)).logits, wanted, atol=1e-5, rtol=1e-4)
    steps = ours.head(in_chunks(ours, Batch(inputs=ids), 1))  # its state, our steps
    torch.testing.assert_close(steps, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "width", "layers"), [("mamba-130m", 768, 24), ("mamba-2.8b", 2560, 64)])
def test_mamba_has_the_shapes_of_hugging_faces(name: str, width: int, layers: int) -> None:
    transformers = pytest.importorskip("transformers")
    one, two = (preset(name).changed(n_layers=n) for n in (1, 2))  # each layer is as the first
    with torch.device("meta"):
        theirs = [transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=width, num_hidden_layers=n))
                  for n in (1, 2)]  # fmt: skip
        ours = [build(c) for c in (one, two)]
    size = [[sum(p.numel() for p in network.parameters()) for network in pair] for pair in (ours, theirs)]
    assert preset(name).n_layers == layers and size[0] == size[1]


# --- all of them, as networks


@pytest.mark.parametrize("kind", ["gated-linear, grouped", "jamba"])
def test_contracts_hold_where_no_preset_goes(kind: str) -> None:
    torch.manual_seed(1)
    broken = [r for r in check(build(config(kind)), config(kind)) if r.status == "broken"]
    assert not broken


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_are_the_parallel_form_in_double_precision(kind: str) -> None:
    """Step by step and in chunks, with padding anywhere, rows chosen anew: the rule itself, without its rounding."""
    network, ids = network_of(kind), torch.randint(30, (3, 9))
    for mask in [torch.ones(3, 9).bool(), *masks(3, 9)]:
        batch = Batch(inputs=ids, mask=mask)
        whole, moved = network(batch).hidden, torch.tensor([2, 0, 2])
        for size in (1, 4):
            same(in_chunks(network, batch, size)[mask], whole[mask])
        same(in_chunks(network, batch, 4, moved)[mask[moved]], whole[moved][mask[moved]])


@pytest.mark.parametrize("kind", FIXED)
@torch.no_grad()
def test_what_is_remembered_does_not_grow(kind: str) -> None:
    network = network_of(kind)
    _, short = network.step(torch.randint(30, (2, 3)), network.start(Batch()))
    _, long = network.step(torch.randint(30, (2, 40)), short)
    assert long.length == 43
    for a, b in zip(short.layers, long.layers, strict=True):
        assert {n: x.shape for n, x in a.items()} == {n: x.shape for n, x in b.items()}


@pytest.mark.parametrize("kind", ["gated-linear", "s4d", "mamba"])
def test_a_window_goes_on_where_the_last_one_ended(kind: str) -> None:
    """With its gradients within the second window; a row that begins anew forgets."""
    network, ids = network_of(kind), torch.randint(30, (2, 12))
    whole = network(Batch(inputs=ids)).hidden
    state = network(Batch(inputs=ids[:, :7]), network.start(Batch())).state
    second = Batch(inputs=ids[:, 7:])
    same(network(second, state).hidden, whole[:, 7:])
    parameters = [p for n, p in network.named_parameters() if not n.startswith("head")]
    same_gradients(network(second, state).hidden, network(Batch(inputs=ids)).hidden[:, 7:], parameters)
    fresh = network(replace(second, fresh=torch.tensor([True, False])), state).hidden
    same(fresh[1], whole[1, 7:])
    same(fresh[0], network(second).hidden[0])


@pytest.mark.parametrize("kind", KINDS)
def test_documents_in_one_row_are_refused_not_mixed(kind: str) -> None:
    batch = Batch(inputs=torch.randint(30, (1, 6)), documents=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    with pytest.raises(QkvError, match="use one row for each"):
        network_of(kind)(batch)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_half_precision_is_single_precision_rounded(kind: str) -> None:
    network, batch = network_of(kind).float(), Batch(inputs=torch.randint(30, (2, 9)))
    wanted = network(batch).hidden
    half = network.bfloat16()(batch).hidden
    assert half.dtype == torch.bfloat16
    assert (half.float() - wanted).square().mean() < 0.01 * wanted.square().mean()


def test_padding_neither_enters_a_state_nor_lets_it_fade() -> None:
    for layer in (GatedLinear(8, 2, 2, 4), StateSpace(8, 4), Selective(8, 4)):
        x, mask = torch.randn(2, 5, 8), Mask(5, causal=True)
        _, kept = layer(x, mask, state={})
        padding = Mask(6, torch.cat([torch.ones(2, 5), torch.zeros(2, 6)], 1).bool(), 11, causal=True)
        _, after = layer(100 * torch.randn(2, 6, 8), padding, state=kept)
        for name, tensor in kept.items():
            torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=1e-5, msg=f"{type(layer).__name__} {name}")


@pytest.mark.parametrize(("kind", "steps"), [("gated-linear", 60), ("s4d", 150), ("mamba", 60)])
def test_a_small_one_learns_to_keep_a_token_in_mind(kind: str, steps: int) -> None:
    """The first of a row, one of six, is asked for at every later token, which tell nothing about it."""
    torch.manual_seed(0)
    c = config(kind, vocab_size=10)
    network = quicken(build(c)).train()
    adam = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        first, rest = torch.randint(6, (16, 1)), torch.randint(6, 10, (16, 11))
        batch = Batch(inputs=torch.cat([first, rest], 1), targets=first.repeat(1, 12))
        loss = objective(c)(network(batch), batch).mean
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 0.5  # guessing costs ln 6 = 1.79
