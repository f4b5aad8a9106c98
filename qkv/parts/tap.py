"""Taps: named identity points. Idle they do nothing; a forward hook on one reads or edits what flows through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Tap(nn.Identity):
    """An identity with a name in the module tree, such as `stack.blocks.3.attention.layer.tap_weights`."""

    @property
    def in_use(self) -> bool:
        """Whether somebody reads or edits here; attention then forms the weights that the fast kernel would not."""
        return bool(self._forward_hooks)


@contextmanager
def record(network: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Within the block, collect the output of each named module; a module that returns (x, state) gives its x."""
    modules = dict(network.named_modules(remove_duplicate=False))
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(module: nn.Module, inputs: object, output: object) -> None:
            kept[name] = output[0] if isinstance(output, tuple) else output  # type: ignore[assignment]

        return keep

    handles = [modules[name].register_forward_hook(keeper(name)) for name in names]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()
