"""The connection to a worker, against a server that only remembers who asked."""

from __future__ import annotations

import collections
import contextlib
import time
from concurrent import futures
from typing import Any, Counter, Iterator

import grpc
import pytest

from fl.channels import ASK_EVERY_SECONDS, QUESTION, Connection

START_SECONDS = 10.0


class Listener(grpc.GenericRpcHandler):
    """Answers every question, and counts them by the connection they came by."""

    def __init__(self) -> None:
        self.asked: Counter[str] = collections.Counter()

    def service(self, details: Any) -> Any:
        assert details.method == QUESTION

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.asked[context.peer()] += 1
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def address(listener: Listener) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[listener])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def asked_while_watching(
    listener: Listener, address: str, reconnects: bool
) -> Counter[str]:
    with contextlib.closing(Connection(address, reconnects=reconnects)) as connection:
        assert connection.wait_until_up(START_SECONDS, lambda: True)
        assert len(listener.asked) == 2
        listener.asked.clear()
        connection.watch(lambda: True, lambda: pytest.fail("it answers"))
        time.sleep(3.5 * ASK_EVERY_SECONDS)
    return listener.asked


def test_no_connection_across_a_network_falls_silent(
    listener: Listener, address: str
) -> None:
    """A call may compute for long; routers forget who says nothing for minutes."""
    asked = asked_while_watching(listener, address, reconnects=True)
    assert len(asked) == 2
    assert min(asked.values()) >= 2


def test_a_worker_of_this_machine_is_asked_on_one_connection(
    listener: Listener, address: str
) -> None:
    [count] = asked_while_watching(listener, address, reconnects=False).values()
    assert count >= 2
