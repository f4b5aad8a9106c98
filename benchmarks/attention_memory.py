"""Memory of causal attention, n = 1024 to 8192: how the peak grows with n, for qkv's fast and readable paths.

Each figure is the growth of the peak resident memory of a fresh process during one call of an Attention layer
(B = 1, C = 512, H = 8) over what it held just before. The exponent is the slope of log(memory) over log(n).
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Iterator

LENGTHS = (1024, 2048, 4096, 8192)
READABLE = LENGTHS[:3]  # at 8192 the readable path needs several GB


def megabytes() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(n: int, backward: bool, fast: bool) -> float:
    """In this process, once."""
    import torch

    from qkv.parts.attention import Attention
    from qkv.parts.masks import Mask
    from qkv.parts.scores import Dot
    from qkv.parts.softmax import Softmax

    def call(length: int) -> None:
        x = torch.randn(1, length, 512, requires_grad=backward)
        with torch.set_grad_enabled(backward):
            out, _ = layer(x, Mask(length, causal=True))
        if backward:
            out.sum().backward()

    layer = Attention(512, 8, 8, 64, Softmax(Dot(1 / 8)))
    layer.mixer.fast = fast
    call(64)  # loads the libraries
    before = megabytes()
    call(n)
    return megabytes() - before


def fresh(n: int, backward: bool, fast: bool) -> float:
    command = [sys.executable, __file__, "--measure", str(n), str(int(backward)), str(int(fast))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def exponent(lengths: tuple[int, ...], memory: list[float]) -> float:
    """Slope from the first to the last point: 1 = O(n), 2 = O(n^2)."""
    return math.log(memory[-1] / memory[0]) / math.log(lengths[-1] / lengths[0])


def report() -> Iterator[str]:
    lines = ["**Causal attention, peak memory of one call**, MB", "",
             "| path | " + " | ".join(f"n = {n}" for n in LENGTHS) + " | exponent |", "|---" * (len(LENGTHS) + 2) + "|"]  # fmt: skip
    for backward in (False, True):
        for fast in (True, False):
            lengths = LENGTHS if fast else READABLE
            memory = [fresh(n, backward, fast) for n in lengths]
            name = f"{'fast' if fast else 'readable'}, forward{' + backward' if backward else ''}"
            cells = [f"{m:.0f}" for m in memory] + ["not run"] * (len(LENGTHS) - len(lengths))
            lines.append(f"| {name} | {' | '.join(cells)} | {exponent(lengths, memory):.2f} |")
    yield "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(measure(int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1"))
    else:
        print(*report())
