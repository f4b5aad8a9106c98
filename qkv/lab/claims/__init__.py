"""Claims of the lectures as experiments, one file each."""

from __future__ import annotations

from importlib import import_module

from qkv.errors import QkvError
from qkv.lab.experiment import Claim

MODULES = {
    "C1": "c01_scaling",
    "C2": "c02_bottleneck",
    "C3": "c03_gradients",
    "C4": "c04_serial_steps",
    "C5": "c05_layer_cost",
    "C6": "c06_feedforward",
    "C7": "c07_order",
    "C8": "c08_length",
    "C9": "c09_sinusoids",
    "C10": "c10_rotary",
    "C11": "c11_mask",
    "C12": "c12_heads",
    "C13": "c13_residual",
    "C14": "c14_norm",
    "C15": "c15_feedforward_share",
    "C16": "c16_transformer_cost",
    "C17": "c17_summaries",
    "C18": "c18_pretraining",
    "C19": "c19_senses",
    "C20": "c20_heads",
    "C21": "c21_word_vectors",
    "C22": "c22_alignment",
    "C23": "c23_long_inputs",
    "C24": "c24_scaling",
    "C25": "c25_vision",
    "C26": "c26_residual_stream",
}
"""Module of each claim; it is imported when the claim is used."""


def get_claim(name: str) -> Claim:
    """Return the claim of this id, in upper or lower case."""
    if name.upper() not in MODULES:
        raise QkvError(f"unknown claim {name!r}: choose one of {', '.join(MODULES)}")
    claim: Claim = import_module(f"qkv.lab.claims.{MODULES[name.upper()]}").CLAIM
    return claim
