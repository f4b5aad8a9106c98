"""Writing: greedy and sampling, once for every network that has `start` and `step`."""
