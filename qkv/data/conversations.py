"""Conversations as records: one column that holds a list of messages as JSON, in the formats of chat data sets.

{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}     OpenAI, Hugging Face
{"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi."}]}        ShareGPT
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.data.header import names_of, simple
from qkv.data.schema import MESSAGES, Schema
from qkv.data.sources import TABLES, Record, ending

Message = dict[str, Any]
"""{"role": "system", "user" or "assistant", "content": text}, and {"weight": 0} for an answer that is not to be learned."""

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
}  # fmt: skip
"""Names of roles in data sets -> the three roles of a chat template."""


def parse_conversation(text: str) -> list[Message] | None:
    """Read a list of messages from JSON; None unless it is a conversation of known roles with an answer to learn from."""
    try:
        found = json.loads(text)
        messages = [parse_message(message) for message in found] if isinstance(found, list) else []
        text.encode()
    except (ValueError, RecursionError):
        return None
    good = [message for message in messages if message is not None]
    return good if answers_of(good) and len(good) == len(messages) else None


def answers_of(messages: Sequence[Message]) -> list[int]:
    """Return which messages are answers to learn from: the assistant's, with something before them."""
    return [i for i, m in enumerate(messages) if i > 0 and m["role"] == "assistant" and m.get("weight", 1)]


def parse_message(message: Any) -> Message | None:
    """Return one message with the names of OpenAI's format; None where a part is missing or no text."""
    if not isinstance(message, dict):
        return None
    role, content = (message.get(name, message.get(other)) for name, other in (("role", "from"), ("content", "value")))
    if isinstance(content, list):  # OpenAI's content parts
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]
    if not isinstance(content, str) or not content.strip() or not isinstance(role, str) or role not in ROLES:
        return None
    content.encode()  # UnicodeEncodeError, a ValueError: half a pair of surrogates is no text
    return {"role": ROLES[role], "content": content, **({"weight": 0} if message.get("weight") == 0 else {})}


def read_row(record: Record) -> Record | None:
    """Make the record of a row: the messages as JSON in one spelling, so that equal conversations are equal texts."""
    messages = parse_conversation(record[0])
    return None if messages is None else conversation_record(messages)


def conversation_record(messages: list[Message]) -> Record:
    return (json.dumps(messages, ensure_ascii=False),)


def messages_of(record: Record) -> list[Message]:
    """Return the messages of a record that `conversation_record` has made."""
    return json.loads(record[0])  # type: ignore[no-any-return]


def holds_conversations(path: str | Path) -> bool:
    """Whether a file is a table with a column of messages."""
    return ending(path) in TABLES and not {simple(name) for name in names_of(path)}.isdisjoint(MESSAGES.usual)


def conversations_schema(from_grammar: Any) -> Schema:
    return Schema(
        "conversation", (MESSAGES,), 'give one .jsonl file whose rows have "messages": [{"role": ..., "content": ...}, ...]',
        from_row=read_row, reason="no conversation with an answer of the assistant", from_grammar=from_grammar,
    )  # fmt: skip
