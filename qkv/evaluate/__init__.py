"""Evaluation metrics, the same in validation and in the final test. `qkv.evaluate(...)` is a function too."""

import qkv

qkv.callable_package(__name__)
