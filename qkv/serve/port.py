"""The port of a server."""

from __future__ import annotations

import socket

from qkv.errors import QkvError


def bound(host: str, port: int) -> socket.socket:
    """A socket to listen at; a port that is taken is said in words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, since asyncio sends small answers at once (TCP_NODELAY) only then; else each waits 40 ms for the client
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise QkvError(f"cannot listen at {host}:{port} ({error}): choose another --host or --port") from None
    return listening


def address(host: str, listening: socket.socket) -> str:
    return f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
