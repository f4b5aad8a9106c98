"""Training: one update, and the state that makes a resumed run equal an uninterrupted one. `qkv.train(...)` is a function too."""

import qkv

qkv.callable_package(__name__)
