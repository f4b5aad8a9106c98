"""The lectures: worked examples, claims as experiments, ablations, scaling laws."""
