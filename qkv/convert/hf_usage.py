"""Usage of a model in a Hugging Face folder, import and export: languages, task and decoding defaults.

Languages are in tokenizer_config.json (Marian: source_lang, target_lang). A task is in config.json where task_specific_params
names exactly one: summarization, or translation_en_to_de. All other folders name none. Labels are part of the network's
configuration, the chat template part of the tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qkv.config import validate
from qkv.config.usage import Usage
from qkv.convert.files import read_json
from qkv.convert.generation_file import read_defaults

TRANSLATION = re.compile(r"translation_([\w-]+?)_to_([\w-]+)")
LANGUAGES = {"source": "source_lang", "target": "target_lang"}


def read_usage(folder: Path) -> Usage:
    """Read task, languages and decoding defaults of a Hugging Face folder."""
    fields: dict[str, Any] = task_fields(read_json(folder / "config.json").get("task_specific_params"))
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    named = {ours: settings.get(theirs) for ours, theirs in LANGUAGES.items()}
    if all(isinstance(name, str) and name for name in named.values()):
        fields = {"task": "translation", **named}
    return validate(Usage, {**fields, "decoding": read_defaults(folder)}, "usage")  # type: ignore[no-any-return]


def task_fields(params: Any) -> dict[str, Any]:
    """Read the task from task_specific_params, where that names exactly one."""
    name = next(iter(params)) if isinstance(params, dict) and len(params) == 1 else ""
    if name == "summarization":
        return {"task": "summary"}
    found = TRANSLATION.fullmatch(name)
    return {"task": "translation", "source": found[1], "target": found[2]} if found else {}


def task_json(usage: Usage) -> dict[str, Any]:
    """Write the task as keys of config.json."""
    if usage.task == "summary":
        return {"task_specific_params": {"summarization": {}}}
    if usage.languages is not None:
        return {"task_specific_params": {"translation_{}_to_{}".format(*usage.languages): {}}}
    return {}


def languages_json(usage: Usage) -> dict[str, str]:
    """Write the languages of a translator as keys of tokenizer_config.json."""
    return {} if usage.languages is None else dict(zip(LANGUAGES.values(), usage.languages, strict=True))
