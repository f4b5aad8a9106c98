"""PackedRecurrentStack: recurrent layers whose single steps, as in generation, use the kernels' matrix products."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from qkv.engine.linear import PackedLinear
from qkv.engine.rebuild import Rebuild
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.state import Layer


class PackedRecurrentStack(RecurrentStack):
    """A recurrent stack for inference. One token is read by products of packed matrices; several tokens by torch's fused kernel,
    as in RecurrentStack, unless a decoder attends to its source at each of them."""

    def __init__(self, plain: RecurrentStack, rebuild: Rebuild):
        nn.Module.__init__(self)
        self.__dict__.update(
            {name: value for name, value in rebuild.copy(plain).__dict__.items() if name != "training"}
        )
        self.matrices = nn.ModuleDict()
        for name, weight in plain.cells.named_parameters():  # weight_ih_l0, weight_hh_l0, ...
            if name.startswith("bias"):
                continue
            bias = getattr(plain.cells, name.replace("weight", "bias"))
            own = weight[:, : plain.d_model] if name == "weight_ih_l0" else weight
            self.matrices[name] = PackedLinear(own, bias)
        wide = plain.cells.weight_ih_l0[:, plain.d_model :]  # type: ignore[index]
        self.columns_beside = PackedLinear(wide, None) if wide.size(1) else None

    def uses_kernel(self, x: Tensor) -> bool:
        """Whether x (B, T, C) is read by torch's kernel: several tokens."""
        return x.size(1) > 1 and super().uses_kernel(x)

    def enter(self, cell: str, x: Tensor) -> Tensor:
        """As RecurrentStack.enter."""
        matrix = self.matrices[f"weight_ih_{cell}"]
        if cell != "l0" or x.size(-1) == self.d_model:
            return matrix(x)  # type: ignore[no-any-return]
        return matrix(x[..., : self.d_model]) + self.beside()(x[..., self.d_model :])  # type: ignore[no-any-return]

    def step(self, cell: str, i: Tensor, last: Layer) -> Layer:
        """As RecurrentStack.step."""
        return self.equation(i, self.matrices[f"weight_hh_{cell}"](last["hidden"]), last)

    def beside(self) -> Callable[[Tensor], Tensor]:
        """As RecurrentStack.beside."""
        assert self.columns_beside is not None
        return self.columns_beside
