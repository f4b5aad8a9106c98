"""The schemas of records by the name of a task; "masked-next" and "vectors" are no tasks of their own, but have records."""

from __future__ import annotations

from qkv.data.corpora import plain_texts
from qkv.data.grammar_tasks import short_documents
from qkv.data.schema import Schema
from qkv.tasks.base import TASKS, task_class

PLAIN = {"masked-next": plain_texts("masked-next", from_grammar=short_documents), "vectors": plain_texts("vectors")}
TEXTS = [*(name for name in TASKS if not task_class(name).schema.pictures), *PLAIN]
"""All whose records are texts."""


def schema_of(name: str) -> Schema:
    return PLAIN[name] if name in PLAIN else task_class(name).schema
