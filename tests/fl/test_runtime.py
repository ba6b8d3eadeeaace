"""The worker process: there when wanted, gone when not, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl import runtime

GONE_SECONDS = 5.0
START_SECONDS = 90.0
ROOT = Path(__file__).parents[2]

# Starts a worker, says its pid, then does what the test asks for.
PROGRAM = """
import sys, time
from pathlib import Path
from fl import environment
environment.prepare_tensorflow()
from fl.runtime import Worker
with Worker(Path(sys.argv[1])) as worker:
    print(worker.pid, flush=True)
    {action}
"""


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def start_program(action: str, log: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(action=action), str(log)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_computations_run_in_it(worker: runtime.Worker) -> None:
    """The worker is a child of ours, and it computes."""
    double = tff.tensorflow.computation(lambda x: 2 * x, tf.int32)
    assert double(21) == 42
    assert psutil.Process(worker.pid).ppid() == os.getpid()
    assert psutil.Process(worker.pid).exe() == str(runtime.worker_binary())


@pytest.mark.parametrize(
    ("action", "code"),
    [("pass", 0), ("raise RuntimeError('on purpose')", 1), ("sys.exit(3)", 3)],
)
def test_gone_after_an_ordinary_end(action: str, code: int, tmp_path: Path) -> None:
    process, pid = start_program(action, tmp_path / "log")
    _, errors = process.communicate(timeout=START_SECONDS)
    assert process.returncode == code
    assert wait_until_gone(pid)
    assert "ServiceManager" not in errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_gone_after_a_signal_to_the_parent(number: int, tmp_path: Path) -> None:
    process, pid = start_program("time.sleep(60)", tmp_path / "log")
    assert is_running(pid)
    process.send_signal(number)
    process.communicate(timeout=START_SECONDS)
    assert process.returncode != 0
    assert wait_until_gone(pid)


def test_a_worker_that_ends_at_start_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "worker_binary", lambda: Path("/bin/false"))
    with pytest.raises(
        runtime.RuntimeFailure, match=r"ended at start with code 1.*log"
    ):
        runtime.Worker(tmp_path / "log")


def test_a_worker_that_never_answers_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended too: the program leaves its pid in the log before it sleeps."""
    program = tmp_path / "mute"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(runtime, "worker_binary", lambda: program)
    monkeypatch.setattr(runtime, "READY_SECONDS", 1.0)
    with pytest.raises(runtime.RuntimeFailure, match="did not answer within 1 s"):
        runtime.Worker(tmp_path / "log")
    assert wait_until_gone(int((tmp_path / "log").read_text()))


def test_without_a_worker_nothing_is_started(tmp_path: Path) -> None:
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
        timeout=START_SECONDS,
    )
    assert "no worker is running" in result.stdout
    assert result.stdout.split()[-1] == "0"
    assert "Traceback" not in result.stderr


def test_output_goes_to_the_log(worker: Any) -> None:
    """The worker does not hold our pipes: its outputs are the log file."""
    log = str(worker.log_path)
    for descriptor in (1, 2):
        assert os.readlink(f"/proc/{worker.pid}/fd/{descriptor}") == log
