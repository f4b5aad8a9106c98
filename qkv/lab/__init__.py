"""The lectures in numbers: worked examples now, claims as experiments as they come."""
