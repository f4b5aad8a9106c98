"""Serving: models behind standard HTTP APIs and a page. What comes in is bounded, what is computed is batched."""
