"""`python -m fl.worker`: who gets in and who does not, tried from outside.

Another host is a network namespace joined to ours by a pair of virtual devices.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, List, Set

import psutil
import pytest
from hosts import host
from programs import ROOT, WAIT_SECONDS, Program, free_port, program

from fl import enclosure, relay
from fl.channels import Connection
from fl.worker import worker_binary

NOBODY = 65534
FAILED = 255
ANSWER_SECONDS = 3.0

# Connects to the host and port in its arguments, and tells how that went.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_enclosure = pytest.mark.skipif(
    not enclosure.is_possible(), reason="this system allows no network namespace"
)


def answers(address: str) -> bool:
    connection = Connection(address)
    try:
        return connection.wait_until_up(ANSWER_SECONDS, lambda: True)
    finally:
        connection.close()


def connect_from(prefix: List[str], host: str, port: int) -> str:
    """Tries to connect by a command with that prefix, and says what came of it."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", CONNECT, host, str(port)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


def as_nobody(action: Callable[[], int]) -> int:
    """What an action in a child of ours returns that belongs to another user."""
    child = os.fork()
    if child == 0:
        result = FAILED
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            result = action()
        os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def error_of_connecting(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path))


def listening(pid: int) -> Set[str]:
    """The inodes of the sockets with which a process listens, in its own network."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Closed since it was listed.
            own.update(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    return own & listening_in_network_of(str(pid))


def listening_in_network_of(process: str) -> Set[str]:
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    return {cells[9] for cells in lines if cells[3] == "0A"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def run_worker(*flags: str) -> subprocess.CompletedProcess[str]:
    """`python -m fl.worker` where it is expected to end at once."""
    return subprocess.run(
        [sys.executable, "-m", "fl.worker", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def test_a_worker_answers_at_its_port() -> None:
    port = free_port()
    with program(f"--port={port}") as running:
        assert f"0.0.0.0:{port}" in running.line
        assert answers(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_worker_answers_at_its_socket_and_takes_it_away(
    open_folder: Path, number: int, code: int
) -> None:
    path = open_folder / "door"
    with program(f"--socket={path}") as running:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert answers(f"unix:{path}")
        running.process.send_signal(number)
        assert running.process.wait(WAIT_SECONDS) == code
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(open_folder: Path) -> None:
    path = open_folder / "door"
    Program(f"--socket={path}").end(signal.SIGKILL)
    assert path.exists()
    with program(f"--socket={path}"):
        second = run_worker(f"--socket={path}")
        assert second.returncode == 1
        assert "cannot be opened: Address already in use" in second.stderr
        assert "Traceback" not in second.stderr
        assert answers(f"unix:{path}")


def test_a_file_in_the_way_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    result = run_worker(f"--socket={path}")
    assert result.returncode == 1
    assert "cannot be opened: Address already in use" in result.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "told"), [([], 1), (["--host=127.0.0.1"], 0)], ids=["all", "loopback"]
)
def test_an_open_port_is_told(flags: List[str], told: int) -> None:
    errors = Program(f"--port={free_port()}", *flags).end()
    assert errors.count("warning: whoever reaches this port") == told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_tffs_program_ends_with_ours(number: int) -> None:
    running = Program(f"--port={free_port()}")
    tffs = psutil.Process(running.pid)
    errors = running.end(number)
    assert "Traceback" not in errors
    deadline = time.monotonic() + WAIT_SECONDS
    while tffs.is_running() and tffs.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_our_program_ends_with_tffs() -> None:
    running = Program(f"--port={free_port()}")
    os.kill(running.pid, signal.SIGKILL)
    running.process.communicate(timeout=WAIT_SECONDS)
    assert running.process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ([], "one of the arguments --port --socket is required"),
        (["--port=99999"], "from 1 to 65535"),
        (["--port=8000", "--concurrent_clients=-1"], "must be at least 0"),
        (["--port=1", "--socket=x"], "not allowed with"),
        (["--port=8000", "--host=203.0.113.1"], "cannot be opened"),
        (["--socket=/nowhere/door"], "cannot be opened: No such file"),
        (["--socket=/tmp/" + 200 * "x"], "cannot be opened: AF_UNIX path too long"),
    ],
)
def test_mistakes_are_clear(flags: List[str], what: str) -> None:
    result = run_worker(*flags)
    assert result.returncode != 0
    assert what in result.stderr
    assert "Traceback" not in result.stderr


@needs_enclosure
def test_tffs_program_does_not_listen_in_our_network() -> None:
    """It does so in a network of its own; ours has only the port that was asked for."""
    before = listening_in_network_of("self")
    with program(f"--port={free_port()}") as running:
        assert listening(running.pid)
        assert len(listening_in_network_of("self") - before) == 1
        assert not listening(running.pid) & listening_in_network_of("self")
        devices = Path(f"/proc/{running.pid}/net/dev").read_text()
        assert re.findall(r"^ *(\w+):", devices, re.MULTILINE) == ["lo"]


@needs_root
def test_another_user_gets_in_nowhere(open_folder: Path) -> None:
    """The same try works for the user to whom the worker belongs."""
    path = open_folder / "door"
    with program(f"--socket={path}"):
        assert error_of_connecting(path) == 0
        assert as_nobody(lambda: error_of_connecting(path)) == errno.EACCES


@needs_enclosure
def test_another_host_reaches_tffs_program_only_without_ours() -> None:
    """TFF's program alone answers the other host: that is what is closed here."""
    port = free_port()
    with host() as other:
        bare = subprocess.Popen(
            [str(worker_binary()), f"--port={port}"], stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while not relay.answers(port) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert connect_from(other.prefix, other.near, port) == "connected"
        finally:
            bare.kill()
            bare.wait()
        with program(f"--port={port}", "--host=127.0.0.1"):
            refused = connect_from(other.prefix, other.near, port)
            assert refused == "ConnectionRefusedError"
        with program(f"--port={port}"):
            assert connect_from(other.prefix, other.near, port) == "connected"


def test_without_namespaces_there_is_a_warning() -> None:
    """Inside a user namespace that may make no network namespaces."""
    prefix = ["unshare", "-Ur", "sh", "-c"]
    forbid = "echo 0 > /proc/sys/user/max_net_namespaces"
    if not shutil.which("unshare") or subprocess.run([*prefix, forbid]).returncode:
        pytest.skip("needs user namespaces to forbid network namespaces in one")
    port = free_port()
    with program(
        f"--port={port}", prefix=[*prefix, f'{forbid}; exec "$@"', "sh"]
    ) as running:
        assert answers(f"127.0.0.1:{port}")
        assert listening(running.pid) & listening_in_network_of("self")
        errors = running.end()
    assert errors.count("warning: this system allows no network namespace") == 1
