"""Interpretability: attention maps, logit lens, ablation, patching, attribution, probes, and their pictures."""
