"""The port of a server."""

from __future__ import annotations

import socket

from qkv.errors import QkvError


def bound(host: str, port: int, sharing: bool = False) -> socket.socket:
    """A socket to listen at; a port that is taken is said in words.

    `sharing`: one of several, each of which binds the same port; the kernel hands connections out to those that listen. That
    nobody else does is found out before: a socket that does not share gets no port at which others listen.
    """
    try:
        if not sharing:
            return at(host, port)
        with at(host, port) as alone:
            port = alone.getsockname()[1]
        return at(host, port, sharing)
    except (OSError, OverflowError) as error:
        raise QkvError(f"cannot listen at {host}:{port} ({error}): choose another --host or --port") from None


def at(host: str, port: int, sharing: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, since asyncio sends small answers at once (TCP_NODELAY) only then; else each waits 40 ms for the client
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have just ended hold no port
        if sharing:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def address(host: str, listening: socket.socket) -> str:
    return f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
