"""Assembly only: each family is a few lines that put parts together."""
