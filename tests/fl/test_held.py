"""Values that stay at a worker: made once, freed on demand, made anew if it is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Iterator, List

import attr
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from conftest import local_worker

from fl import held, process
from fl.held import Held
from fl.runtime import Runtime
from fl.types import ClientOutput

NUMBER = tff.TensorType(np.float32)
AT_SERVER = tff.FederatedType(NUMBER, tff.SERVER)


@tff.federated_computation(AT_SERVER, AT_SERVER)
def add_and_double(first, second):  # type: ignore[no-untyped-def]
    add = tff.tensorflow.computation(lambda x, y: x + y, [NUMBER, NUMBER])
    double = tff.tensorflow.computation(lambda x: 2 * x, NUMBER)
    return tff.federated_map(add, (first, second)), tff.federated_map(double, first)


@tff.federated_computation(AT_SERVER)
def fetch(x):  # type: ignore[no-untyped-def]
    return x


def number(value: float) -> Held:
    return held.sent(np.float32(value), AT_SERVER, 1)


def both(first: Held, second: Held) -> Held:
    return held.called(held.function(add_and_double, 1), first, second)


def kill_worker(runtime: Runtime) -> None:
    os.kill(local_worker(runtime).pid, signal.SIGKILL)


def test_a_value_passes_from_computation_to_computation(worker: Any) -> None:
    """(3 + 4, 6), and of these (7 + 6, 14)."""
    turn = both(number(3), number(4))
    again = both(turn[0], turn[1])
    assert fetch(again[0]) == 13
    assert fetch(again[1]) == 14
    assert fetch(turn[0]) == 7


def test_it_is_made_anew_when_the_worker_is_lost(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """With all it was made from, although that had been freed."""
    turn = both(number(3), number(4))
    again = both(turn[0], turn[1])
    assert fetch(again[0]) == 13
    again.forget_sources()
    kill_worker(runtime)
    assert fetch(again[0]) == 13
    assert "its work is repeated" in caplog.text


class Counted:
    """A value that counts how often it is made."""

    def __init__(self) -> None:
        self.places: List[Any] = []
        self.value = Held(AT_SERVER, 1, self._make)

    async def _make(self, executor: Any) -> str:
        self.places.append(executor)
        return f"value in {executor}"


def ingest(value: Held, executor: Any) -> Any:
    return asyncio.run(value.ingest(executor))


def test_it_is_made_once_at_each_worker() -> None:
    counted = Counted()
    assert ingest(counted.value, "a") == ingest(counted.value, "a") == "value in a"
    assert ingest(counted.value, "b") == "value in b"
    assert counted.places == ["a", "b"]


def test_forgetting_frees_all_that_it_was_made_from() -> None:
    """Sources of sources too, but not itself."""
    first = Counted()
    second = Held(AT_SERVER, 1, first.value.ingest, [first.value])
    third = Held(AT_SERVER, 1, second.ingest, [second])
    ingest(third, "a")
    third.forget_sources()
    ingest(third, "a")
    assert first.places == ["a"]
    ingest(second, "a")
    assert first.places == ["a", "a"]


def test_a_long_line_of_values_is_made_anew() -> None:
    """Two thousand turns after each other, each from two parts of the one before."""
    first = Counted()
    last = first.value
    for _ in range(2000):
        parts = [Held(AT_SERVER, 1, last.ingest, [last]) for _ in range(2)]
        last = Held(AT_SERVER, 1, parts[1].ingest, parts)
    assert ingest(last, "a") == "value in a"
    assert ingest(last, "b") == "value in b"
    assert first.places == ["a", "b"]
    last.forget_sources()
    assert ingest(first.value, "b") == "value in b"
    assert first.places == ["a", "b", "b"]


@attr.frozen(eq=False)
class Client:
    value: Any
    slot: Any


def make_update() -> Any:
    """The sum of what was handed to a client and its own value goes to the next."""
    return lambda message, client: ClientOutput(
        averaged=message * client.value,
        weight=client.value,
        own=client.value,
        handed_on=message + client.value,
    )


class FatalList(List[Client]):
    """Clients before whose third the worker is killed."""

    def __init__(self, clients: List[Client], runtime: Runtime):
        super().__init__(clients)
        self._runtime = runtime

    def __iter__(self) -> Iterator[Client]:
        for number_, client in enumerate(super().__iter__()):
            if number_ == 2:
                kill_worker(self._runtime)
            yield client


def test_turns_are_repeated_when_the_worker_is_lost_between_them(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    turns = process.SequentialRound(
        make_update,
        tf.TensorSpec([], tf.float32),
        Client(tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32)),
        lambda message, handed: handed,
    )
    clients = [Client(np.float32(v), np.int32(0)) for v in (1, 2, 3, 4)]
    whole = turns(np.float32(10), clients)
    broken = turns(np.float32(10), FatalList(clients, runtime))
    # Handed on: 10, 11, 13, 16, 20; the mean: (1*10 + 4*11 + 9*13 + 16*16) / 10.
    for result in (whole, broken):
        assert result.handed_on == 20
        assert result.mean == pytest.approx(42.7)
        np.testing.assert_array_equal(result.own, [1, 2, 3, 4])
    assert caplog.text.count("its work is repeated") == 1
