"""Bridges to and from other formats: strict tables, checked files."""
