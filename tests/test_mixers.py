"""Mixers: causal, blind to padding, the same in cached chunks, equal to their formulas and, to softmax."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.compressed import Compressed
from qkv.parts.linear_attention import Linear, Performer, Taylor, orthogonal_normal
from qkv.parts.masks import Mask
from qkv.parts.mixers import Linformer, Window
from qkv.parts.scores import Dot
from qkv.parts.softmax import Softmax, repeat_heads

HEADS, KV_HEADS, WIDTH, SCALE = 4, 2, 6, 0.4


def softmax() -> nn.Module:
    return Softmax(Dot(SCALE))


def compressed(stride: int = 3, kv_heads: int = KV_HEADS) -> Compressed:
    """With kernels that differ for every head and place, as after training."""
    mixer = Compressed(SCALE, kv_heads, WIDTH, stride)
    nn.init.normal_(mixer.key_kernel, std=0.4)
    nn.init.normal_(mixer.value_kernel, std=0.4)
    return mixer


class Carried(nn.Module):
    """A linear mixer called as the others are, with all keys: those of the past enter its sum first."""

    def __init__(self, mixer: Linear, chunk: int = 4):  # so that short tests cross several
        super().__init__()
        mixer.chunk = chunk
        self.mixer = mixer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, encoding: object = None) -> Tensor:
        past, total = mask.length - mask.queries, None
        if past:
            before = Mask(past, None if mask.keys is None else mask.keys[:, :past], causal=True)
            _, total = self.mixer(q.new_ones(*q.shape[:2], past, WIDTH), k[:, :, :past], v[:, :, :past], before)
        return self.mixer(q, k[:, :, past:], v[:, :, past:], mask, total)[0]


CAUSAL: dict[str, Callable[[], nn.Module]] = {
    "softmax": softmax,
    "window": lambda: Window(SCALE, 2),
    "window-global": lambda: Window(SCALE, 2, 3),
    "performer": lambda: Carried(Performer(SCALE, WIDTH, 10)),
    "linear": lambda: Carried(Linear()),
    "taylor": lambda: Carried(Taylor(SCALE)),
    "compressed": compressed,
}
ALL = CAUSAL | {"linformer": lambda: Linformer(SCALE, 24, 5)}
BOTH = [(name, causal) for name in ALL for causal in (False, True) if name in CAUSAL or not causal]

names = pytest.mark.parametrize("name", CAUSAL)
names_and_rules = pytest.mark.parametrize(("name", "causal"), BOTH)
few = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**31)


def make(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return ALL[name]().double()


def heads(batch: int, length: int, n_heads: int = HEADS, n_kv_heads: int = KV_HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in double precision: what differs then is the rule, not the rounding."""
    return (
        torch.randn(batch, n_heads, length, WIDTH, dtype=torch.double),
        torch.randn(batch, n_kv_heads, length, WIDTH, dtype=torch.double),
        torch.randn(batch, n_kv_heads, length, WIDTH, dtype=torch.double),
    )


def paddings(length: int) -> Tensor:
    """Real tokens at the right, at the left, with holes, everywhere, only one: (5, S)."""
    places, some = torch.arange(length), length // 2 + 1
    one = places == some - 1
    return torch.stack([places >= length - some, places < some, (torch.rand(length) < 0.5) | one, places >= 0, one])


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-10)


# --- contracts of all mixers


@names
@few
@given(seed=seeds, length=st.integers(2, 20))
def test_a_later_token_changes_nothing_before_it(name: str, seed: int, length: int) -> None:
    mixer = make(name, seed)
    q, k, v = heads(1, length)
    mask = Mask(length, causal=True)
    place = seed % (length - 1) + 1
    before = mixer(q, k, v, mask)
    k[:, :, place], v[:, :, place] = 3 * torch.randn(WIDTH), torch.randn(WIDTH)
    after = mixer(q, k, v, mask)
    assert torch.equal(before[:, :, :place], after[:, :, :place])
    assert not close(before[:, :, place], after[:, :, place])  # it does see itself


@names
def test_gradients_reach_the_past_and_never_the_future(name: str) -> None:
    mixer = make(name, 0)
    q, k, v = (x.requires_grad_() for x in heads(1, 17))
    mixer(q, k, v, Mask(17, causal=True))[:, :, 9].sum().backward()
    for x in (k, v):
        assert x.grad is not None and x.grad[:, :, 10:].abs().max() == 0
        assert (x.grad[:, :, 8:10].abs().sum((0, 1, 3)) > 0).all()


@names_and_rules
@few
@given(seed=seeds, length=st.integers(2, 20))
def test_padding_anywhere_gives_what_the_sequence_gives_alone(name: str, causal: bool, seed: int, length: int) -> None:
    mixer = make(name, seed)
    q, k, v = heads(5, length)
    keys = paddings(length)
    mixed = mixer(q, k, v, Mask(length, keys, causal=causal))
    for row, real in enumerate(keys):
        alone = mixer(*(x[row : row + 1, :, real] for x in (q, k, v)), Mask(int(real.sum()), causal=causal))
        assert close(mixed[row, :, real], alone[0])


@names
@few
@given(seed=seeds, length=st.integers(2, 20), cuts=st.sets(st.integers(1, 19)), padded=st.booleans())
def test_cached_chunks_give_what_one_pass_gives(
    name: str, seed: int, length: int, cuts: set[int], padded: bool
) -> None:
    mixer = make(name, seed)
    q, k, v = heads(5, length)
    keys = paddings(length) if padded else None
    whole = mixer(q, k, v, Mask(length, keys, causal=True))
    edges = [0, *sorted(cut for cut in cuts if cut < length), length]
    for begin, end in pairwise(edges):
        seen = None if keys is None else keys[:, :end]
        mask = Mask(end - begin, seen, end, causal=True)
        part = mixer(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], mask)
        real = torch.ones(5, end - begin, dtype=torch.bool) if keys is None else keys[:, begin:end]
        assert close(part.transpose(1, 2)[real], whole[:, :, begin:end].transpose(1, 2)[real])


@names_and_rules
def test_grouped_heads_are_repeated_heads(name: str, causal: bool) -> None:
    mixer, mask = make(name, 1), Mask(11, causal=causal)
    q, k, v = heads(2, 11)
    grouped = mixer(q, k, v, mask)
    for parameter in ("key_kernel", "value_kernel"):
        if hasattr(mixer, parameter):  # one kernel per key head
            repeated = getattr(mixer, parameter).data.repeat_interleave(HEADS // KV_HEADS, 0)
            setattr(mixer, parameter, nn.Parameter(repeated))
    assert close(grouped, mixer(q, repeat_heads(k, HEADS), repeat_heads(v, HEADS), mask))


@pytest.mark.parametrize(("name", "causal"), [case for case in BOTH if case[0] != "softmax"])
@pytest.mark.parametrize("length", [5, 15])
def test_a_row_of_padding_alone_is_finite_with_finite_gradients(name: str, causal: bool, length: int) -> None:
    mixer = make(name, 2)
    inputs = [x.requires_grad_() for x in heads(2, length)]
    keys = torch.stack([torch.zeros(length), torch.ones(length)]).bool()
    mixed = mixer(*inputs, Mask(length, keys, causal=causal))
    mixed.sum().backward()
    assert mixed.isfinite().all()
    assert all(x.grad.isfinite().all() for x in [*inputs, *mixer.parameters()] if x.grad is not None)


@names_and_rules
def test_extreme_queries_and_keys_stay_finite_in_single_precision(name: str, causal: bool) -> None:
    mixer = make(name, 8).float()
    q, k, v = (x.float() for x in heads(2, 15))
    inputs = [x.requires_grad_() for x in (300 * q, 300 * k, v)]
    mixed = mixer(*inputs, Mask(15, causal=causal))
    mixed.sum().backward()
    assert mixed.isfinite().all() and all(x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    mixer = make(name, 3)
    inputs = [x.requires_grad_() for x in heads(1, 7)]
    mask = Mask(7, torch.tensor([[0, 1, 1, 1, 0, 1, 1]]).bool(), causal=name in CAUSAL)
    real = mask.keys[0]  # type: ignore[index]
    assert torch.autograd.gradcheck(lambda *x: mixer(*x, mask)[:, :, real], inputs, fast_mode=True)


@pytest.mark.parametrize("name", ALL)
def test_fresh_mixers_need_no_memory_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        mixer = ALL[name]()
    assert all(tensor.is_meta for tensor in mixer.state_dict().values())


# --- window


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_long_as_the_sequence_is_softmax(causal: bool) -> None:
    q, k, v = heads(5, 9)
    mask = Mask(9, paddings(9), causal=causal)
    real = mask.keys
    whole = softmax()(q, k, v, mask).transpose(1, 2)[real]
    for size in (8, 20):
        window = Window(SCALE, size)
        assert close(window(q, k, v, mask).transpose(1, 2)[real], whole)
        wide = window.band(q, repeat_heads(k, HEADS), repeat_heads(v, HEADS), mask)
        assert close(wide.transpose(1, 2)[real], whole)


@few
@given(seed=seeds, length=st.integers(1, 24), size=st.integers(1, 8), n_global=st.integers(0, 6), causal=st.booleans())
def test_the_band_is_the_readable_window(seed: int, length: int, size: int, n_global: int, causal: bool) -> None:
    torch.manual_seed(seed)
    window = Window(SCALE, size, n_global)
    q, k, v = heads(5, length, 2, 2)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    queries = seed % length + 1 if causal else length
    keys = paddings(length)
    mask = Mask(queries, keys, length, causal)
    real = keys[:, length - queries :]
    readable = (window.weights(q[:, :, -queries:], k, mask) @ v).transpose(1, 2)[real]
    band = window.band(q[:, :, -queries:], k, v, mask).transpose(1, 2)[real]
    assert close(band, readable)
    if real.any():
        ours, theirs = (torch.autograd.grad(x.square().sum(), inputs) for x in (band, readable))
        assert all(close(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_who_sees_whom_in_a_window(causal: bool) -> None:
    real = [1, 3, 4, 5, 8, 9, 10, 11]  # holes before, between and after
    keys = torch.zeros(1, 13, dtype=torch.bool)
    keys[0, real] = True
    q, k, _ = heads(1, 13)
    weights = Window(SCALE, 2, 1).weights(q, k, Mask(13, keys, causal=causal))
    for t, row in enumerate(real):
        seen = {real[s] for s in range(8) if (abs(s - t) <= 2 or s == 0 or t == 0) and (s <= t or not causal)}
        assert set(weights[0, 0, row].nonzero().flatten().tolist()) == seen
        assert math.isclose(float(weights[0, 0, row].sum()), 1)


def test_reading_the_weights_of_a_window_leaves_its_output() -> None:
    window, mask = Window(SCALE, 2, 1), Mask(15, causal=True)
    q, k, v = heads(1, 15)
    fast, kept = window(q, k, v, mask), []
    handle = window.tap_weights.register_forward_hook(lambda module, inputs, output: kept.append(output))
    assert close(window(q, k, v, mask), fast)
    handle.remove()
    assert close(kept[0] @ repeat_heads(v, HEADS), fast)


# --- linformer


def test_linformer_with_identity_projections_is_softmax() -> None:
    mixer = Linformer(SCALE, 9, 9).double()
    nn.init.eye_(mixer.project_key)
    nn.init.eye_(mixer.project_value)
    q, k, v = heads(2, 9)
    assert close(mixer(q, k, v, Mask(9)), softmax()(q, k, v, Mask(9)))


def test_linformer_refuses_the_causal_rule_and_longer_sequences_but_not_longer_padding() -> None:
    mixer = Linformer(SCALE, 6, 3).double()
    q, k, v = heads(1, 8)
    with pytest.raises(ValueError, match="causal"):
        mixer(q, k, v, Mask(8, causal=True))
    for keys in (None, torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1]]).bool()):
        with pytest.raises(QkvError, match="end at 6"):
            mixer(q, k, v, Mask(8, keys))
    for keys in (torch.arange(8)[None] < 6, torch.arange(8)[None] >= 2):
        real = keys[0]
        alone = mixer(*(x[:, :, real] for x in (q, k, v)), Mask(6))
        assert close(mixer(q, k, v, Mask(8, keys))[:, :, real], alone)


# --- linear, performer and taylor


def kernel_average(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """sum_j (q_t . k_j) v_j / sum_j (q_t . k_j) with the whole table."""
    weights = (q @ repeat_heads(k, HEADS).transpose(-1, -2)) * mask.dense
    return weights @ repeat_heads(v, HEADS) / weights.sum(-1, keepdim=True)


@few
@given(seed=seeds, length=st.integers(1, 20), chunk=st.integers(1, 20), causal=st.booleans())
def test_linear_mixers_are_their_formulas(seed: int, length: int, chunk: int, causal: bool) -> None:
    torch.manual_seed(seed)
    q, k, v = heads(2, length)
    mask = Mask(length, causal=causal)
    linear, taylor = Carried(Linear(), chunk), Carried(Taylor(SCALE), chunk)
    performer = Carried(Performer(SCALE, WIDTH, 9).double(), chunk)
    elu = [nn.functional.elu(x) + 1 for x in (q, k)]
    assert close(linear(q, k, v, mask), kernel_average(*elu, v, mask))
    rooted = [x * SCALE**0.5 for x in (q, k)]
    favor = [(x @ performer.mixer.projection.T - x.square().sum(-1, keepdim=True) / 2).exp() for x in rooted]
    assert close(performer(q, k, v, mask), kernel_average(*favor, v, mask))
    scores = q @ repeat_heads(k, HEADS).transpose(-1, -2) * SCALE  # (B, H, T, S)
    weights = (1 + scores + scores.square() / 2) * mask.dense
    mixed = weights @ repeat_heads(v, HEADS) / weights.sum(-1, keepdim=True)
    assert close(taylor(q, k, v, mask), mixed)


@pytest.mark.parametrize("causal", [False, True])
def test_performer_comes_closer_to_softmax_with_more_features(causal: bool) -> None:
    torch.manual_seed(4)
    q, k, v = heads(1, 32)
    q, k = q / 2, k / 2  # long vectors need very many features: the variance grows with exp(|q + k|^2)
    mask = Mask(32, causal=causal)
    exact = softmax()(q, k, v, mask)

    def error(n_features: int) -> float:
        draws = [Performer(SCALE, WIDTH, n_features).double()(q, k, v, mask)[0] for _ in range(8)]
        return float(torch.stack([(draw - exact).square().mean() for draw in draws]).mean().sqrt())

    errors = [error(n) for n in (32, 32 * 16, 32 * 256)]  # the error goes with 1 / sqrt(features): a quarter each time
    assert errors[1] < errors[0] / 2 and errors[2] < errors[1] / 2
    assert errors[2] < 0.03 * float(exact.std())


def test_random_features_are_orthogonal_normal_and_point_everywhere() -> None:
    torch.manual_seed(5)
    rows = orthogonal_normal(20_002, 4)
    assert rows.shape == (20_002, 4)
    group = rows[:4] @ rows[:4].T
    assert torch.allclose(group, group.diagonal().diag(), atol=1e-5)
    assert rows.mean(0).abs().max() < 0.04  # no side preferred: 5 standard errors
    assert (rows.square().mean(0) - 1).abs().max() < 0.06


def test_the_random_features_are_stored_and_follow_the_seed() -> None:
    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return Performer(SCALE, WIDTH, 9).state_dict()["projection"]

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("causal", [False, True])
def test_performer_survives_keys_of_very_different_sizes(causal: bool) -> None:
    """exp(-|k|^2 / 2) of the first keys is 0 in single precision; a shared maximum would leave their queries 0 / 0."""
    torch.manual_seed(6)
    q, k, v = heads(1, 12)
    k[:, :, :8] *= 40 / k[:, :, :8].norm(dim=-1, keepdim=True)
    performer = Carried(Performer(SCALE, WIDTH, 64))
    seen = slice(0, 8)  # none of the small keys
    alone = performer(*(x[:, :, seen].float() for x in (q, k, v)), Mask(8, causal=causal))
    keys = None if causal else torch.arange(12)[None] < 8
    mixed = performer(q.float(), k.float(), v.float(), Mask(12, keys, causal=causal))[:, :, seen]
    exact = performer.double()(*(x[:, :, seen] for x in (q, k, v)), Mask(8, causal=causal))
    assert torch.allclose(mixed, alone, atol=1e-5)
    assert torch.allclose(mixed.double(), exact, atol=1e-2)


def test_linear_attention_keeps_its_precision_over_long_half_precision_sequences() -> None:
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, 1, 1500, 4).bfloat16() for _ in range(3))
    mask = Mask(1500, causal=True)
    half, single = Linear()(q, k, v, mask)[0], Linear()(q.float(), k.float(), v.float(), mask)[0]
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), single, rtol=2**-7, atol=1e-4)


# --- compressed


@pytest.mark.parametrize("causal", [False, True])
def test_compression_by_one_is_softmax(causal: bool) -> None:
    mixer = Compressed(SCALE, KV_HEADS, WIDTH, 1).double()
    q, k, v = heads(2, 9)
    mask = Mask(9, causal=causal)
    assert close(mixer(q, k, v, mask), softmax()(q, k, v, mask))


@few
@given(seed=seeds, length=st.integers(1, 14), stride=st.integers(1, 5), causal=st.booleans())
def test_compressed_is_its_rule_query_by_query(seed: int, length: int, stride: int, causal: bool) -> None:
    torch.manual_seed(seed)
    mixer = compressed(stride, 1).double()
    q, k, v = heads(1, length, 1, 1)
    mixed = mixer(q, k, v, Mask(length, causal=causal))[0, 0]

    def shown(x: Tensor, kernel: Tensor, t: int) -> Tensor:
        """What query t sees of x (S, D): slots, whole ones only if causal, then the tokens after them up to t."""
        last = t + 1 if causal else length
        begins = range(0, last // stride * stride if causal else length, stride)
        slots = [sum(x[p] @ kernel[p - begin] for p in range(begin, min(begin + stride, length))) for begin in begins]
        return torch.stack([*slots, *(x[last // stride * stride : last] if causal else [])])

    for t in range(length):
        keys, values = shown(k[0, 0], mixer.key_kernel[0], t), shown(v[0, 0], mixer.value_kernel[0], t)
        assert close(mixed[t], (keys @ q[0, 0, t] * SCALE).softmax(0) @ values)


def test_a_fresh_compressed_slot_is_the_average_of_its_tokens() -> None:
    mixer = Compressed(SCALE, KV_HEADS, WIDTH, 3).double()
    q, k, v = heads(2, 9)
    means = [x.unflatten(2, (3, 3)).mean(3) for x in (k, v)]
    averaged = softmax()(q, *means, Mask(9, length=3))
    assert torch.allclose(mixer(q, k, v, Mask(9)), averaged, atol=1e-6)  # 1/3 is kept in single precision
