"""Taps: named identity points. Idle they do nothing; a forward hook on one reads or edits what flows through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from qkv.errors import QkvError

Hook = Callable[[tuple[Any, ...], Any], Any]
"""(inputs, output) of a module -> what goes on in place of the output; None = the output itself."""
Change = Callable[[Tensor], Tensor | None]
"""What flows through a tap -> what flows on; None = the same."""


class Tap(nn.Identity):
    """An identity with a name in the module tree, such as `stack.blocks.3.attention.layer.tap_weights`."""

    @property
    def in_use(self) -> bool:
        """Whether somebody reads or edits here; attention then forms the weights that the fast kernel would not."""
        return bool(self._forward_hooks)


def looked_into(network: nn.Module) -> bool:
    """Whether anything in it is being read or edited; a fast copy would not show it, or not obey."""
    return any(module._forward_hooks for module in network.modules())


@contextmanager
def hooked(network: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Within the block each named module, of whatever kind, has its hook.

    A layer that serves several times in one pass (ALBERT) has several names: its k-th call is at the k-th of them.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    if missing := [name for name in hooks if name not in modules]:
        raise QkvError(f"this network has no {missing[0]!r} (a packed one has no taps: look into the plain one)")
    names: dict[nn.Module, list[str]] = {}
    for name, module in modules.items():
        names.setdefault(module, []).append(name)
    calls: dict[nn.Module, int] = {}

    def called(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        number = calls[module] = calls.get(module, -1) + 1
        own = names[module]
        hook = hooks.get(own[number % len(own)])
        return None if hook is None else hook(inputs, output)

    handles = [network.register_forward_pre_hook(lambda *_: calls.clear())]  # a pass begins
    handles += [module.register_forward_hook(called) for module in dict.fromkeys(modules[name] for name in hooks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def edit(network: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Within the block, what leaves each named module is changed; of a module that returns (x, state) the x."""

    def changed(change: Change) -> Hook:
        def hook(inputs: tuple[Any, ...], output: Any) -> Any:
            new = change(output[0] if isinstance(output, tuple) else output)
            return new if new is None or not isinstance(output, tuple) else (new, *output[1:])

        return hook

    with hooked(network, {name: changed(change) for name, change in changes.items()}):
        yield


@contextmanager
def record(network: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the block, collect the output of each named module; a module that returns (x, state) gives its x."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Change:
        return lambda x: kept.update({name: x})

    with edit(network, {name: keep(name) for name in names}):
        yield kept
