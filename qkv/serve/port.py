"""The port of a server."""

from __future__ import annotations

import socket

from qkv.errors import QkvError


def bound(host: str, port: int) -> socket.socket:
    """A socket to listen at, of which there is one; a port that is taken is said in words."""
    try:
        return at(host, port)
    except (OSError, OverflowError) as error:
        raise QkvError(f"cannot listen at {host}:{port} ({error}): choose another --host or --port") from None


def shared(host: str, port: int) -> socket.socket:
    """One of several at the same port: the kernel hands connections out to those that listen. That nobody else does is found out
    before: a socket of its own does not get a port that others share."""
    with bound(host, port) as own:
        port = own.getsockname()[1]
    return at(host, port, socket.SO_REUSEPORT)


def at(host: str, port: int, option: int = socket.SO_REUSEADDR) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, since asyncio sends small answers at once (TCP_NODELAY) only then; else each waits 40 ms for the client
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, option, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def address(host: str, listening: socket.socket) -> str:
    return f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
