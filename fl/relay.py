"""Carries bytes between those who connect here and a port on the loopback device."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

LOOPBACK = "127.0.0.1"
BUFFER_BYTES = 2**20
PAUSE_SECONDS = 0.1
# A machine that says nothing for two minutes is asked, and four minutes later given up;
# so is one that has not answered for those six (in milliseconds).
PATIENCE = {
    socket.TCP_KEEPIDLE: 120,
    socket.TCP_KEEPINTVL: 60,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 360_000,
}


def serve(listener: socket.socket, port: int) -> None:
    """Joins everyone who connects with the port, until the listener is closed.

    Args:
        listener: a listening socket; it may belong to another network namespace.
        port: where to, in the network namespace of this process.
    """
    while listener.fileno() >= 0:
        try:
            near, _ = listener.accept()
        except OSError:  # They left again, or too many files are open.
            time.sleep(PAUSE_SECONDS)
            continue
        try:
            threading.Thread(target=_join, args=(near, port), daemon=True).start()
        except RuntimeError:  # Too many threads; those who are here go on.
            near.close()


def answers(port: int) -> bool:
    """Whether something listens at the port of the loopback device."""
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def _join(near: socket.socket, port: int) -> None:
    with near:
        try:
            far = socket.create_connection((LOOPBACK, port))
        except OSError:
            return
        with far:
            for end in (near, far):
                _set_options(end)
            back = threading.Thread(target=_copy, args=(far, near), daemon=True)
            back.start()
            _copy(near, far)
            back.join()


def _set_options(end: socket.socket) -> None:
    """Small messages must not wait for more to come, nor we for a machine gone dark."""
    if end.family != socket.AF_UNIX:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in PATIENCE.items():
            end.setsockopt(socket.IPPROTO_TCP, option, value)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the source ends, then tells the target so."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    try:
        while True:
            count = source.recv_into(buffer)
            if not count:
                break
            target.sendall(buffer[:count])
    except OSError:
        _shut(source, socket.SHUT_RD)
    _shut(target, socket.SHUT_WR)


def _shut(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
