"""Chat templates: the Jinja program in a model's folder that turns messages into one prompt. It comes from outside, so
it runs in a process of its own, with limits (renderer.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.errors import QkvError
from qkv.text.renderer import RENDERER

MAX_TEMPLATE = 1_000_000


def render(template: str, messages: Sequence[dict[str, str]], names: dict[str, str]) -> str:
    """The prompt for `messages` ({"role": ..., "content": ...}), ending where the assistant begins to write."""
    check(messages)
    if len(template) > MAX_TEMPLATE:
        raise QkvError(
            f"the chat template has {len(template):,} characters, more than {MAX_TEMPLATE:,}: not a template"
        )
    return RENDERER.render(template, {**names, "messages": list(messages), "add_generation_prompt": True})


def check(messages: Any) -> None:
    """Messages are a list of {"role": text, "content": text}."""
    good = lambda m: isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))  # noqa: E731
    if not isinstance(messages, (list, tuple)) or not messages or not all(map(good, messages)):
        raise QkvError('chat takes messages like [{"role": "user", "content": "Hello"}]')
