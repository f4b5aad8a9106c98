"""Recurrent stacks: the equations against torch's modules, padding, chunks, causality, attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.state import EncoderOutput, State
from qkv.parts.tap import record

C, T, S, LAYERS = 8, 6, 5, 2
KINDS = ("elman", "gru", "lstm")
SCORES = ("dot", "scaled-dot", "bilinear", "low-rank", "additive")
READERS = {
    "plain": {},
    "reverse": {"reverse": True},
    "bidirectional": {"bidirectional": True},
    "both": {"bidirectional": True, "reverse": True},
}
WRITERS = {
    f"{score}{'-fed' * fed}": {"score": score, "score_rank": 3, "input_feeding": fed, "starts_from_memory": True}
    for score in SCORES
    for fed in (False, True)
}
ALL = READERS | WRITERS
FORWARD = {"plain": {}} | WRITERS

every = lambda variants: pytest.mark.parametrize(  # noqa: E731
    ("kind", "options"), [pytest.param(k, o, id=f"{k}-{n}") for k in KINDS for n, o in variants.items()]
)


def make(kind: str, options: dict, n_layers: int = LAYERS, **more) -> RecurrentStack:
    """A small stack in double precision, so that equal means equal to 1e-10."""
    torch.manual_seed(0)
    stack = RecurrentStack(kind, C, n_layers, **({"dropout": 0.0} | options | more))
    return stack.double().eval()


def vectors(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def source(rows: int, kind: str, mask: Tensor | None = None) -> EncoderOutput:
    names = ("hidden", "cell") if kind == "lstm" else ("hidden",)
    layers = tuple({name: vectors(rows, C, seed=10 * i + len(name)) for name in names} for i in range(LAYERS))
    return EncoderOutput(vectors(rows, S, C, seed=2), mask, State(layers))


def run(
    stack: RecurrentStack, x: Tensor, keys: Tensor | None = None, memory: EncoderOutput | None = None
) -> tuple[Tensor, State]:
    return stack(x, Mask(x.size(1), keys, causal=True), memory, State())


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def same_state(a: State, b: State) -> None:
    assert len(a.layers) == len(b.layers) == LAYERS
    for mine, other in zip(a.layers, b.layers, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            same(mine[name], other[name])


# --- the equations


@pytest.mark.parametrize("fast", [True, False])
@every(READERS)
def test_equals_torch(kind, options, fast):
    stack = make(kind, options)
    stack.fast = fast
    bidirectional = options.get("bidirectional", False)
    torch_class = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind]
    other = torch_class(C, C // (1 + bidirectional), LAYERS, batch_first=True, bidirectional=bidirectional).double()
    other.load_state_dict(stack.cells.state_dict())
    x = vectors(3, T, C)
    flip = (lambda y: y.flip(1)) if options.get("reverse") else (lambda y: y)
    expected, last = other(flip(x))
    y, state = run(stack, x)
    same(y, flip(expected))
    for name, stored in zip(("hidden", "cell"), last if kind == "lstm" else (last,), strict=False):
        for index, layer in enumerate(state.layers):
            ways = stored[2 * index : 2 * index + 2] if bidirectional else stored[index : index + 1]
            same(layer[name], torch.cat(list(ways), -1))


@every(READERS)
def test_readable_equals_kernel_with_padding_and_gradients(kind, options):
    keys = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0]]).bool()
    results = []
    for fast in (True, False):
        stack = make(kind, options)
        stack.fast = fast
        x = vectors(4, T, C).requires_grad_()
        y, state = run(stack, x, keys)
        (y.pow(2).sum() + sum(layer["hidden"].sum() for layer in state.layers)).backward()
        results.append((y, state, [x.grad, *(p.grad for p in stack.parameters())]))
    (y, state, grads), (other, other_state, other_grads) = results
    same(y, other)
    same_state(state, other_state)
    for a, b in zip(grads, other_grads, strict=True):
        same(a, b)


def attention_by_hand(stack: RecurrentStack, score: str, query: Tensor, memory: Tensor) -> Tensor:
    """One query (C,), memory (S, C) -> context (C,): lecture 000's five scores, spelled out."""
    a = stack.attention
    q, keys = a.query.weight @ query, [a.key.weight @ m for m in memory]
    scores = torch.stack([
        {
            "dot": lambda k: q.dot(k),
            "scaled-dot": lambda k: q.dot(k) / C**0.5,
            "bilinear": lambda k: q @ a.score.weight[0] @ k,
            "low-rank": lambda k: (q @ a.score.left[0]).dot(a.score.right[0] @ k),
            "additive": lambda k: a.score.weight[0].dot(torch.tanh(q + k)),
        }[score](k)
        for k in keys
    ])  # fmt: skip
    return torch.softmax(scores, 0) @ memory


@every(WRITERS)
def test_attention_equals_torch_cells_and_the_formulas(kind, options):
    """One sequence alone, with torch's own cells for the step and the papers' order of events around it."""
    stack, memory, x = make(kind, options), source(1, kind), vectors(1, T, C)
    cell_class = {"elman": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind]
    cells = [cell_class(C if i else 2 * C, C).double() for i in range(LAYERS)]
    for i, cell in enumerate(cells):
        weights = stack.cells.state_dict()
        cell.load_state_dict({name: weights[f"{name}_l{i}"] for name in cell.state_dict()})
    now = [tuple(layer.values()) if kind == "lstm" else layer["hidden"] for layer in memory.state.layers]
    top = lambda: now[-1][0] if kind == "lstm" else now[-1]  # noqa: E731
    look = lambda h: attention_by_hand(stack, options["score"], h[0], memory.vectors[0])[None]  # noqa: E731
    fed, expected = torch.zeros(1, C, dtype=torch.float64), []
    for t in range(T):
        climbing = torch.cat([x[:, t], fed if options["input_feeding"] else look(top())], -1)
        for i, cell in enumerate(cells):
            now[i] = cell(climbing, now[i])
            climbing = now[i][0] if kind == "lstm" else now[i]
        if options["input_feeding"]:
            fed = torch.tanh(F.linear(torch.cat([look(top()), top()], -1), stack.feed.weight))
        expected.append(fed if options["input_feeding"] else top())
    same(run(stack, x, memory=memory)[0], torch.stack(expected, 1))


# --- contracts


@every(ALL)
def test_padding_changes_nothing(kind, options):
    """Padded on the left, on the right, in the middle, in one batch: what each row gives alone, last state included."""
    stack = make(kind, options)
    keys = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 1, 0, 1, 1, 0]]).bool()
    memory_keys = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 0, 1, 0]]).bool()
    x, memory = vectors(4, T, C), source(4, kind, memory_keys) if "score" in options else None
    y, state = run(stack, x, keys, memory)
    assert (y[~keys] == 0).all()
    for row in range(4):
        alone, own = None, torch.tensor([row])
        if memory is not None:
            alone = EncoderOutput(memory.vectors[own][:, memory_keys[row]], None, memory.state.select(own))
        single, last = run(stack, x[own][:, keys[row]], None, alone)
        same(y[row, keys[row]], single[0])
        for whole, part in zip(state.select(own).layers, last.layers, strict=True):
            assert whole.keys() == part.keys()
            for name in whole.keys() - {"memory_key"}:  # as long as the batch's longest source
                same(whole[name], part[name])


@every(ALL)
def test_a_row_of_padding_is_finite_and_starts_where_it_ends(kind, options):
    stack = make(kind, options)
    keys = torch.tensor([[True] * T, [False] * T])
    memory = source(2, kind, torch.tensor([[True] * S, [False] * S])) if "score" in options else None
    y, state = run(stack, vectors(2, T, C), keys, memory)
    assert y.isfinite().all()
    for layer, first in zip(state.layers, stack.first(y, memory), strict=True):
        for name in first:
            same(layer[name][1], first[name][1])
            assert not torch.equal(layer[name][0], first[name][0])


@pytest.mark.parametrize("padded", [False, True])
@every(FORWARD)
def test_chunks_equal_whole(kind, options, padded):
    stack = make(kind, options)
    keys = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0]]).bool() if padded else None
    x, memory = vectors(3, T, C), source(3, kind) if "score" in options else None
    whole, last = run(stack, x, keys, memory)
    state, parts = State(memory=memory), []
    for begin, end in ((0, 1), (1, 4), (4, 6)):
        seen = Mask(
            end - begin, state.seen(end - begin, None if keys is None else keys[:, begin:end]), end, causal=True
        )
        y, state = stack(x[:, begin:end], seen, state.memory, state)
        parts.append(y)
    same(torch.cat(parts, 1), whole)
    same_state(state, last)
    assert state.length == T and (keys is None or torch.equal(state.keys, keys))


@pytest.mark.parametrize("fast", [True, False])
@every(ALL)
def test_which_outputs_a_token_reaches(kind, options, fast):
    """Forward: its own and the later ones; reversed: its own and the earlier ones; both ways: all."""
    stack, memory = make(kind, options), source(2, kind) if "score" in options else None
    stack.fast = fast
    x = vectors(2, T, C)
    other = x.clone()
    other[:, 2] += 1
    changed = (run(stack, x, None, memory)[0] != run(stack, other, None, memory)[0]).any(-1).all(0)  # (T,)
    if options.get("bidirectional"):
        assert changed.all()
    else:
        places = torch.arange(T)
        assert torch.equal(changed, places <= 2 if options.get("reverse") else places >= 2)


@every(FORWARD)
def test_selected_rows_go_on_alone(kind, options):
    """A beam that takes rows 2, 0, 0 writes on as those rows would have."""
    stack, memory = (
        make(kind, options),
        source(3, kind, torch.ones(3, S).tril(2).bool()) if "score" in options else None,
    )
    x, more, rows = vectors(3, T, C), vectors(3, 2, C, seed=5), torch.tensor([2, 0, 0])
    _, state = run(stack, x, None, memory)
    on = lambda x, state: stack(x, Mask(2, None, T + 2, causal=True), state.memory, state)  # noqa: E731
    y, last = on(more, state)
    chosen, chosen_last = on(more[rows], state.select(rows))
    same(chosen, y[rows])
    same_state(chosen_last, last.select(rows))


@every(FORWARD)
def test_a_state_is_never_changed_in_place(kind, options):
    stack, memory = make(kind, options), source(2, kind) if "score" in options else None
    _, state = run(stack, vectors(2, T, C), None, memory)
    before = [{name: tensor.clone() for name, tensor in layer.items()} for layer in state.layers]
    stack(vectors(2, 1, C, seed=7), Mask(1, None, T + 1, causal=True), memory, state)
    same_state(state, State(tuple(before)))


@every(ALL)
def test_gradient_reaches_every_weight_and_the_source(kind, options):
    stack, memory = make(kind, options, bridge="score" in options), None
    x = vectors(2, T, C).requires_grad_()
    if "score" in options:
        memory = source(2, kind)
        for tensor in (memory.vectors, *(t for layer in memory.state.layers for t in layer.values())):
            tensor.requires_grad_()
    run(stack, x, None, memory)[0].pow(2).sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert (x.grad.abs().sum(-1) > 0).all()
    if memory is not None:
        assert (memory.vectors.grad.abs().sum(-1) > 0).all()
        assert all(t.grad.abs().sum() > 0 for layer in memory.state.layers for t in layer.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"score": "additive"}], ids=["kernel", "steps"])
def test_dropout_acts_between_layers_and_on_the_output_in_training_only(kind, options):
    stack, memory, x = make(kind, options, dropout=0.5), source(2, kind), vectors(2, 1, C)
    quiet = run(stack, x, None, memory)[0]
    assert torch.equal(quiet, run(stack, x, None, memory)[0]) and (quiet != 0).all()
    stack.train()
    (y, first), (_, second) = run(stack, x, None, memory), run(stack, x, None, memory)
    assert (y == 0).any() and (y != 0).any()
    same(first.layers[0]["hidden"], second.layers[0]["hidden"])
    assert not torch.equal(first.layers[1]["hidden"], second.layers[1]["hidden"])


# --- where a decoder starts


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fixed_context_enters_every_step_beside_x(kind, fast):
    stack, memory, x = make(kind, {"fixed_context": True}), source(3, kind), vectors(3, T, C)
    stack.fast = fast
    other = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind](2 * C, C, LAYERS, batch_first=True).double()
    other.load_state_dict(stack.cells.state_dict())
    beside = memory.state.layers[-1]["hidden"][:, None].expand(-1, T, -1)
    keys = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()
    y, _ = run(stack, x, keys, memory)
    for row, real in enumerate(keys):
        same(y[row, real], other(torch.cat([x, beside], -1)[row, real][None])[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_starts_from_the_encoders_last_state_as_it_is(kind):
    memory, x = source(2, kind), vectors(2, T, C)
    follower, ignorer = make(kind, {}, starts_from_memory=True), make(kind, {})
    seen = Mask(T, None, T, causal=True)
    same(follower(x, seen, memory)[0], ignorer(x, seen, None, memory.state)[0])
    same(ignorer(x, seen, memory)[0], ignorer(x, seen)[0])
    same(follower(x, seen, EncoderOutput(memory.vectors))[0], ignorer(x, seen)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "taken"), [(1, [0, 0]), (2, [0, 0, 1]), (2, [0, 1]), (3, [1, 2])])
def test_bridge_and_other_numbers_of_layers(kind, depth, taken):
    """Tops meet; where the encoder is lower its lowest layer serves again. A bridge is tanh(W [hidden; cell] + b)."""
    plain, bridged = (make(kind, {}, len(taken), starts_from_memory=True, bridge=b) for b in (False, True))
    read = [{name: vectors(2, C, seed=10 * i + len(name)) for name in plain.names} for i in range(depth)]
    memory = EncoderOutput(vectors(2, S, C), None, State(tuple(read)))
    for layer, index in zip(plain.first(memory.vectors, memory), taken, strict=True):
        assert all(torch.equal(layer[name], read[index][name]) for name in plain.names)
    for layer, index, bridge in zip(bridged.first(memory.vectors, memory), taken, bridged.bridge, strict=True):
        whole = torch.cat([read[index][name] for name in plain.names], -1)
        same(torch.cat([layer[name] for name in plain.names], -1), torch.tanh(bridge(whole)))


# --- attention weights in view


@every(WRITERS)
def test_alignment_can_be_read(kind, options):
    """One picture for the whole pass, equal to those of its steps; nothing on padding, rows that sum to 1."""
    stack, keys = make(kind, options), torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]).bool()
    memory, x = source(2, kind, keys), vectors(2, T, C)
    with record(stack, ["attention.tap_weights"]) as kept:
        run(stack, x, None, memory)
        whole = kept["attention.tap_weights"]
        state, steps = State(memory=memory), []
        for t in range(T):
            _, state = stack(x[:, t : t + 1], Mask(1, None, t + 1, causal=True), memory, state)
            steps.append(kept["attention.tap_weights"])
    assert whole.shape == (2, 1, T, S)
    same(torch.cat(steps, 2), whole)
    same(whole.sum(-1), torch.ones(2, 1, T, dtype=torch.float64))
    assert ((whole > 0).all(2)[:, 0] == keys).all() and (whole[1, 0][:, ~keys[1]] == 0).all()


@pytest.mark.parametrize("fed", [False, True])
def test_alignment_can_be_edited(fed):
    """Flat weights put in by hand are the weights of a decoder that compares nothing."""
    stack = make("gru", {"score": "dot", "input_feeding": fed})
    memory, x = source(2, "gru"), vectors(2, T, C)
    before, _ = run(stack, x, None, memory)
    handle = stack.attention.tap_step.register_forward_hook(lambda m, i, weights: torch.full_like(weights, 1 / S))
    edited, _ = run(stack, x, None, memory)
    handle.remove()
    nn.init.zeros_(stack.attention.query.weight)
    same(edited, run(stack, x, None, memory)[0])
    assert not torch.allclose(edited, before)


def test_memory_keys_are_computed_once_per_source():
    stack, memory, calls = make("gru", {"score": "additive"}), source(2, "gru"), []
    stack.attention.key.register_forward_hook(lambda *_: calls.append(1))
    state = State(memory=memory)
    for t in range(3):
        _, state = stack(vectors(2, 2, C), Mask(2, None, 2 * t + 2, causal=True), memory, state)
    assert len(calls) == 1
