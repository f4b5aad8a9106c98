"""`qkv generate`: a model writes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder
from qkv.errors import QkvError

PROMPT = typer.Argument(metavar="[PROMPT]", help="What to go on from; without it, standard input.", show_default=False)
CHAT = typer.Option("--chat", help="The prompt is a message: put it into the model's chat template.")


def run(
    folder: Folder,
    prompt: Annotated[str | None, PROMPT] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 = the likeliest token each time.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest that hold p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    chat: Annotated[bool, CHAT] = False,
    system: Annotated[str | None, typer.Option(help="System message (implies --chat).")] = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Let a model write on from a prompt (or translate it, where it has two halves), token by token.

    [dim]qkv generate my-model "Once upon a time" --temperature 0.8 --top-k 40 --seed 1[/]
    [dim]echo "What is the capital of France?" | qkv generate chat-model --chat[/]
    """
    from qkv.api import load

    if prompt is None and sys.stdin is None:
        raise QkvError("no prompt and no standard input: give a prompt")
    text = sys.stdin.read().rstrip("\n") if prompt is None else prompt
    model = load(folder, device=device.value)
    pieces = model.generate(
        text, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        chat=chat or system is not None, system=system,
    )  # fmt: skip
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
