"""Chat templates: the Jinja program in a model's folder that turns messages into one prompt. It is untrusted code, so
it runs in a process of its own, with limits (renderer.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.errors import QkvError
from qkv.text.renderer import RENDERER

MAX_TEMPLATE = 1_000_000
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")
"""Special tokens of TEMPLATE, beside the begin and end tokens of the vocabulary."""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('roles are system, user, assistant') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'].strip() + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The template of chat models trained from scratch: <s><|user|>Hello</s><|assistant|>Hi.</s> (as Zephyr's, without line ends)."""

Messages = Sequence[dict[str, Any]]


def render(template: str, messages: Messages, names: dict[str, str]) -> str:
    """The prompt for `messages` ({"role": ..., "content": ...}), ending where the assistant begins to write."""
    found = render_all(template, [(messages, True)], names)[0]
    if isinstance(found, QkvError):
        raise found
    return found


def render_all(
    template: str, conversations: Sequence[tuple[Messages, bool]], names: dict[str, str]
) -> list[str | QkvError]:
    """The text of each conversation, or the error of the template; True = up to where the assistant begins to write."""
    for messages, _ in conversations:
        check(messages)
    if len(template) > MAX_TEMPLATE:
        raise QkvError(
            f"the chat template has {len(template):,} characters, more than {MAX_TEMPLATE:,}: not a template"
        )
    jobs = [{**names, "messages": list(messages), "add_generation_prompt": opens} for messages, opens in conversations]
    return RENDERER.render(template, jobs)


def check(messages: Any) -> None:
    """Messages are a list of {"role": text, "content": text}."""
    good = lambda m: isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))  # noqa: E731
    if not isinstance(messages, (list, tuple)) or not messages or not all(map(good, messages)):
        raise QkvError('chat takes messages like [{"role": "user", "content": "Hello"}]')
