"""Computations on real workers, and what happens when a worker fails under one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import List

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from conftest import local_worker
from programs import BEGIN_SECONDS, meanwhile

from fl import channels, workers
from fl.runtime import MOST_FAILURES, Runtime, RuntimeFailure
from fl.workers import LocalWorker

ROOT = Path(__file__).parents[2]
PROGRAM_SECONDS = 90.0
NOTICED_SECONDS = 10.0


@tff.tensorflow.computation(tf.float32)
def busy(seconds):  # type: ignore[no-untyped-def]
    """Computes for so long, and returns the time asked for, squared."""
    matrix, start = tf.eye(200), tf.timestamp()
    done = tf.while_loop(
        lambda _: tf.timestamp() - start < tf.cast(seconds, tf.float64),
        lambda x: (tf.matmul(x, x),),
        (matrix,),
    )[0]
    return done[0, 0] * seconds * seconds


def warnings(caplog: pytest.LogCaptureFixture) -> List[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_computations_run_in_it(worker: Runtime) -> None:
    """TFF's program is a grandchild of ours, and it computes."""
    double = tff.tensorflow.computation(lambda x: 2 * x, tf.int32)
    assert double(21) == 42
    process = psutil.Process(local_worker(worker).pid)
    assert process.exe() == str(workers.worker_binary())
    assert process.parent().ppid() == os.getpid()


def test_a_mistake_in_a_computation_is_no_failure_of_the_worker(
    worker: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    pid = local_worker(worker).pid
    invert = tff.tensorflow.computation(
        lambda x: tf.linalg.inv(x), tff.TensorType(np.float32, [2, 2])
    )
    with pytest.raises(grpc.RpcError, match="not invertible"):
        invert(np.zeros([2, 2], np.float32))
    assert local_worker(worker).pid == pid
    assert not warnings(caplog)


def test_an_error_that_looks_like_a_lost_worker_is_none(
    worker: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """TFF takes the code FAILED_PRECONDITION for a lost worker."""

    @tff.tensorflow.computation(np.float32)
    def read_unset(x):  # type: ignore[no-untyped-def]
        unset = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="unset")
        return x + tf.raw_ops.ReadVariableOp(resource=unset, dtype=tf.float32)

    pid = local_worker(worker).pid
    with pytest.raises(grpc.RpcError, match="unset"):
        read_unset(1.0)
    assert local_worker(worker).pid == pid
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("number", "what"),
    [(signal.SIGKILL, "ended by signal 9"), (signal.SIGSTOP, "ceased to answer")],
)
def test_a_worker_that_fails_is_replaced(
    runtime: Runtime,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    what: str,
) -> None:
    """Noticed in time; the computation is repeated; the old process is gone."""
    before = psutil.Process(local_worker(runtime).pid)
    moments: List[float] = []
    fail = local_worker(runtime).fail

    def strike() -> None:
        moments.append(time.monotonic())
        before.send_signal(number)

    def note() -> None:
        moments.append(time.monotonic())
        fail()

    monkeypatch.setattr(local_worker(runtime), "fail", note)
    with meanwhile(strike):
        assert busy(2.0) == 4.0
    assert moments[1] - moments[0] < NOTICED_SECONDS
    assert local_worker(runtime).pid != before.pid
    assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
    [warning] = warnings(caplog)
    assert f"(process {before.pid}) {what} " in warning
    assert "worker.log); it is replaced, and its work is repeated" in warning


def test_the_relay_is_replaced_with_its_worker(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    before = psutil.Process(local_worker(runtime).pid)
    with meanwhile(before.parent().kill):
        assert busy(2.0) == 4.0
    assert local_worker(runtime).pid != before.pid
    assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
    assert len(warnings(caplog)) == 1


def test_a_worker_that_dies_between_computations_is_replaced(runtime: Runtime) -> None:
    psutil.Process(local_worker(runtime).pid).kill()
    assert busy(0.0) == 0.0


def test_a_slow_worker_that_answers_is_left_alone(
    runtime: Runtime,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The computation takes longer than silence is borne."""
    monkeypatch.setattr(channels, "ASK_EVERY_SECONDS", 0.2)
    monkeypatch.setattr(channels, "ANSWER_SECONDS", 1.5)
    pid = local_worker(runtime).pid
    assert busy(5.0) == 25.0
    assert local_worker(runtime).pid == pid
    assert not warnings(caplog)


def test_a_run_that_was_asleep_itself_does_not_blame_the_worker(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer comes too late, as after a laptop's sleep; the second counts."""
    late = iter([False])
    real = channels.Connection._answers_once
    monkeypatch.setattr(
        channels.Connection,
        "_answers_once",
        lambda self, *args: next(late, None) is None and real(self, *args),
    )
    assert local_worker(runtime).check()


def test_too_many_failures_in_a_row_stop_the_run(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    def kill_each() -> None:
        known = 0
        while not ended.wait(BEGIN_SECONDS):
            pid = local_worker(runtime).pid
            if pid != known:
                known = pid
                psutil.Process(pid).kill()

    killer = threading.Thread(target=kill_each)
    killer.start()
    with pytest.raises(RuntimeFailure, match=r"signal 9.*failure 3 in a row.*resume"):
        busy(60.0)
    ended.set()
    killer.join()
    assert len(warnings(caplog)) == MOST_FAILURES - 1


def test_failures_to_start_anew_count_too(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "worker_binary", lambda: Path("/bin/false"))
    psutil.Process(local_worker(runtime).pid).kill()
    with pytest.raises(RuntimeFailure, match=r"at start with code 1.*failure 3 in a"):
        busy(0.0)


def test_failures_with_success_between_do_not_add_up(runtime: Runtime) -> None:
    for _ in range(MOST_FAILURES + 1):
        with meanwhile(psutil.Process(local_worker(runtime).pid).kill):
            assert busy(1.0) == 1.0


def test_without_a_worker_nothing_is_started() -> None:
    """TFF's own context would start a worker that nobody ends."""
    program = (
        "from fl import environment; environment.prepare_tensorflow();"
        "import tensorflow as tf, tensorflow_federated as tff, psutil;"
        "from fl import runtime\n"
        "try: tff.tensorflow.computation(lambda: tf.constant(1))()\n"
        "except runtime.RuntimeFailure as error: print(error)\n"
        "print(len(psutil.Process().children()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert "no worker is running" in result.stdout
    assert result.stdout.split()[-1] == "0"
    assert "Traceback" not in result.stderr


def test_a_runtime_within_another_gives_way_to_it(
    worker: Runtime, tmp_path: Path
) -> None:
    with Runtime([LocalWorker(tmp_path / "log")]) as inner:
        assert tff.framework.get_context_stack().current is inner
    assert tff.framework.get_context_stack().current is worker
