"""Listening sockets."""

from __future__ import annotations

import socket

from qkv.errors import QkvError


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Bind a socket to listen on, or raise a one-line error if the port is taken.

    `shared`: several worker processes bind the same port, and the kernel distributes connections among those that listen.
    An exclusive socket is bound first: it fails if another program listens there, even one that shares its port.
    """
    try:
        if not shared:
            return bind(host, port)
        with bind(host, port) as exclusive:
            port = exclusive.getsockname()[1]
        return bind(host, port, shared)
    except (OSError, OverflowError) as error:
        raise QkvError(f"cannot listen at {host}:{port} ({error}): choose another --host or --port") from None


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, since asyncio sets TCP_NODELAY only then; without it small responses wait 40 ms for the client's ACK
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def url(host: str, listening: socket.socket) -> str:
    return f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
