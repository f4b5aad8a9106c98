"""`qkv serve`: models behind a web page and HTTP APIs."""

from __future__ import annotations

import socket
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, PrecisionOption
from qkv.errors import QkvError
from qkv.pretrained import ABOUT_EXAMPLE, EXAMPLE

if TYPE_CHECKING:
    from qkv.serve.settings import Settings

FOLDERS = typer.Argument(
    metavar="[NAME=]FOLDER…",
    help="Models to serve: qkv runs or model folders, Hugging Face folders, .gguf files. Default: the example model that ships with qkv.",
)
KEYS = typer.Option(
    help="A key that clients must send. Other users of the machine can see it (ps): prefer --api-keys or the variable QKV_API_KEYS."
)
KEY_FILE = typer.Option(help="A file with one key per line; clients must send one of them.")
LANGUAGES = typer.Option(help="NAME=en-de: the languages of a translator whose folder does not name them.")
LIMIT = typer.Option(help="NAME=VALUE: change a limit on requests, such as tokens=256 (see docs/serve.md for all).")
WORKERS = typer.Option(
    min=0, max=256, help="Worker processes, each with a copy of the models; 0 = one per free core for small models, else one."
)  # fmt: skip
CORS = typer.Option(help="Allowed CORS origin of web pages, or * for any; may be repeated.")
ALLOWED = typer.Option(
    help="A host name by which clients may address the server, besides localhost, --host and IP addresses; * = any."
)
PUBLIC = "anyone who can reach this machine can use the server: require a key with --api-keys FILE or QKV_API_KEYS"
EVERYWHERE = ("0.0.0.0", "::", "")
LOCAL = ("127.0.0.1", "localhost", "::1")
NEEDED = ("fastapi", "starlette", "uvicorn", "prometheus_client", "python_multipart")


def run(
    folders: Annotated[list[str] | None, FOLDERS] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free port.")] = 8000,
    api_key: Annotated[list[str] | None, KEYS] = None,
    api_keys: Annotated[Path | None, KEY_FILE] = None,
    workers: Annotated[int, WORKERS] = 0,
    languages: Annotated[list[str] | None, LANGUAGES] = None,
    limit: Annotated[list[str] | None, LIMIT] = None,
    watch: Annotated[Path | None, typer.Option("--run", help="Folder of a training run: show its curves live.")] = None,
    cors: Annotated[list[str] | None, CORS] = None,
    allowed_host: Annotated[list[str] | None, ALLOWED] = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Serve models: a web page to explore them, and HTTP APIs (LibreTranslate's, OpenAI's, and a native one).

    Requests are batched continuously and limited by --limit. If the queue is full, the server returns 503 with Retry-After.

    [dim]qkv serve[/]
    [dim]qkv serve runs/demo[/]
    [dim]qkv serve runs/demo back=runs/de-en --port 8080 --api-keys keys.txt[/]
    [dim]qkv serve --run runs/demo[/]
    """
    require_packages()
    from qkv.serve.http.auth import load_api_keys
    from qkv.serve.http.limits import parse_limits
    from qkv.serve.settings import Settings

    # a server that listens on all interfaces is also addressed by the name of the machine
    names = [socket.gethostname() if host in EVERYWHERE else host, *(allowed_host or ())]
    models = folders or ([] if watch else [EXAMPLE])
    settings = Settings(
        models, languages or [], parse_limits(limit or []), load_api_keys(api_key or [], api_keys), watch, cors or (),
        names, device.value, precision,
    )  # fmt: skip
    notes = [] if folders or watch else [ABOUT_EXAMPLE]
    notes += [PUBLIC] if host not in LOCAL and not settings.keys.digests else []
    start(settings, host, port, workers, notes)


def require_packages() -> None:
    """Raise a one-line error if a package of the extra `serve` is missing."""
    for name in NEEDED:
        try:
            import_module(name)
        except ModuleNotFoundError:
            raise QkvError(f"serving needs {name}: pip install 'qkv[serve]'") from None


def start(settings: Settings, host: str, port: int, workers: int, notes: list[str]) -> None:
    """Serve in this process, or supervise several worker processes."""
    from qkv.serve.http.sockets import listen, url
    from qkv.serve.scheduling.workers import SharedCounts, Supervisor
    from qkv.serve.server import create_server, create_service, describe_models, serve_worker
    from qkv.serve.settings import default_workers

    count = workers or default_workers(settings.folders, settings.device)
    # each of several workers has a socket of its own: the one of this process only reserves the port
    listening = listen(host, port, shared=count > 1)

    def announce(lines: list[str]) -> None:
        at = url(host, listening)
        last = f"web page: {at}/ | API reference: {at}/docs | Ctrl-C to stop"
        print(*notes, *lines, last, sep="\n", file=sys.stderr, flush=True)

    if count == 1:
        service = create_service(settings)
        return create_server(service, lambda: announce(describe_models(service))).run(sockets=[listening])
    counts = SharedCounts(count, len(settings.folders))
    target = partial(serve_worker, settings, host, listening.getsockname()[1], count, counts)
    return Supervisor(target, count, counts).run(announce)
