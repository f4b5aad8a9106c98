"""Parts of networks: one idea per file, tensors in, tensors out. B batch, T queries, S keys, C channels, H heads, D head width."""
