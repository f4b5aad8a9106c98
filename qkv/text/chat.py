"""Chat templates: the Jinja program in a model's folder that turns messages into one prompt. It comes from outside, so
it runs in Jinja's sandbox, which reaches neither files nor Python objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from qkv.errors import QkvError

MAX_TEMPLATE = 1_000_000


def render(template: str, messages: Sequence[dict[str, str]], names: dict[str, str]) -> str:
    """The prompt for `messages` ({"role": ..., "content": ...}), ending where the assistant begins to write."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    check(messages)
    if len(template) > MAX_TEMPLATE:
        raise QkvError(
            f"the chat template has {len(template):,} characters, more than {MAX_TEMPLATE:,}: not a template"
        )
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(messages=list(messages), add_generation_prompt=True, **names)
    except QkvError:
        raise
    except (
        TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise QkvError(f"the chat template fails on these messages: {' '.join(str(error).split())[:200]}") from None


def check(messages: Any) -> None:
    """Messages are a list of {"role": text, "content": text}."""
    good = lambda m: isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))  # noqa: E731
    if not isinstance(messages, (list, tuple)) or not messages or not all(map(good, messages)):
        raise QkvError('chat takes messages like [{"role": "user", "content": "Hello"}]')


def _refuse(message: str) -> NoReturn:
    raise QkvError(f"the chat template refuses these messages: {message}")
