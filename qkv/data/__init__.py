"""Data: sources become examples, examples become batches. Beside the parts: nothing here knows a network."""
