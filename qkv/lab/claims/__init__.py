"""Claims of the lectures as experiments, one file each."""

from __future__ import annotations

from importlib import import_module

from qkv.errors import QkvError
from qkv.lab.experiment import Claim

MODULES = {
    "C1": "c01_scaling",
    "C9": "c09_sinusoids",
    "C10": "c10_rotary",
    "C15": "c15_feedforward_share",
    "C26": "c26_residual_stream",
}
"""Where each claim is; a module is imported when its claim is used."""


def get_claim(name: str) -> Claim:
    """Return the claim of this id, in upper or lower case."""
    if name.upper() not in MODULES:
        raise QkvError(f"no claim {name!r}: there are {', '.join(MODULES)}")
    claim: Claim = import_module(f"qkv.lab.claims.{MODULES[name.upper()]}").CLAIM
    return claim
