"""`qkv serve`: models behind a page and standard APIs."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.common import Device, DeviceOption

FOLDERS = typer.Argument(
    metavar="[NAME=]FOLDER…",
    help="Models to serve: qkv runs or model folders, Hugging Face folders, .gguf files. Default: the example model that ships with qkv.",
    show_default=False,
)
KEYS = typer.Option(
    "--api-key",
    help="A key that clients must send. Other users of the machine can see it (ps): prefer --api-keys or the variable QKV_API_KEYS.",
)
LANGUAGES = typer.Option(
    "--languages", help="NAME=en-de: the languages of a translator whose folder does not name them."
)
LIMIT = typer.Option("--limit", help="NAME=VALUE: change a limit of requests, such as tokens=256 (all: docs/serve.md).")
WORKERS = typer.Option(
    min=0,
    max=256,
    help="Processes, each with the models and its share of the cores; 0 = one per core if models are small.",
)
ALLOWED = typer.Option(
    "--allowed-host",
    help="A host name by which the server is reached, beside localhost, --host and IP addresses; * = any.",
)
PUBLIC = "everybody who reaches this machine may use it: --api-keys FILE or the variable QKV_API_KEYS asks for a key"
EVERYWHERE = ("0.0.0.0", "::", "")
NEEDED = ("fastapi", "starlette", "uvicorn", "prometheus_client")


def run(
    folders: Annotated[list[str] | None, FOLDERS] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free port.")] = 8000,
    api_key: Annotated[list[str] | None, KEYS] = None,
    api_keys: Annotated[
        Path | None, typer.Option("--api-keys", help="A file with one key per line; clients must send one of them.")
    ] = None,
    workers: Annotated[int, WORKERS] = 0,
    languages: Annotated[list[str] | None, LANGUAGES] = None,
    limit: Annotated[list[str] | None, LIMIT] = None,
    watch: Annotated[Path | None, typer.Option("--run", help="Folder of a training run: show its curves live.")] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", help="Allowed CORS origin of web pages, or * for any; may be repeated."),
    ] = None,
    allowed_host: Annotated[list[str] | None, ALLOWED] = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Serve models: a web page to explore them, and APIs (LibreTranslate's, OpenAI's, and a native one).

    Requests are batched continuously and bounded by --limit. When the queue is full, the server answers 503 with Retry-After.

    [dim]qkv serve[/]
    [dim]qkv serve runs/demo[/]
    [dim]qkv serve runs/demo back=runs/de-en --port 8080 --api-keys keys.txt[/]
    [dim]qkv serve --run runs/demo[/]
    """
    from qkv.errors import QkvError
    from qkv.pretrained import ABOUT_EXAMPLE, EXAMPLE

    notes = [] if folders or watch else [ABOUT_EXAMPLE]
    folders = folders or ([] if watch else [EXAMPLE])
    try:
        import prometheus_client  # noqa: F401  # of the workers: what is missing is said here, once
        import uvicorn  # noqa: F401

        from qkv.serve.http.auth import keys_of
        from qkv.serve.http.sockets import address, bound
        from qkv.serve.scheduling.limits import limits_of
        from qkv.serve.scheduling.workers import Settings, Workers, usual
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        raise QkvError(f"serving needs {error.name}: pip install 'qkv[serve]'") from None
    limits, keys = limits_of(limit or []), keys_of(api_key or [], api_keys)
    # who listens everywhere is also reached by the name of the machine
    names = [socket.gethostname() if host in EVERYWHERE else host, *(allowed_host or ())]
    own = Settings(folders, languages or [], limits, keys, watch, cors or (), names, device.value)
    count = workers or usual(own.folders, device.value)
    # of several workers each listens for itself: this one only keeps the port
    listening = bound(host, port, sharing=count > 1)

    def began(lines: list[str]) -> None:
        at = address(host, listening)
        public = host not in ("127.0.0.1", "localhost", "::1") and not keys.digests
        greeting = f"the page is at {at}/ , what can be asked at {at}/docs ; Ctrl-C ends it"
        print(*notes, *lines, *[PUBLIC] * public, greeting, sep="\n", file=sys.stderr, flush=True)

    if count > 1:
        return Workers(own, count, host, listening.getsockname()[1]).run(began)
    from qkv.serve.server import described, server_of, service_of

    service = service_of(own)
    return server_of(service, lambda: began(described(service))).run(sockets=[listening])
