"""`qkv chat`: a conversation with a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands import generate
from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.errors import QkvError
from qkv.text.wording import plural

if TYPE_CHECKING:
    from qkv.generate.conversation import Conversation

MAX_TOKENS = typer.Option(min=1, help="Longest answer in tokens; at most half of the context.")
HELP = "/reset clears the history, /system TEXT clears it and sets the system message, /exit or Ctrl-D exits, Ctrl-C stops an answer"


def run(
    folder: Folder,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_new_tokens: Annotated[int, MAX_TOKENS] = 512,
    temperature: generate.Temperature = 0.0,
    top_k: generate.TopK = None,
    top_p: generate.TopP = None,
    min_p: generate.MinP = 0.0,
    repetition_penalty: generate.RepetitionPenalty = 1.0,
    presence_penalty: generate.PresencePenalty = 0.0,
    frequency_penalty: generate.FrequencyPenalty = 0.0,
    no_repeat_ngram: generate.NoRepeat = 0,
    seed: generate.Seed = None,
    draft: generate.Draft = None,
    draft_tokens: generate.DraftTokens = 4,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Chat with a model that has a chat template; answers are streamed.

    Commands: /reset clears the history, /system TEXT clears it and sets the system
    message, /exit or Ctrl-D exits, Ctrl-C stops an answer. When the context is
    full, the oldest turns are dropped, with a note. With piped input, every line
    is a message; one that cannot be answered is reported on standard error, and
    the exit code is 1. --json prints the transcript at the end.

    [dim]qkv chat chat-model --temperature 0.2[/]
    [dim]qkv chat chat-model --draft small-chat-model[/]
    [dim]printf 'Where is Rome?\\nHow old is it?\\n' | qkv chat chat-model[/]
    """
    from qkv.api import load

    if sys.stdin is None:
        raise QkvError("there is no standard input to read messages from")
    penalties = (repetition_penalty, presence_penalty, frequency_penalty, no_repeat_ngram)
    params, processor = generate.settings(temperature, top_k, top_p, min_p, penalties)
    model, drafter = load(folder, device.value, precision), generate.load_draft(draft, device.value)
    talk = model.conversation(system, max_new_tokens, params, seed, processor, drafter, draft_tokens)
    typed = sys.stdin.isatty()
    with writing():
        problems = converse(talk, typed, quiet=as_json)
        if as_json:
            transcript = {"messages": talk.messages, "forgotten": talk.n_dropped}
            print(json.dumps(transcript, ensure_ascii=False, indent=2), flush=True)
    if model.speculation is not None:
        print(model.speculation, file=sys.stderr)
    if problems and not typed:
        raise typer.Exit(1)


def converse(talk: Conversation, typed: bool, quiet: bool) -> int:
    """Answer messages until the input ends or /exit; return how many could not be answered."""
    if typed:
        print(HELP, file=sys.stderr)
    problems = 0
    for line in lines(typed):
        if line == "/exit":
            break
        if line.startswith("/"):
            command(talk, line)
        else:
            problems += not turn(talk, line, quiet)
    return problems


def lines(typed: bool) -> Iterator[str]:
    """Yield messages, typed after a prompt or read from a pipe; empty lines are skipped."""
    while True:
        try:
            line = input("> ") if typed else sys.stdin.readline()
        except EOFError:
            return
        except KeyboardInterrupt:  # nothing is being written: only the line is given up
            print(file=sys.stderr)
            continue
        if not typed and not line:
            return
        if line.strip():
            yield line.strip()


def command(talk: Conversation, line: str) -> None:
    name, _, text = line.partition(" ")
    if name == "/reset":
        talk.reset()
        print("conversation reset", file=sys.stderr)
    elif name == "/system":
        talk.reset()
        talk.system = text.strip() or None
        print("system message set" if talk.system else "system message removed", file=sys.stderr)
    else:
        print(f"unknown command {name}: {HELP}", file=sys.stderr)


def turn(talk: Conversation, text: str, quiet: bool) -> bool:
    """Answer one message; return False, with a message on standard error, if it cannot be answered."""
    before = talk.n_dropped
    try:
        for piece in talk.ask(text):
            if talk.n_dropped > before:
                dropped = plural(talk.n_dropped, "messages")
                print(f"the context is full: dropped the first {dropped}", file=sys.stderr)
                before = talk.n_dropped
            if not quiet:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="", file=sys.stderr, flush=True)
    except QkvError as problem:
        print(f"not answered: {problem}", file=sys.stderr)
        return False
    if not quiet:
        print(flush=True)
    return True
