"""The workers of a run, each with what it takes to replace it.

* `LocalWorker`: a process of ours, started by `fl.worker` behind a private unix socket.
  It belongs to the run: the kernel ends it when the run ends, however it ends.
* `RemoteWorker`: one that somebody runs elsewhere; it is used while it answers.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, List, Mapping, Optional

from fl.channels import Connection
from fl.tls import Certificates
from fl.worker import SIGNALLED, worker_binary

START_SECONDS = 60.0
REACH_SECONDS = 20.0
END_SECONDS = 5.0
LAG_SECONDS = 0.5
POLL_SECONDS = 0.05
LONGEST_FOLDER_PATH = 64  # A socket's whole path has at most 107 bytes.
SOCKET_NAME = "door"
FOLDER_PREFIX = "protofssl_worker_"
ABANDONED_SECONDS = 600.0
ROOT = Path(__file__).parents[1]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from fl.worker import main; "
    "sys.exit(main(sys.argv[1:]))"
)


class RuntimeFailure(Exception):
    """A worker did not start, or all are lost; the text is for the user."""


class Worker(abc.ABC):
    """One worker and the connection to it."""

    # Whether it may have been started anew behind our back, with nothing of ours left.
    may_forget = False

    def __init__(self) -> None:
        self.has_failed = False
        self._link: Optional[Connection] = None

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What a message to the user calls it."""

    @property
    @abc.abstractmethod
    def fault(self) -> str:
        """What befell it, to follow its name."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begins to start or to connect; `wait_until_up` must follow."""

    @abc.abstractmethod
    def wait_until_up(self) -> None:
        """Waits until the worker answers, and watches it from then on.

        Raises:
            RuntimeFailure: if it does not.
        """

    @property
    def connection(self) -> Connection:
        """The connection to it."""
        if self._link is None:
            raise RuntimeFailure("the worker has not been started")
        return self._link

    def is_running(self) -> bool:
        """Whether it may answer at all."""
        return True

    def check(self) -> bool:
        """Asks whether it answers; once it has failed, it stays so until `start`."""
        if not self.has_failed and self.is_running() and self.connection.answers():
            return True
        self.fail()
        return False

    def fail(self) -> None:
        """Counts it as lost and frees the calls that wait for it."""
        self.has_failed = True
        self.connection.close()

    def close(self) -> None:
        """Ends the connection."""
        if self._link is not None:
            self._link.close()

    def _watch(self) -> None:
        connection = self.connection

        def lost() -> None:
            if self._link is connection:
                self.fail()

        connection.watch(self.is_running, lost)


class LocalWorker(Worker):
    """A process of ours."""

    def __init__(self, log_path: Path, concurrent_clients: int = 0):
        """Starts nothing yet.

        Args:
            log_path: the file to which the worker's own output is added.
            concurrent_clients: see the flag.
        """
        super().__init__()
        self._concurrent_clients = concurrent_clients
        self._log_path = log_path
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._folder: Optional[Path] = None
        self._tff_handle: Optional[int] = None
        self.pid = 0
        self.is_closed_to_others = True

    @property
    def name(self) -> str:
        """See `Worker`."""
        return f"TFF's worker (process {self.pid})"

    @property
    def fault(self) -> str:
        """See `Worker`."""
        code = self._code_if_ended()
        what = "ceased to answer" if code is None else f"ended {_way_to_end(code)}"
        return f"{what} (its output is in {self._log_path})"

    def is_running(self) -> bool:
        """See `Worker`."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """See `Worker`. To be called in a thread that lives as long as the worker."""
        self.close()
        self.has_failed = False
        self._folder = _private_folder()
        command = [
            *(sys.executable, "-I", "-S", "-c", _PROGRAM, str(ROOT)),
            f"--socket={self._folder / SOCKET_NAME}",
            f"--parent={os.getpid()}",
            f"--binary={worker_binary()}",
            f"--concurrent_clients={self._concurrent_clients}",
        ]
        with open(self._log_path, "ab", opener=_open_no_link) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """See `Worker`."""
        deadline = time.monotonic() + START_SECONDS
        told = self._first_line(deadline)
        self.pid = told["pid"]
        self.is_closed_to_others = told["closed"]
        self._tff_handle = _handle(self.pid)
        self._link = Connection(f"unix:{self._socket()}")
        left = deadline - time.monotonic()
        if not self.connection.wait_until_up(left, self.is_running):
            raise self._start_failure()
        # Both channels are connected: from here on there is no door at all.
        self._remove_folder()
        self._watch()

    def close(self) -> None:
        """Ends the worker; it is gone on return."""
        super().close()
        if self._process is not None:
            if self._process.poll() is None:
                # It leads a process group of its own, with TFF's program in it.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        if self._tff_handle is not None:
            _is_readable(self._tff_handle, END_SECONDS)
            os.close(self._tff_handle)
            self._tff_handle = None
        self._remove_folder()

    def _first_line(self, deadline: float) -> Mapping[str, Any]:
        """What `fl.worker` says when TFF's program listens."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        said = b""
        while time.monotonic() < deadline:
            if not _is_readable(pipe, POLL_SECONDS):
                continue
            part = os.read(pipe, 4096)
            said += part
            if said.endswith(b"\n"):
                return dict(json.loads(said))
            if not part:
                break
        raise self._start_failure()

    def _start_failure(self) -> RuntimeFailure:
        code = self._code_if_ended()
        if code is None:
            what = f"did not answer within {START_SECONDS:.0f} s"
        else:
            what = f"ended at start {_way_to_end(code)}"
        return RuntimeFailure(f"TFF's worker {what}; its output is in {self._log_path}")

    def _code_if_ended(self) -> Optional[int]:
        """How the process ended; it may be just about to, behind TFF's program."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(LAG_SECONDS)
        return None

    def _socket(self) -> Path:
        assert self._folder is not None
        return self._folder / SOCKET_NAME

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class RemoteWorker(Worker):
    """One that answers at an address."""

    may_forget = True

    def __init__(self, address: str, certificates: Optional[Certificates] = None):
        super().__init__()
        self._address = address
        self._certificates = certificates

    @property
    def name(self) -> str:
        """See `Worker`."""
        return f"the worker at {self._address}"

    @property
    def fault(self) -> str:
        """See `Worker`."""
        return "ceased to answer"

    def start(self) -> None:
        """See `Worker`."""
        self.close()
        self.has_failed = False
        self._link = Connection(self._address, self._certificates, reconnects=True)

    def wait_until_up(self) -> None:
        """See `Worker`."""
        if not self.connection.wait_until_up(REACH_SECONDS, self.is_running):
            raise RuntimeFailure(
                f"{self.name} did not answer within {REACH_SECONDS:.0f} s "
                f"({self.connection.complaint()})"
            )
        self._watch()


def start_all(workers: List[Worker]) -> None:
    """Starts workers side by side and waits for all; ends them if one fails."""
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_up()
    except BaseException:
        for worker in workers:
            worker.close()
        raise


def _open_no_link(path: str, flags: int) -> int:
    """A log that leads elsewhere would have us write to somebody's file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _way_to_end(code: int) -> str:
    """`by signal 9` or `with code 1`, from a return code or a shell's exit code."""
    number = -code if code < 0 else code - SIGNALLED
    return f"by signal {number}" if number > 0 else f"with code {code}"


def _private_folder() -> Path:
    """A new folder of this user alone, with a path short enough for a socket's."""
    usual = tempfile.gettempdir()
    place = usual if len(os.fsencode(usual)) < LONGEST_FOLDER_PATH else "/tmp"
    _remove_abandoned(Path(place))
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=place))


def _remove_abandoned(place: Path) -> None:
    """Removes what a kill in the midst of a start left; no start takes that long."""
    for folder in place.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # It goes while we look, or is not empty.
            found = folder.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and time.time() - found.st_mtime > ABANDONED_SECONDS:
                door = folder / SOCKET_NAME
                if door.is_socket():
                    door.unlink()
                folder.rmdir()


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _handle(pid: int) -> Optional[int]:
    """A descriptor that turns readable when the process ends, where there is such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
