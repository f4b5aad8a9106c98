"""State spaces: each channel has a few numbers that it remembers, x' = A x + B u, and reads, y = C x + D u.

Sampled at steps of dt (zero-order hold: u stays the same within a step) this is a recurrence, x_t = exp(dt A) x_(t-1) + ... u_t.
In StateSpace (S4D) it is the same at every token, hence a convolution; in Selective (Mamba) dt, B and C depend on the
token, which can so decide what is kept. Both stand where attention stands, with its signature. What one remembers is of fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.mixers import to_front
from qkv.parts.positions import PositionEncoding
from qkv.parts.state import Layer

FASTEST_STEP, SLOWEST_STEP = 0.1, 0.001
"""Fresh steps dt are spread between these: memories from about ten to a thousand tokens."""


def fresh_steps(width: int) -> Tensor:
    """(width,): log dt, uniform between the slowest and the fastest."""
    return torch.empty(width).uniform_(math.log(SLOWEST_STEP), math.log(FASTEST_STEP))


class Rows:
    """The T tokens of a pass with the real ones of each row at its front, as a recurrence must meet them."""

    def __init__(self, mask: Mask, device: torch.device):
        real = None if mask.real is None else mask.real.to(device)
        self.order = to_front(real)
        self.lengths = None if real is None else real.sum(-1)  # (B,); None = all are real
        places = torch.arange(mask.queries, device=device)
        self.padding = None if self.lengths is None else places >= self.lengths[:, None]  # (B, T), once arranged

    def arrange(self, x: Tensor) -> Tensor:
        """(B, T, C), the real tokens first."""
        return x if self.order is None else x.take_along_dim(self.order[..., None], 1)

    def restore(self, x: Tensor) -> Tensor:
        """(B, T, C), every token where it was."""
        return x if self.order is None else x.take_along_dim(self.order.argsort(-1)[..., None], 1)

    def clear(self, x: Tensor) -> Tensor:
        """Arranged (B, T, C) with zeros for padding."""
        return x if self.padding is None else x.masked_fill(self.padding[..., None], 0.0)

    def last(self, x: Tensor, count: int) -> Tensor:
        """Of (B, count + T, C), whose first `count` were there before: the last `count` real ones of each row."""
        if self.lengths is None:
            return x[:, x.size(1) - count :]
        return x.take_along_dim((self.lengths[:, None] + torch.arange(count, device=x.device))[..., None], 1)


class StateSpace(nn.Module):
    """A diagonal state space for each channel (S4D, Gu et al. 2022), N / 2 complex numbers x_n each:

    x_t = exp(dt A) x_(t-1) + (exp(dt A) - 1) / A u_t          y_t = 2 Re(sum_n C_n x_t,n) + D u_t

    Unrolled, y = K * u + D u with K_t = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(dt A_n t): a convolution as long as the
    text, O(n log n) by Fourier transform. A_n = -1/2 + i pi n at first (S4D-Lin), B = 1. Then GELU, and a gated map that
    mixes the channels.
    """

    undecayed = ("log_decay", "frequency")

    def __init__(self, d_model: int, d_state: int):
        super().__init__()
        half = d_state // 2  # the other half are their conjugates, hence 2 Re
        self.log_step = nn.Parameter(fresh_steps(d_model))  # log dt
        self.log_decay = nn.Parameter(torch.full((d_model, half), math.log(0.5)))  # log of -Re A
        self.frequency = nn.Parameter(math.pi * torch.arange(half).float().repeat(d_model, 1))  # Im A
        self.leave = nn.Parameter(torch.randn(d_model, half, 2) * math.sqrt(0.5))  # C, real and imaginary part
        self.skip = nn.Parameter(torch.ones(d_model))  # D
        self.output = nn.Linear(d_model, 2 * d_model)
        self.stacked = {"output": (d_model, d_model)}  # value and gate
        self.fast = True
        """False: always token by token."""

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward: (B, T, C) -> (B, T, C) and x after the last token."""
        mask.forbid_packing("mixer 's4d'")
        rows = Rows(mask, x.device)
        u = rows.clear(rows.arrange(x)).to(torch.promote_types(x.dtype, torch.float32))
        way = self.convolve if self.fast and x.size(1) > 1 else self.step_by_step
        y, last = way(u, rows, state["hidden"] if state else None, state is not None)
        y = F.gelu(y + self.skip * u).to(x.dtype)
        return rows.restore(F.glu(self.output(y), -1)), {} if last is None else {"hidden": last}

    def discrete(self, number: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """dt A, (exp(dt A) - 1) / A and C, complex (C, N/2)."""
        decay, frequency, leave = (p.to(number) for p in (self.log_decay.exp(), self.frequency, self.leave))
        a = torch.complex(-decay, frequency)
        exponent = a * self.log_step.to(number).exp()[:, None]
        return exponent, (exponent.exp() - 1) / a, torch.view_as_complex(leave.contiguous())

    def step_by_step(self, u: Tensor, rows: Rows, past: Tensor | None, keep: bool) -> tuple[Tensor, Tensor | None]:
        """The recurrence, which is also one step of generation: (B, T, C) -> (B, T, C) and x (B, C, N/2)."""
        exponent, enter, leave = self.discrete(u.dtype)
        hidden = enter.new_zeros(u.size(0), *enter.shape) if past is None else past
        outputs = []
        for t, now in enumerate(u.unbind(1)):  # (B, C)
            new = exponent.exp() * hidden + enter * now[..., None]
            hidden = new if rows.padding is None else torch.where(rows.padding[:, t, None, None], hidden, new)
            outputs.append(2 * (leave * hidden).sum(-1).real)
        return torch.stack(outputs, 1), hidden if keep else None

    def convolve(self, u: Tensor, rows: Rows, past: Tensor | None, keep: bool) -> tuple[Tensor, Tensor | None]:
        """The same for all tokens at once."""
        exponent, enter, leave = self.discrete(u.dtype)
        length = u.size(1)
        powers = (exponent[..., None] * torch.arange(length, device=u.device)).exp()  # (C, N/2, T): exp(dt A t)
        kernel = 2 * ((leave * enter)[:, None] @ powers)[:, 0].real  # (C, T): K
        n = 2 * length  # twice as long, or the end of the text would come round to its beginning
        y = torch.fft.irfft(torch.fft.rfft(u, n, 1) * torch.fft.rfft(kernel, n).T, n, 1)[:, :length]  # (B, T, C)
        if past is not None:
            start = past * exponent.exp() * leave  # (B, C, N/2)
            y = y + 2 * (start.transpose(0, 1) @ powers).real.permute(1, 2, 0)  # (C, B, T) -> (B, T, C)
        return y, self.last(u, rows, past, exponent, enter, powers) if keep else None

    def last(
        self, u: Tensor, rows: Rows, past: Tensor | None, exponent: Tensor, enter: Tensor, powers: Tensor
    ) -> Tensor:
        """x after the last real token of each row, sum_j exp(dt A (length - 1 - j)) enter u_j: (B, C, N/2)."""
        length = u.size(1)
        since = torch.arange(length - 1, -1, -1, device=u.device)[None]  # (1, T): tokens after each
        lengths = torch.full((1,), length, device=u.device) if rows.lengths is None else rows.lengths
        if rows.lengths is not None:  # the real ones to the end of the row, after the zeros
            u = u.take_along_dim(((lengths[:, None] - 1 - since) % length)[..., None], 1)
        reached = powers.flip(-1) @ u.permute(2, 1, 0).to(powers.dtype)  # (C, N/2, T) @ (C, T, B)
        found = reached.permute(2, 0, 1) * enter  # (B, C, N/2)
        return found if past is None else found + past * (exponent * lengths[:, None, None]).exp()


# --- selective

EXPAND, CONVOLUTION = 2, 4
"""How much wider it is inside, and how many tokens its convolution sees (Gu and Dao 2023)."""
Scan = Callable[..., tuple[Tensor, Tensor]]
"""With the signature of `scan`."""


def scan(u: Tensor, step: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """x_t = exp(dt_t A) x_(t-1) + dt_t B_t u_t, y_t = C_t x_t, token by token (B by Euler's rule, as the paper's own code).

    u, dt (B, T, I), A (N, I), B and C (B, T, N), x (B, N, I) before -> y (B, T, I) and x after.
    """
    outputs = []
    for now, dt, b, c in zip(*(part.unbind(1) for part in (u, step, enter, leave)), strict=True):  # (B, I or N)
        hidden = (dt[:, None] * decay).exp() * hidden + b[..., None] * (dt * now)[:, None]  # (B, N, I)
        outputs.append((c[:, None] @ hidden)[:, 0])
    return torch.stack(outputs, 1), hidden


class Selective(nn.Module):
    """A state space whose dt, B and C are read from the token (Mamba, Gu and Dao 2023); I = 2 C channels inside.

    u, z = W x;  u = silu(convolution of 4 tokens);  dt, B, C from u;  y = scan(u) + D u;  out = W' (y * silu(z))

    With its gate and its width it is attention and feed-forward layer in one: see feedforward = "none".
    """

    undecayed = ("log_decay",)

    def __init__(self, d_model: int, d_state: int, bias: bool = False):
        super().__init__()
        inner, rank = EXPAND * d_model, math.ceil(d_model / 16)
        self.sizes = [rank, d_state, d_state]
        self.enter = nn.Linear(d_model, 2 * inner, bias)  # u and z
        self.kernel = nn.Parameter(torch.empty(inner, CONVOLUTION).uniform_(-0.5, 0.5))
        self.kernel_bias = nn.Parameter(torch.zeros(inner))
        self.select = nn.Linear(inner, sum(self.sizes), bias=False)  # dt (low rank), B and C
        self.step_weight = nn.Parameter(torch.empty(inner, rank).uniform_(-(rank**-0.5), rank**-0.5))
        step = fresh_steps(inner).exp()
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
        self.log_decay = nn.Parameter(
            torch.arange(1, d_state + 1).float().log().repeat(inner, 1)
        )  # A = -1, -2, ..., -N
        self.skip = nn.Parameter(torch.ones(inner))  # D
        self.output = nn.Linear(inner, d_model, bias)
        self.stacked = {"enter": (inner, inner), "select": tuple(self.sizes)}
        """Maps that stand one above the other in one matrix, and how many rows each has: an optimiser takes them apart."""
        self.scan: Scan = scan
        """What runs the recurrence: token by token, or a kernel (engine/scan.py)."""

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward: (B, T, C) -> (B, T, C), the last inputs of the convolution and x."""
        mask.forbid_packing("mixer 'selective'")
        rows = Rows(mask, x.device)
        u, gate = self.enter(rows.arrange(x)).chunk(2, -1)  # (B, T, I) each
        recent, hidden = (state["recent"], state["hidden"]) if state else self.nothing(u)
        seen = torch.cat([recent, u], 1)  # (B, 3 + T, I)
        u = F.silu(self.convolve(seen))
        step, enter, leave = self.select(u).split(self.sizes, -1)  # (B, T, rank), (B, T, N) twice
        # padding has a step of 0: exp(0 A) = 1 keeps all, 0 B u adds nothing
        step = rows.clear(F.softplus(F.linear(step, self.step_weight, self.step_bias)))  # (B, T, I)
        wide = (part.to(hidden.dtype) for part in (u, step, -self.log_decay.exp().T, enter, leave))
        y, hidden = self.scan(*wide, hidden)
        y = (y.to(u.dtype) + self.skip * u) * F.silu(gate)
        kept = {} if state is None else {"recent": rows.last(seen, CONVOLUTION - 1), "hidden": hidden}
        return rows.restore(self.output(y)), kept

    def nothing(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Before the first token: no inputs (B, 3, I), and x = 0 (B, N, I), in float32 at least."""
        number = torch.promote_types(u.dtype, torch.float32)
        return (
            u.new_zeros(u.size(0), CONVOLUTION - 1, u.size(2)),
            u.new_zeros(u.size(0), self.sizes[-1], u.size(2), dtype=number),
        )

    def convolve(self, seen: Tensor) -> Tensor:
        """sum_k w_k u_(t - 3 + k) + bias, each channel by itself: (B, 3 + T, I) -> (B, T, I)."""
        length = seen.size(1) - CONVOLUTION + 1
        shifted = (seen[:, k : k + length] * w for k, w in enumerate(self.kernel.unbind(-1)))
        return sum(shifted, start=self.kernel_bias)
