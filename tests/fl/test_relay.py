"""Bytes carried between a listener and a port, both ways, whole and in order."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Iterator, Tuple

import numpy as np
import pytest

from fl import relay

WAIT_SECONDS = 20.0
MEGABYTES = 20


@pytest.fixture
def target() -> Iterator[socket.socket]:
    """Whom the relay joins others with."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_SECONDS)
        yield listener


@pytest.fixture
def ends(target: socket.socket) -> Iterator[Tuple[socket.socket, socket.socket]]:
    """Two sockets joined by a relay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = target.getsockname()[1]
        threading.Thread(target=relay.serve, args=(listener, port), daemon=True).start()
        near = socket.create_connection(listener.getsockname(), timeout=WAIT_SECONDS)
        far, _ = target.accept()
        far.settimeout(WAIT_SECONDS)
        with near, far:
            yield near, far


def read_all(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(2**16), b""))


def test_both_directions_at_once(ends: Tuple[socket.socket, socket.socket]) -> None:
    rng = np.random.RandomState(0)
    sent = [rng.bytes(MEGABYTES * 2**20) for _ in ends]
    got = [b"", b""]

    def send(end: socket.socket, data: bytes) -> None:
        end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    def receive(number: int) -> None:
        got[number] = read_all(ends[number])

    threads = [
        *(threading.Thread(target=send, args=pair) for pair in zip(ends, sent)),
        *(threading.Thread(target=receive, args=(n,)) for n in (0, 1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert got == sent[::-1]


def test_one_direction_may_end_before_the_other(
    ends: Tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    near.sendall(b"question")
    near.shutdown(socket.SHUT_WR)
    assert read_all(far) == b"question"
    far.sendall(b"answer")
    far.close()
    assert read_all(near) == b"answer"


def test_an_end_that_breaks_ends_the_other(
    ends: Tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    with contextlib.suppress(ConnectionError):
        assert read_all(near) == b""


def test_nobody_behind_the_relay_means_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert not relay.answers(port)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(
                target=relay.serve, args=(listener, port), daemon=True
            ).start()
            address = listener.getsockname()
            with socket.create_connection(address, timeout=WAIT_SECONDS) as near:
                assert near.recv(1) == b""


def test_a_thread_that_cannot_start_costs_one_connection(
    ends: Tuple[socket.socket, socket.socket],
    target: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    near, far = ends
    near.sendall(b"joined")  # By threads that have started.
    assert far.recv(6) == b"joined"
    address = near.getpeername()
    monkeypatch.setattr(threading.Thread, "start", fail)
    with socket.create_connection(address, timeout=WAIT_SECONDS) as refused:
        assert refused.recv(1) == b""
    near.sendall(b"still here")
    assert far.recv(10) == b"still here"
    with socket.create_connection(address, timeout=WAIT_SECONDS) as another:
        another.sendall(b"next")
        with target.accept()[0] as reached:
            reached.settimeout(WAIT_SECONDS)
            assert reached.recv(4) == b"next"


def test_machines_gone_dark_are_noticed_within_minutes(
    ends: Tuple[socket.socket, socket.socket],
) -> None:
    near, _ = ends
    relay._set_options(near)
    options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
    idle, pause, count = (near.getsockopt(socket.IPPROTO_TCP, o) for o in options)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + count * pause == 6 * 60
    unanswered = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert unanswered == 6 * 60 * 1000
