"""Data: sources become examples, examples become batches. Nothing here depends on a network."""
