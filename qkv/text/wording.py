"""Counts and durations in words: 1 record, 2 records, 20 s, 2.5 min."""

from __future__ import annotations


def plural(count: int, nouns: str) -> str:
    """1,234 records, 1 record, 1 sentence pair. `nouns` is the plural, formed with an s."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"


def format_duration(seconds: float) -> str:
    """90 s, 2.5 min, 40 min, 2.0 h, 4.2 days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.1f}".removesuffix(".0") + " min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.1f} days"
