"""The connection to one worker: a channel to compute, and one to ask for signs of life.

A call to a worker that died or was stopped waits for ever, and gRPC's own keepalive is
refused by TFF's server. A small question on a connection of its own is answered within
milliseconds even while the worker is busy, and not at all when it is gone.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

import grpc

from fl.tls import Certificates

MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
NEVER_MS = 2**31 - 1
# A loss is noticed within ASK_EVERY + STIR + TRIES * ANSWER seconds. More than one try,
# because this process may have been asleep itself while the time ran out.
ASK_EVERY_SECONDS = 1.0
# Networks forget connections on which nothing passes for some minutes, as while a call
# computes: something small passes there too.
STIR_SECONDS = 0.5
ANSWER_SECONDS = 3.5
TRIES = 2
POLL_SECONDS = 0.05
FIRST_ANSWER_SECONDS = 1.0
# TFF's call to forget values, with none to forget.
QUESTION = "/tensorflow_federated.v0.ExecutorGroup/Dispose"

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # Workers are near; proxies are for the web.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.client_idle_timeout_ms", NEVER_MS),
    ("grpc.use_local_subchannel_pool", 1),  # Else all channels share a connection.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Connection:
    """Two channels to a worker, and a thread that asks whether it is there."""

    def __init__(
        self,
        address: str,
        certificates: Optional[Certificates] = None,
        reconnects: bool = False,
    ):
        """Prepares the channels; they connect when they are needed.

        Args:
            address: as gRPC has it: `host:port` or `unix:/path`.
            certificates: for TLS; None for a plain connection.
            reconnects: whether a broken connection may come back by itself.
        """
        self._reconnects = reconnects
        self.computing = _channel(address, certificates)
        self._asking = _channel(address, certificates)
        self._ask = self._asking.unary_unary(QUESTION)
        self._ask_computing = self.computing.unary_unary(QUESTION)
        self._closed = threading.Event()
        self._complaint = ""

    def wait_until_up(self, seconds: float, is_running: Callable[[], bool]) -> bool:
        """Waits for the first answer on both channels.

        Args:
            seconds: how long at most.
            is_running: asked now and then; waiting ends when it says no.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and is_running():
            if all(
                self._answers_once(ask, FIRST_ANSWER_SECONDS, may_connect=True)
                for ask in (self._ask, self._ask_computing)
            ):
                return True
            time.sleep(POLL_SECONDS)
        return False

    def answers(self) -> bool:
        """Whether the worker answers, within its time."""
        return any(
            self._answers_once(self._ask, ANSWER_SECONDS, self._reconnects)
            for _ in range(TRIES)
        )

    def complaint(self) -> str:
        """What gRPC says of a connection that does not come about."""
        self._answers_once(self._ask, ANSWER_SECONDS, may_connect=False)
        return " ".join(self._complaint.split())

    def watch(self, is_running: Callable[[], bool], lost: Callable[[], None]) -> None:
        """Asks again and again from now on, until `close`.

        Args:
            is_running: whether there is anything to ask at all.
            lost: called once, from another thread, when there is no answer.
        """

        def ask() -> None:
            while not self._closed.wait(ASK_EVERY_SECONDS):
                if self._reconnects:
                    # The answer may be late here, behind a large message.
                    self._answers_once(self._ask_computing, STIR_SECONDS, False)
                if not (is_running() and self.answers()):
                    if not self._closed.is_set():
                        lost()
                    return

        threading.Thread(target=ask, daemon=True).start()

    def close(self) -> None:
        """Ends the connection; calls that wait for an answer fail."""
        self._closed.set()
        self.computing.close()
        self._asking.close()

    def _answers_once(
        self, ask: grpc.UnaryUnaryMultiCallable, seconds: float, may_connect: bool
    ) -> bool:
        try:
            ask(b"", timeout=seconds, wait_for_ready=may_connect)
        except grpc.RpcError as error:
            self._complaint = error.details() or ""
            return False
        except ValueError:  # The channel is closed.
            return False
        return True


def _channel(address: str, certificates: Optional[Certificates]) -> grpc.Channel:
    if certificates is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, certificates.credentials(), options=_OPTIONS)
