"""How good is it: scores of what a model writes, by the same scorer in validation and in the final test. `qkv.evaluate(...)` is a
function too."""

import qkv

qkv.callable_package(__name__)
