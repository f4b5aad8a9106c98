"""`qkv serve`: models behind a page and standard APIs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, search_of

FOLDERS = typer.Argument(
    metavar="[NAME=]FOLDER…",
    help="Models to serve: qkv runs or model folders, Hugging Face folders, .gguf files. Default: the example model that ships with qkv.",
    show_default=False,
)
KEYS = typer.Option("--api-key", help="Who asks must have one of these keys. Also: the variable QKV_API_KEYS.")
LANGUAGES = typer.Option(
    "--languages", help="NAME=en-de: the languages of a translator whose folder does not say them."
)
LIMIT = typer.Option(
    "--limit", help="NAME=VALUE: change a limit of requests, such as tokens=256 (docs/serve.md has all)."
)
WORKERS = typer.Option(
    min=0,
    max=256,
    help="Processes, each with the models and its share of the cores; 0 = one per core if models are small.",
)
NEEDED = ("fastapi", "starlette", "uvicorn", "prometheus_client")


def run(
    folders: Annotated[list[str] | None, FOLDERS] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 = everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any that is free.")] = 8000,
    api_key: Annotated[list[str] | None, KEYS] = None,
    api_keys: Annotated[Path | None, typer.Option("--api-keys", help="A file with a key in each line.")] = None,
    workers: Annotated[int, WORKERS] = 0,
    languages: Annotated[list[str] | None, LANGUAGES] = None,
    limit: Annotated[list[str] | None, LIMIT] = None,
    watch: Annotated[Path | None, typer.Option("--run", help="A run in training: its curves are shown live.")] = None,
    cors: Annotated[
        list[str] | None, typer.Option("--cors", help="Web pages from there may ask: an origin, or *.")
    ] = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Serve models: a page to play with them, LibreTranslate's API, OpenAI's, and our own.

    Requests are batched as they come. Every knob of a request has a limit; who
    comes when too many wait is told to come again later (503).

    [dim]qkv serve[/]
    [dim]qkv serve runs/demo[/]
    [dim]qkv serve runs/demo back=runs/de-en chat=SmolLM2 --port 8080 --api-key SECRET[/]
    [dim]qkv serve --run runs/demo[/]
    """
    from qkv.errors import QkvError
    from qkv.pretrained import ABOUT_EXAMPLE, EXAMPLE

    notes = [] if folders or watch else [ABOUT_EXAMPLE]
    folders = folders or ([] if watch else [EXAMPLE])
    try:
        import prometheus_client  # noqa: F401  # of the workers: what is missing is said here, once
        import uvicorn  # noqa: F401

        from qkv.serve.keys import keys_of
        from qkv.serve.limits import limits_of
        from qkv.serve.port import address, bound
        from qkv.serve.workers import Settings, Workers, usual
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        raise QkvError(f"serving needs {error.name}: pip install 'qkv[serve]'") from None
    limits, keys = limits_of(limit or []), keys_of(api_key or [], api_keys)
    own = Settings(folders, languages or [], limits, keys, watch, cors or (), device.value, scored)
    count = workers or usual(own.folders, device.value)
    # of several workers each listens for itself: this one only keeps the port
    listening = bound(host, port, sharing=count > 1)

    def began(lines: list[str]) -> None:
        if host not in ("127.0.0.1", "localhost", "::1") and not keys.digests:
            lines = [*lines, "everybody who reaches this machine may ask: --api-key asks for a key"]
        at = address(host, listening)
        greeting = f"the page is at {at}/ , what can be asked at {at}/docs ; Ctrl-C ends it"
        print(*notes, *lines, greeting, sep="\n", file=sys.stderr, flush=True)

    if count > 1:
        return Workers(own, count, host, listening.getsockname()[1]).run(began)
    from qkv.serve.server import described, server_of, service_of

    service = service_of(own)
    return server_of(service, lambda: began(described(service))).run(sockets=[listening])


def scored(run: Path) -> dict[str, Any]:
    """A run's model searches as it did when it was scored."""
    return search_of(run, None, None)
