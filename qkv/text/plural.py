"""Counts in words: 1 record, 2 records."""

from __future__ import annotations


def counted(count: int, nouns: str) -> str:
    """1,234 records, 1 record, 1 sentence pair. `nouns` is the plural, formed with an s."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"
