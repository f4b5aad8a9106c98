"""Generation: greedy decoding, sampling and beam search, for every network that has `start` and `step`."""
