"""Several workers give what one gives, up to the order in which floats are added."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any, Callable, List

import attr
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hosts import host
from programs import Program, free_port, meanwhile, program

from fl import states, workers
from fl.runtime import Runtime, RuntimeFailure
from fl.workers import LocalWorker, RemoteWorker

TOLERANCE = 1e-5
Make = Callable[..., Any]


def two_rounds(method: Any) -> Any:
    first = method.run_round(method.initial_state())
    for number, arrays in first.kept.items():
        method.client_states.put(number, 1, arrays)
    return method.run_round(first.state)


def assert_close(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(
            left[name], right[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
        )


def assert_same_outcome(shared: Any, alone: Any) -> None:
    assert shared.clients == alone.clients
    assert_close(states.to_arrays(shared.state), states.to_arrays(alone.state))
    assert_close(shared.report, alone.report)
    assert shared.kept.keys() == alone.kept.keys()
    for number in alone.kept:
        assert_close(shared.kept[number], alone.kept[number])
    assert shared.bytes_down == alone.bytes_down
    assert shared.bytes_up == alone.bytes_up


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer_state": "averaged", "aggregation": "examples"},
        {"optimizer_state": "fresh", "refine_at_begin": True},
        {"method": "fixmatch", "optimizer_state": "client"},
        *(
            pytest.param(flags, marks=pytest.mark.slow)
            for flags in (
                {"method": "fedavg", "num_unlabel": 0, "optimizer_state": "fresh"},
                {"method": "fedproto", "num_unlabel": 0, "optimizer_state": "fresh"},
                {"method": "mixmatch"},
                {"method": "sage"},
                {"method": "fedmatch", "helper_cnt": 2},
                {"method": "fedrgd", "num_group": 2},
            )
        ),
    ],
    ids=lambda flags: "-".join(str(value) for value in flags.values()),
)
def test_two_workers_equal_one(make_small: Make, tmp_path: Path, flags: Any) -> None:
    method = make_small(**flags)
    alone = two_rounds(method)
    states.from_arrays(method.initial_state(), states.to_arrays(alone.state))
    with Runtime([LocalWorker(tmp_path / "log") for _ in range(2)]):
        shared = two_rounds(make_small(workers="2", **flags))
    assert_same_outcome(shared, alone)


@attr.frozen(eq=False)
class Times:
    """When each client began and ended, by slot."""

    began: Any
    ended: Any


@tff.tensorflow.computation(tff.StructType([("slot", np.int32), ("s", np.float64)]))
def take_time(client):  # type: ignore[no-untyped-def]
    """Computes for so long."""
    began, matrix = tf.timestamp(), tf.eye(100)
    done = tf.while_loop(
        lambda _: tf.timestamp() - began < client.s,
        lambda x: (tf.matmul(x, x),),
        (matrix,),
    )[0]
    with tf.control_dependencies([done]):
        ended = tf.timestamp()
    row = tf.one_hot(client.slot, 2, dtype=tf.float64)
    return Times(began=began * row, ended=ended * row * tf.cast(done[0, 0], tf.float64))


@tff.federated_computation(
    tff.FederatedType(take_time.type_signature.parameter, tff.CLIENTS)
)
def times(clients):  # type: ignore[no-untyped-def]
    """When two clients computed."""
    return tff.federated_sum(tff.federated_map(take_time, clients))


def run_two(seconds: float) -> Any:
    return times([{"slot": np.int32(i), "s": np.float64(seconds)} for i in (0, 1)])


def warnings(caplog: pytest.LogCaptureFixture) -> List[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_workers_compute_at_the_same_time(tmp_path: Path) -> None:
    with Runtime([LocalWorker(tmp_path / "log") for _ in range(2)]):
        run_two(0.0)
        result = run_two(2.0)
    assert max(result.began) < min(result.ended)


def test_only_the_worker_that_failed_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = [LocalWorker(tmp_path / "log") for _ in range(2)]
    with Runtime(made):
        before = [worker.pid for worker in made]
        with meanwhile(psutil.Process(before[1]).kill):
            result = run_two(2.0)
        assert all(result.ended - result.began >= 2.0)
        assert made[0].pid == before[0]
        assert made[1].pid != before[1]
    assert len(warnings(caplog)) == 1


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REACH_SECONDS", 1.0)


def test_the_others_take_the_clients_of_one_that_is_lost(
    short_wait: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers elsewhere; one is gone for good in the midst of a computation."""
    ports = [free_port(), free_port()]
    with program(f"--port={ports[0]}"), program(f"--port={ports[1]}") as second:
        with Runtime([RemoteWorker(f"127.0.0.1:{port}") for port in ports]) as runtime:
            with meanwhile(second.process.kill):
                result = run_two(2.0)
            assert all(result.ended - result.began >= 2.0)
            assert len(runtime.workers) == 1
            run_two(0.0)
        [warning] = warnings(caplog)
        assert f"127.0.0.1:{ports[1]} ceased to answer" in warning
        assert "the others take its clients" in warning


def test_a_worker_elsewhere_that_comes_back_is_used_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    first = Program(f"--port={port}")
    started: List[Program] = []

    def restart() -> None:
        first.end(signal.SIGKILL)
        started.append(Program(f"--port={port}"))

    try:
        with Runtime([RemoteWorker(f"127.0.0.1:{port}")]), meanwhile(restart):
            result = run_two(2.0)
        assert all(result.ended - result.began >= 2.0)
        assert len(warnings(caplog)) == 1
    finally:
        for running in started:
            running.end(signal.SIGKILL)


def test_no_worker_left_is_a_clear_error(short_wait: None) -> None:
    port = free_port()
    running = Program(f"--port={port}")
    with Runtime([RemoteWorker(f"127.0.0.1:{port}")]):
        running.end(signal.SIGKILL)
        with pytest.raises(RuntimeFailure, match=r"no worker is left; --resume"):
            run_two(0.0)


def test_two_hosts_equal_one_worker(make_small: Make) -> None:
    """Each in a network namespace of its own."""
    method = make_small(optimizer_state="averaged", aggregation="examples")
    alone = two_rounds(method)
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(2):
            other = stack.enter_context(host(number))
            flags = (f"--host={other.far}", "--port=8000")
            stack.enter_context(program(*flags, prefix=other.prefix))
            addresses.append(f"{other.far}:8000")
        with Runtime([RemoteWorker(address) for address in addresses]):
            shared = two_rounds(method)
    assert_same_outcome(shared, alone)


def test_a_host_whose_cable_is_pulled_is_done_without(
    short_wait: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing says that it is gone: there is only silence."""
    port = free_port()
    with (
        host() as other,
        program(f"--host={other.far}", "--port=8000", prefix=other.prefix),
        program(f"--port={port}"),
        Runtime(
            [RemoteWorker(f"127.0.0.1:{port}"), RemoteWorker(f"{other.far}:8000")]
        ) as runtime,
        meanwhile(other.pull_cable),
    ):
        result = run_two(2.0)
        assert all(result.ended - result.began >= 2.0)
        assert len(runtime.workers) == 1
    [warning] = warnings(caplog)
    assert f"{other.far}:8000 ceased to answer" in warning
