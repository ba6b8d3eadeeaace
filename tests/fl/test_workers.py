"""Worker processes: there when wanted, gone when not, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator, List

import psutil
import pytest

from fl import workers
from fl.worker import CONCURRENT_CLIENTS
from fl.workers import LocalWorker, RemoteWorker, RuntimeFailure

GONE_SECONDS = 5.0
PROGRAM_SECONDS = 90.0
ROOT = Path(__file__).parents[2]

# Starts a worker, says its pid, then does what the test asks for.
PROGRAM = """
import sys, time
from pathlib import Path
from fl import environment
environment.prepare_tensorflow()
from fl.runtime import Runtime
from fl.workers import LocalWorker
with Runtime([LocalWorker(Path(sys.argv[1]))]) as runtime:
    print(runtime.workers[0].pid, flush=True)
    {action}
"""


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def start_program(action: str, log: Path) -> tuple[subprocess.Popen[str], List[int]]:
    """The program, and the pids of TFF's process and of the one that holds it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(action=action), str(log)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(log.parent)},
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    return process, [pid, psutil.Process(pid).ppid()]


@pytest.mark.parametrize(
    ("action", "code"),
    [("pass", 0), ("raise RuntimeError('on purpose')", 1), ("sys.exit(3)", 3)],
)
def test_gone_after_an_ordinary_end(action: str, code: int, tmp_path: Path) -> None:
    process, pids = start_program(f"time.sleep(0.5); {action}", tmp_path / "log")
    _, errors = process.communicate(timeout=PROGRAM_SECONDS)
    assert process.returncode == code
    assert all(wait_until_gone(pid) for pid in pids)
    assert "ServiceManager" not in errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_gone_after_a_signal_to_the_parent(number: int, tmp_path: Path) -> None:
    """Processes and files: nothing is left but the log."""
    process, pids = start_program("time.sleep(60)", tmp_path / "log")
    assert all(is_running(pid) for pid in pids)
    process.send_signal(number)
    process.communicate(timeout=PROGRAM_SECONDS)
    assert process.returncode != 0
    assert all(wait_until_gone(pid) for pid in pids)
    assert [p.name for p in tmp_path.iterdir() if "autograph" not in p.name] == ["log"]


def test_a_worker_that_ends_at_start_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "worker_binary", lambda: Path("/bin/false"))
    with pytest.raises(RuntimeFailure, match=r"ended at start with code 1;.*log"):
        workers.start_all([LocalWorker(tmp_path / "log")])


def test_a_worker_that_never_answers_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended too: the program leaves its pid in the log before it sleeps."""
    program = tmp_path / "mute"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(workers, "worker_binary", lambda: program)
    monkeypatch.setattr(workers, "START_SECONDS", 2.0)
    with pytest.raises(RuntimeFailure, match="did not answer within 2 s"):
        workers.start_all([LocalWorker(tmp_path / "log")])
    assert wait_until_gone(int((tmp_path / "log").read_text()))


def test_one_that_fails_at_start_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "REACH_SECONDS", 0.5)
    first = LocalWorker(tmp_path / "log")
    with pytest.raises(RuntimeFailure, match=r"at localhost:9 did not.*refused"):
        workers.start_all([first, RemoteWorker("localhost:9")])
    assert first.pid
    assert not is_running(first.pid)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    """The worker does not hold our pipes: its outputs are the log file."""
    worker = LocalWorker(tmp_path / "log")
    workers.start_all([worker])
    try:
        for descriptor in (1, 2):
            target = os.readlink(f"/proc/{worker.pid}/fd/{descriptor}")
            assert target == str(tmp_path / "log")
    finally:
        worker.close()


def test_a_long_path_for_temporary_files_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path has at most 107 bytes."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(workers.tempfile, "tempdir", str(long))
    worker = LocalWorker(tmp_path / "log")
    workers.start_all([worker])
    worker.close()
    assert not list(long.iterdir())


def test_a_run_without_namespaces_is_warned_once(tmp_path: Path) -> None:
    """Inside a user namespace that may make no network namespaces."""
    forbid = "echo 0 > /proc/sys/user/max_net_namespaces"
    prefix = ["unshare", "-Ur", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*prefix, forbid]).returncode:
        pytest.skip("needs user namespaces to forbid network namespaces in one")
    program = PROGRAM.format(action="pass")
    result = subprocess.run(
        [*prefix, f'{forbid}; exec "$@"', "sh"]
        + [sys.executable, "-c", program, str(tmp_path / "log")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("allows no network namespace") == 1


@pytest.mark.parametrize(("asked", "given"), [(3, 3), (0, CONCURRENT_CLIENTS)])
def test_concurrent_clients_reach_tffs_program(
    tmp_path: Path, asked: int, given: int
) -> None:
    worker = LocalWorker(tmp_path / "log", concurrent_clients=asked)
    workers.start_all([worker])
    try:
        command = psutil.Process(worker.pid).cmdline()
    finally:
        worker.close()
    assert f"--max_concurrent_computation_calls={given}" in command


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_what_a_kill_during_a_start_left_goes_with_the_next(short_folder: Path) -> None:
    """Old folders with a socket or nothing; a start under way, files, links stay."""
    names = ("worker_old", "worker_new", "worker_full", "worker_link", "results")
    old, new, full, link, results = (short_folder / f"protofssl_{n}" for n in names)
    for folder in (old, new, results):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / workers.SOCKET_NAME))
    full.mkdir()
    (full / workers.SOCKET_NAME).touch()
    bare = short_folder / "protofssl_worker_bare"
    bare.mkdir()
    link.symlink_to(results)
    for path in (old, bare, full, link, results):
        os.utime(path, (0, 0), follow_symlinks=False)
    workers._remove_abandoned(short_folder)
    assert {*short_folder.iterdir()} == {new, full, link, results}
    for folder in (new, full, results):
        assert os.listdir(folder) == [workers.SOCKET_NAME]


def test_a_log_that_leads_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    worker = LocalWorker(tmp_path / "log")
    try:
        with pytest.raises(OSError, match="log"):
            worker.start()
    finally:
        worker.close()
    assert (tmp_path / "precious").read_text() == "kept"
