"""Recurrent layers: Elman, GRU, LSTM, reading in either direction, with or without attention.

Read `elman`, `gru` and `lstm` first: they are the equations. RecurrentStack runs them over a sequence, with torch's fused
kernels where nothing happens between the steps, and step by step where a decoder attends to its source at each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.parts.masks import Mask
from qkv.parts.scores import make_score
from qkv.parts.state import EncoderOutput, Layer, State
from qkv.parts.tap import Tap

# --- the equations: from i = W x + b and h = U hidden + c, of width C per gate, and the last state to the next state


def elman(i: Tensor, h: Tensor, last: Layer) -> Layer:
    """Return hidden' = tanh(W x + U hidden) (Elman 1990)."""
    return {"hidden": torch.tanh(i + h)}


def gru(i: Tensor, h: Tensor, last: Layer) -> Layer:
    """Return hidden' = (1 - z) n + z hidden, n = tanh(W x + r * U hidden): the gate z keeps the old, r lets it into the new n.

    Cho et al. 2014, in torch's form: r multiplies U hidden, not hidden.
    """
    (i_r, i_z, i_n), (h_r, h_z, h_n) = i.chunk(3, -1), h.chunk(3, -1)  # (B, C) each
    r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
    n = torch.tanh(i_n + r * h_n)
    return {"hidden": (1 - z) * n + z * last["hidden"]}


def lstm(i: Tensor, h: Tensor, last: Layer) -> Layer:
    """Return cell' = forget cell + input tanh(new), hidden' = output tanh(cell'), with the sigmoids of three gates.

    Along the cell gradients need not vanish (Hochreiter and Schmidhuber 1997; the forget gate: Gers et al. 2000).
    """
    input_gate, forget_gate, new, output_gate = (i + h).chunk(4, -1)  # (B, C) each
    cell = torch.sigmoid(forget_gate) * last["cell"] + torch.sigmoid(input_gate) * torch.tanh(new)
    return {"hidden": torch.sigmoid(output_gate) * torch.tanh(cell), "cell": cell}


EQUATIONS: dict[str, Callable[[Tensor, Tensor, Layer], Layer]] = {"elman": elman, "gru": gru, "lstm": lstm}
FUSED: dict[str, Callable[..., nn.RNNBase]] = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def keep(real: Tensor | None, new: Layer, old: Layer) -> Layer:
    """Return the new state in rows where `real` (B,) is True, the old one elsewhere: a padded token changes nothing."""
    return new if real is None else {name: torch.where(real[:, None], new[name], old[name]) for name in new}


# --- attention, one query at a time


class StepAttention(nn.Module):
    """weights = softmax(score(W hidden, U memory)), context = weights . memory: one head, one query, no value projection.

    The memory may have another width, E = `d_memory`. Without `projections` W and U are absent, score(hidden, memory): a bilinear
    score is then hidden^T W memory with W (C, E), as in Luong et al. 2015.

    At `tap_step` hooks read or change the weights of one step (B, 1, 1, S); `tap_weights` gets those of all T steps together at
    the end of the pass, (B, 1, T, S), as an alignment.
    """

    def __init__(self, d_model: int, score: str, rank: int | None = None, d_memory: int | None = None,
                 projections: bool = True):  # fmt: skip
        super().__init__()
        self.d_model, self.d_memory = d_model, d_memory or d_model
        self.query = nn.Linear(d_model, d_model, bias=False) if projections else nn.Identity()
        self.key = nn.Linear(self.d_memory, d_model, bias=False) if projections else nn.Identity()
        self.score = make_score(score, 1, d_model, rank, d_model if projections else self.d_memory)
        self.tap_step, self.tap_weights = Tap(), Tap()

    def forward(self, hidden: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Attend: hidden (B, C), key (B, 1, S, C or E), value (B, S, E) -> context (B, E), weights (B, 1, 1, S).

        In beam search the K beams of a sentence share its memory: B is then B * K in `hidden` and in what is returned.
        """
        query = self.query(hidden).unflatten(0, (key.size(0), -1))[:, None]  # (B * K, C) -> (B, K, C) -> (B, 1, K, C)
        scores = self.score(query, key)  # (B, 1, K, S)
        weights = self.tap_step(scores.masked_fill(~allowed, float("-inf")).softmax(-1))
        return (weights[:, 0] @ value).flatten(0, 1), weights[:, 0].flatten(0, 1)[:, None, None]


# --- the stack


class RecurrentStack(nn.Module):
    """Recurrent layers one above the other, with Stack's signature: (B, T, C) -> (B, T, C), and a State.

    A layer remembers {"hidden": (B, C)}, an LSTM's also {"cell": (B, C)}. A `bidirectional` layer concatenates two directions of
    width C/2; `reverse` reads from the last token to the first (Sutskever et al. 2014), each output staying at its token.
    Padded tokens change nothing, wherever they stand; their outputs are 0.

    With a `score` each step attends to the memory. Bahdanau et al. 2015: the query is the previous hidden vector of the top layer,
    and the context enters the lowest layer beside x (concatenated). Luong et al. 2015 (`input_feeding`): the query is the new
    hidden vector; fed = tanh(W [context; hidden]) is the output, and enters the next step beside x. The top layer then also
    remembers "memory_key" (and "fed"). Without attention there is `fixed_context` (Cho et al. 2014): the encoder's last hidden
    vector of the top layer enters every step beside x, and is remembered as "context".

    With `starts_from_memory` each layer starts from the last state of an encoder layer, counted from the top (if the encoder
    has fewer layers, its lowest serves the rest): as it is (Sutskever), or with `bridge` through tanh(W state + b), for an
    encoder that is bidirectional (Bahdanau), or of another depth or width `d_memory`.
    """

    def __init__(self, kind: str, d_model: int, n_layers: int, *, dropout: float, bidirectional: bool = False,
                 reverse: bool = False, score: str | None = None, score_rank: int | None = None,
                 input_feeding: bool = False, fixed_context: bool = False, starts_from_memory: bool = False,
                 bridge: bool = False, d_memory: int | None = None, projections: bool = True):  # fmt: skip
        super().__init__()
        directions, d_memory = 2 if bidirectional else 1, d_memory or d_model
        beside = d_model if input_feeding else d_memory if score or fixed_context else 0  # width of the vector beside x
        self.d_model, self.reverse, self.starts_from_memory = d_model, reverse, starts_from_memory
        self.fixed_context = fixed_context
        self.equation = EQUATIONS[kind]
        self.names = ("hidden", "cell") if kind == "lstm" else ("hidden",)
        self.cells = FUSED[kind](
            d_model + beside, d_model // directions, n_layers, batch_first=True,
            bidirectional=bidirectional, dropout=dropout if n_layers > 1 else 0.0,
        )  # fmt: skip
        self.attention = None if score is None else StepAttention(d_model, score, score_rank, d_memory, projections)
        self.feed = nn.Linear(d_memory + d_model, d_model, bias=False) if input_feeding else None
        widths = len(self.names) * d_memory, len(self.names) * d_model
        self.bridge = nn.ModuleList(nn.Linear(*widths) for _ in range(n_layers)) if bridge else None
        self.dropout = nn.Dropout(dropout)
        self.fast = True
        """False: always the readable path."""

    def forward(self, x: Tensor, mask: Mask, memory: EncoderOutput | None = None, state: State | None = None
                ) -> tuple[Tensor, State | None]:  # fmt: skip
        """Run all layers: (B, T, C) -> (B, T, C) and the state after the last token; `state` is the one before the first.

        An encoder (not causal) always returns its state, from which a decoder may start; a decoder returns one if it is given one.
        Without a state, padding after the tokens is computed like tokens, which is faster than skipping it and changes nothing.
        """
        mask.forbid_packing("a recurrent stack")
        past, kept = () if state is None else state.layers, state is not None or not mask.causal
        assert not (past and (self.reverse or self.cells.bidirectional)), "only the forward direction can go on"
        keys = mask.real  # (B, T)
        layers = list(past) or self.first(x, memory)
        real = keys if kept or not mask.padding_hidden else None  # (B, T): None = no token is skipped
        if self.attention is not None:
            y, layers = self.write(x, real, layers, memory)
        else:
            y, layers = self.read(x, real, layers)
        y = y if keys is None else y.masked_fill(~keys[..., None], 0.0)
        # contiguous: dropout draws in memory order, which must not differ between the two paths
        y = self.dropout(y.contiguous())
        return y, State(tuple(layers), mask.length, mask.keys, memory) if kept else None

    def first(self, x: Tensor, memory: EncoderOutput | None) -> list[Layer]:
        """Return what each layer remembers before the first token: zeros, or the last state of the encoder."""
        nothing = x.new_zeros(x.size(0), self.d_model)
        layers: list[Layer] = [dict.fromkeys(self.names, nothing) for _ in range(self.cells.num_layers)]
        if self.starts_from_memory and memory is not None and memory.state is not None:
            read = memory.state.layers
            layers = [dict(read[max(index, 0)]) for index in range(len(read) - len(layers), len(read))]
            if self.bridge is not None:
                layers = [self.cross(bridge, layer) for bridge, layer in zip(self.bridge, layers, strict=True)]
        if self.feed is not None:
            layers[-1]["fed"] = nothing
        if self.fixed_context:
            assert memory is not None and memory.state is not None, "a fixed context is that of an encoder"
            layers[-1]["context"] = memory.state.layers[-1]["hidden"]
        return layers

    def cross(self, bridge: nn.Module, layer: Layer) -> Layer:
        """Return tanh(W [hidden; cell] + b), the first state of a decoder layer from an encoder state."""
        whole = torch.tanh(bridge(torch.cat([layer[name] for name in self.names], -1)))  # (B, 1 or 2 times C)
        return dict(zip(self.names, whole.chunk(len(self.names), -1), strict=True))

    # --- without attention

    def read(self, x: Tensor, keys: Tensor | None, layers: list[Layer]) -> tuple[Tensor, list[Layer]]:
        """Run all layers over all tokens, by the kernel or step by step."""
        run = self.kernel if self.uses_kernel(x) else self.readable
        if (context := layers[-1].get("context")) is not None:
            y, layers = run(torch.cat([x, context[:, None].expand(-1, x.size(1), -1)], -1), keys, layers)
            return y, [*layers[:-1], layers[-1] | {"context": context}]
        if not self.reverse:
            return run(x, keys, layers)
        y, layers = run(x.flip(1), None if keys is None else keys.flip(1), layers)
        return y.flip(1), layers

    def uses_kernel(self, x: Tensor) -> bool:
        """Whether x (B, T, C) is read by the kernel."""
        return self.fast

    def readable(self, x: Tensor, keys: Tensor | None, layers: list[Layer]) -> tuple[Tensor, list[Layer]]:
        """Run layer after layer, direction after direction, token after token."""
        directions = ("", "_reverse") if self.cells.bidirectional else ("",)
        kept = []
        for index, layer in enumerate(layers):
            # dropout time first, as torch's kernel draws it: equal seeds then drop the same activations
            x = self.dropout(x.transpose(0, 1).contiguous()).transpose(0, 1) if index else x
            ways = [
                self.scan(
                    x, keys, f"l{index}{way}", {name: layer[name].chunk(len(directions), -1)[n] for name in self.names}
                )
                for n, way in enumerate(directions)
            ]
            x = torch.cat([y for y, _ in ways], -1)  # (B, T, C)
            kept.append({name: torch.cat([last[name] for _, last in ways], -1) for name in self.names})  # (B, C)
        return x, kept

    def scan(self, x: Tensor, keys: Tensor | None, cell: str, last: Layer) -> tuple[Tensor, Layer]:
        """Run one direction of one layer over all tokens: (B, T, C) -> (B, T, C or C/2)."""
        entered, outputs = self.enter(cell, x), {}
        for t in reversed(range(x.size(1))) if cell.endswith("_reverse") else range(x.size(1)):
            last = keep(None if keys is None else keys[:, t], self.step(cell, entered[:, t], last), last)
            outputs[t] = last["hidden"]
        return torch.stack([outputs[t] for t in range(x.size(1))], 1), last

    def enter(self, cell: str, x: Tensor) -> Tensor:
        """Compute i = W x + b of one cell, named as in torch ("l0", "l1_reverse"): (..., C) -> (..., gates * C).

        It does not depend on the past, so all tokens are computed at once. With attention W also has columns for the vector beside
        x, which `write` adds.
        """
        weight = getattr(self.cells, f"weight_ih_{cell}")
        own = weight if weight.size(1) == x.size(-1) else weight[:, : x.size(-1)]
        return F.linear(x, own, getattr(self.cells, f"bias_ih_{cell}"))

    def step(self, cell: str, i: Tensor, last: Layer) -> Layer:
        """Run one token through one cell: i (B, gates * C) -> what it remembers now."""
        h = F.linear(last["hidden"], getattr(self.cells, f"weight_hh_{cell}"), getattr(self.cells, f"bias_hh_{cell}"))
        return self.equation(i, h, last)

    @torch.autocast("cpu", enabled=False)  # not every CPU has an LSTM in bfloat16
    def kernel(self, x: Tensor, keys: Tensor | None, layers: list[Layer]) -> tuple[Tensor, list[Layer]]:
        """Run all layers with torch's fused kernel; the real tokens of each row are moved to its front, and their outputs back."""
        if x.device.type == "cpu":  # autocast may have left tokens and states in bfloat16
            dtype = self.cells.weight_hh_l0.dtype
            x = x.to(dtype)  # type: ignore[arg-type]
            layers = [{name: kept.to(dtype) for name, kept in layer.items()} for layer in layers]
        if keys is None:
            y, last = self.cells(x, self.to_torch(layers))
            return y, self.from_torch(last)
        order = (~keys).byte().argsort(stable=True, dim=1)[..., None]  # (B, T, 1): real tokens first
        lengths = keys.sum(1).clamp(min=1).cpu()  # at least 1, as the kernel needs; `keep` discards that token
        moved = x.gather(1, order.expand_as(x))  # (B, T, C)
        packed = pack_padded_sequence(moved, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.cells(packed, self.to_torch(layers))
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.size(1))
        y = torch.zeros_like(y).scatter(1, order.expand_as(y), y)  # (B, T, C)
        return y, [keep(keys.any(1), new, old) for new, old in zip(self.from_torch(last), layers, strict=True)]

    def to_torch(self, layers: list[Layer]) -> Tensor | tuple[Tensor, ...]:
        """Return what the layers remember as torch's modules take it: (layers * directions, B, width)."""
        width = self.cells.hidden_size  # C / directions
        whole = [torch.stack([layer[name] for layer in layers]) for name in self.names]  # (layers, B, C)
        # (layers, B, C) -> (layers, B, directions, width) -> (layers, directions, B, width)
        parts = [x.unflatten(-1, (-1, width)).transpose(1, 2).flatten(0, 1).contiguous() for x in whole]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def from_torch(self, last: Tensor | tuple[Tensor, ...]) -> list[Layer]:
        """Undo `to_torch`: (layers * directions, B, width) -> (B, C) for each layer and name."""
        parts = (last,) if isinstance(last, Tensor) else last
        n = self.cells.num_layers
        whole = [x.unflatten(0, (n, -1)).transpose(1, 2).flatten(2).unbind(0) for x in parts]  # n of (B, C)
        return [dict(zip(self.names, layer, strict=True)) for layer in zip(*whole, strict=True)]

    # --- with attention

    def write(self, x: Tensor, keys: Tensor | None, layers: list[Layer], memory: EncoderOutput | None
              ) -> tuple[Tensor, list[Layer]]:  # fmt: skip
        """Run step by step and attend to the memory at each; its keys (B, 1, S, C or E) are computed once and kept in the top layer."""
        assert self.attention is not None and memory is not None, "a decoder with attention needs a memory"
        key = layers[-1]["memory_key"] if "memory_key" in layers[-1] else self.attention.key(memory.vectors)[:, None]
        allowed = Mask.for_memory(1, memory).dense  # (B, 1, 1, S)
        look = lambda hidden: self.attention(hidden, key, memory.vectors, allowed)  # type: ignore[misc]  # noqa: E731
        # unbound and sliced once: in the loop, each step's gradient would be a tensor of zeros as large as the whole
        entered = self.enter("l0", x).unbind(1)  # T of (B, gates * C)
        beside = self.beside()
        outputs, weights = [], []
        for t, i in enumerate(entered):
            y, new, step_weights = self.attend(i, beside, layers, look)
            real = None if keys is None else keys[:, t]
            layers = [keep(real, *pair) for pair in zip(new, layers, strict=True)]
            outputs.append(y)
            weights.append(step_weights)
        self.attention.tap_weights(torch.cat(weights, 2))  # (B, 1, T, S)
        layers[-1]["memory_key"] = key
        return torch.stack(outputs, 1), layers  # (B, T, C)

    def beside(self) -> Callable[[Tensor], Tensor]:
        """Return x' -> W' x', the share of the vector beside x in `enter` of the lowest layer."""
        weight = self.cells.weight_ih_l0[:, self.d_model :]  # type: ignore[index]
        return lambda vector: F.linear(vector, weight)

    def attend(self, i: Tensor, beside: Callable[[Tensor], Tensor], layers: list[Layer], look: Callable[[Tensor], tuple[Tensor, Tensor]]
               ) -> tuple[Tensor, list[Layer], Tensor]:  # fmt: skip
        """Run one step of all layers, from i = W x + b and the map W' of the vector beside x.

        Return the output (B, C), what the layers remember, and the attention weights (B, 1, 1, S).
        """
        if self.feed is None:  # Bahdanau: attend, then step
            context, weights = look(layers[-1]["hidden"])
            layers = self.climb(i + beside(context), layers)
            return layers[-1]["hidden"], layers, weights
        layers = self.climb(i + beside(layers[-1]["fed"]), layers)  # Luong: step, then attend
        hidden = layers[-1]["hidden"]
        context, weights = look(hidden)
        fed = torch.tanh(self.feed(torch.cat([context, hidden], -1)))  # (B, C)
        layers[-1]["fed"] = fed
        return fed, layers, weights

    def climb(self, i: Tensor, layers: list[Layer]) -> list[Layer]:
        """Run one token through all layers, from i = W [x; beside] + b of the lowest; return what they remember."""
        kept = [self.step("l0", i, layers[0])]
        for index, layer in enumerate(layers[1:], 1):
            kept.append(self.step(f"l{index}", self.enter(f"l{index}", self.dropout(kept[-1]["hidden"])), layer))
        return kept
