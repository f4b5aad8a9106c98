"""rebuild(network, replace): a copy of a network in which some modules are replaced; all other weights are shared with it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn

Replace = Callable[[nn.Module, "Rebuild"], nn.Module | None]
"""Return the module that takes the place of this one, None to copy it; it calls the Rebuild for children that it keeps."""


class Rebuild:
    """One rebuilding of a network.

    `memo` maps the id of a module or weight to its copy, as in copy.deepcopy: what is shared (ALBERT's layers, tied embeddings)
    stays shared.
    """

    def __init__(self, replace: Replace):
        self.replace = replace
        self.memo: dict[int, Any] = {}

    def __call__(self, module: Any) -> Any:
        """Return the replacement or copy of a module and all its children."""
        if id(module) not in self.memo:
            replacement = self.replace(module, self)
            self.memo[id(module)] = self.copy(module) if replacement is None else replacement
        return self.memo[id(module)]

    def copy(self, module: nn.Module) -> nn.Module:
        """Copy a module with rebuilt children and without hooks; its own weights are shared with the original, and frozen."""
        new = copy.copy(module)
        new._forward_hooks, new._forward_pre_hooks = OrderedDict(), OrderedDict()
        new._parameters = {n: None if p is None else self.freeze(p) for n, p in module._parameters.items()}
        new._buffers = dict(module._buffers)
        new._modules = {n: None if m is None else self(m) for n, m in module._modules.items()}
        return new

    def freeze(self, weight: nn.Parameter) -> nn.Parameter:
        """Return a parameter over the same memory that needs no gradient."""
        frozen: nn.Parameter = self.memo.setdefault(id(weight), nn.Parameter(weight.detach(), requires_grad=False))
        return frozen
