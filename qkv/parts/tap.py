"""Taps: named identity modules whose forward hooks read or edit activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from qkv.errors import QkvError

Hook = Callable[[tuple[Any, ...], Any], Any]
"""(inputs, output) of a module -> a new output; None = unchanged."""
Change = Callable[[Tensor], Tensor | None]
"""Activation -> new activation; None = unchanged."""


class Tap(nn.Identity):
    """An identity with a name in the module tree, such as `stack.blocks.3.attention.layer.tap_weights`.

    Attention forms the weights, which the fused kernel does not, where `tap_weights` has a hook.
    """


def has_hooks(network: nn.Module) -> bool:
    """Whether any module has a forward hook, which a packed copy would not run."""
    return any(module._forward_hooks for module in network.modules())


@contextmanager
def attach_hooks(network: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Attach a hook to each named module, of whatever kind, within the block.

    A layer that is called several times in one pass (ALBERT) has several names: its k-th call has the k-th of them. Of a layer
    that encoder and decoder share, only the names within the running one count.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    if missing := [name for name in hooks if name not in modules]:
        raise QkvError(f"this network has no module {missing[0]!r} (a packed network has no taps: use the plain one)")
    names: dict[nn.Module, list[str]] = {}
    for name, module in modules.items():
        names.setdefault(module, []).append(name)
    calls: dict[nn.Module, int] = {}
    running = ""  # the child of the network that is being computed: embed, stack, encoder ...

    def begin(child: str) -> None:
        nonlocal running
        running = child
        calls.clear()

    def run_hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        number = calls[module] = calls.get(module, -1) + 1
        own = [name for name in names[module] if name.partition(".")[0] == running] or names[module]
        hook = hooks.get(own[number % len(own)])
        return None if hook is None else hook(inputs, output)

    children = network.named_children()
    handles = [child.register_forward_pre_hook(lambda *_, name=name: begin(name)) for name, child in children]
    handles += [module.register_forward_hook(run_hook) for module in dict.fromkeys(modules[name] for name in hooks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def edit(network: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Change the output of each named module within the block; of a module that returns (x, state) the x."""

    def hook_of(change: Change) -> Hook:
        def hook(inputs: tuple[Any, ...], output: Any) -> Any:
            new = change(output[0] if isinstance(output, tuple) else output)
            return new if new is None or not isinstance(output, tuple) else (new, *output[1:])

        return hook

    with attach_hooks(network, {name: hook_of(change) for name, change in changes.items()}):
        yield


@contextmanager
def record(network: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the output of each named module within the block; of a module that returns (x, state) the x."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Change:
        return lambda x: kept.update({name: x})

    with edit(network, {name: keep(name) for name in names}):
        yield kept
