"""Tokenizer: text to ids and back, whichever kind. The work is done by the `tokenizers` library (tokenizer.json)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import tokenizers

from qkv.errors import FileError, QkvError
from qkv.text.chat import Messages, render_all
from qkv.text.display import Display


@contextmanager
def in_words(what: str = "this text cannot be tokenized", kind: type[QkvError] = QkvError) -> Iterator[None]:
    """What the library raises, as our error. Of a text: lone surrogates, or a word model without an unknown token."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":  # a Rust panic is no Exception
            reason = " ".join(str(error).split())[:200]
            raise kind(f"{what}: {reason}") from None
        raise


def add_special(backend: tokenizers.Tokenizer, names: Iterable[str]) -> None:
    """Make special tokens of these names: they stand for themselves alone."""
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])


CHARSMAP = re.compile(r'"precompiled_charsmap"\s*:\s*"([^"]+)"')
MAX_ID = 10_000_000
"""Ids are below it, as vocabularies are: the library takes four bytes for each id up to the largest."""


def check_charsmap(table: bytes, where: str) -> None:
    """FileError where a character table announces more bytes than it has: the library allocates them before it looks, and
    ends the whole process when it cannot."""
    if int.from_bytes(table[:4], "little") > len(table) - 4:
        raise FileError(f"{where}: its character table (precompiled_charsmap) is cut off; download it again")


def check_charsmaps(text: str, where: str) -> None:
    """The same for every table in a tokenizer.json, where they are in base64."""
    for found in CHARSMAP.finditer(text):
        with in_words(f"{where} has a character table that is not in base64", FileError):
            table = base64.b64decode(found[1], validate=True)
        check_charsmap(table, where)


class Tokenizer:
    """A tokenizer.json and the settings beside it (tokenizer_config.json: names of special tokens, chat template)."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any] | None = None):
        largest = max(backend.get_vocab().values(), default=0)
        if largest >= MAX_ID:
            raise FileError(
                f"a token has the id {largest:,}, and ids are below {MAX_ID:,}: download tokenizer.json again"
            )
        backend.no_truncation()  # left over in some files from how they were last used
        backend.no_padding()
        self.backend = backend
        self.settings = settings or {}

    @classmethod
    def from_json(cls, text: str, settings: dict[str, Any] | None = None, where: str = "tokenizer.json") -> Tokenizer:
        check_charsmaps(text, where)
        with in_words(f"{where} is not a tokenizer; download it again", FileError):
            backend = tokenizers.Tokenizer.from_str(text)
            around = backend.encode("")
        if len(around.ids) != len(around.tokens):  # a template of the file names so many tokens, with other ids
            raise FileError(
                f"{where} puts {len(around.tokens)} special tokens around a text, with {len(around.ids)} ids; download it again"
            )
        return cls(backend, settings)

    def to_json(self) -> str:
        return self.backend.to_str(pretty=True)

    @property
    def size(self) -> int:
        """How many ids there are, special tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text; with `special`, the tokens the model expects around it ([CLS] ... [SEP], or <s> before it)."""
        with in_words():
            return self.backend.encode(text, add_special_tokens=special).ids

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts and nothing around them. All of it is text: "</s>" is four characters, not the end token."""
        with in_words():
            return [found.ids for found in self.literal.encode_batch_fast(list(texts), add_special_tokens=False)]

    @cached_property
    def literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer, blind to the names of special tokens."""
        copy = tokenizers.Tokenizer.from_str(self.backend.to_str())
        copy.encode_special_tokens = True
        return copy

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of some ids; special tokens are left out unless asked for."""
        return self.backend.decode(list(ids), skip_special_tokens=not special)

    @cached_property
    def display(self) -> Display:
        """Names single tokens for people: `display(id)`."""
        return Display(self.backend)

    # --- chat

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that turns messages into a prompt; the one named "default" where there are several."""
        found = self.settings.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    def chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation, up to where the assistant's answer begins."""
        found = self.chats([(messages, True)])[0]
        if isinstance(found, QkvError):
            raise found
        return found

    def chats(self, conversations: Sequence[tuple[Messages, bool]]) -> list[list[int] | QkvError]:
        """Ids of each conversation, or the error of the template; True = up to where the assistant's answer begins."""
        if self.chat_template is None:
            raise QkvError(
                "this model has no chat template: it was not trained for conversations; pass a prompt instead"
            )
        texts = render_all(self.chat_template, conversations, self.special_names())
        good = [text for text in texts if isinstance(text, str)]
        with in_words():  # the template writes special tokens itself
            rows = iter(self.backend.encode_batch_fast(good, add_special_tokens=False))
        return [next(rows).ids if isinstance(text, str) else text for text in texts]

    def special_tokens(self) -> list[str]:
        """The names of all special tokens."""
        return [token.content for token in self.backend.get_added_tokens_decoder().values() if token.special]

    def add_special(self, names: Sequence[str]) -> None:
        """Add special tokens at the end of the vocabulary; those that it has stay where they are."""
        add_special(self.backend, [name for name in names if self.id_of(name) is None])

    def special_names(self) -> dict[str, str]:
        """bos_token, eos_token ... as the settings name them."""
        found = {}
        for name, value in self.settings.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
        return found
