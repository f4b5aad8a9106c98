"""qkv: the whole Transformer in one package.

    qkv.load(path)            open a trained model: model.translate(texts), model.classify(texts), model.generate(prompt) ...
    qkv.load_vectors(path)    open word vectors: vectors.nearest(word), vectors.analogy(a, b, c)
    qkv.train(recipe)         train one: qkv.train("demo", train__steps=100).model
    qkv.evaluate(path, data)  score one on a test set: print(qkv.evaluate("runs/topics", "new.tsv"))
    qkv.quantize(path, out)   store one with int8 weights, its quality measured
    qkv.ablate(recipe, vary)  train variants and compare them: qkv.ablate("demo", {"model.position": ["rotary", "learned"]})

The command `qkv --help` does the same from a shell; README.md is the tour.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.api import Model, load
    from qkv.lab.ablation import ablate
    from qkv.quantization import quantize
    from qkv.vectors.space import load_vectors
    from qkv.workflow import TrainedRun, evaluate, train

# Read when torch is imported: threads that wait for others spin for microseconds, not milliseconds, and then leave the core to
# whoever needs it. As fast on a quiet machine, and up to fifty times as fast beside other busy processes (docs/results.md).
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"
__all__ = ["Model", "TrainedRun", "ablate", "evaluate", "load", "load_vectors", "quantize", "train", "__version__"]
LAZY = {"load": "qkv.api", "Model": "qkv.api", "load_vectors": "qkv.vectors.space", "TrainedRun": "qkv.workflow",
        "ablate": "qkv.lab.ablation", "quantize": "qkv.quantization"}  # fmt: skip
"""Names that are imported at their first use: `qkv --help` must answer at once, and torch takes seconds."""


class CallablePackage(ModuleType):
    # A subpackage that is also the function of its name: `qkv.train(...)` trains, `qkv.train.loop` is a module. Python binds
    # a subpackage in its parent as soon as one of its modules is imported, so no function can have that name beside it.
    # Signature and docstring are those of the function in qkv/workflow.py.

    def function(self) -> Any:
        return getattr(importlib.import_module("qkv.workflow"), self.__name__.rpartition(".")[2])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function()(*arguments, **named)

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self.function())

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.function().__doc__


def callable_package(name: str) -> None:
    """Make a subpackage callable; for its own __init__.py."""
    sys.modules[name].__class__ = CallablePackage


def __getattr__(name: str) -> object:
    """Import at the first use."""
    if name in ("train", "evaluate"):
        return importlib.import_module(f"qkv.{name}")
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and the subpackages that are imported."""
    own = (name for name, value in globals().items() if getattr(value, "__name__", "").startswith("qkv."))
    return sorted({*__all__, *own, *(name for name in globals() if name.startswith("__"))})
