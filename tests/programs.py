"""Workers started by hand (`python -m fl.worker`), and things done while they work."""

from __future__ import annotations

import atexit
import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]
WAIT_SECONDS = 30.0
BEGIN_SECONDS = 0.5


class Program:
    """A running `python -m fl.worker`; it answers when this is made."""

    def __init__(self, *flags: str, prefix: Sequence[str] = ()):
        """Starts it.

        Args:
            flags: its flags.
            prefix: a command that runs it, such as one that changes the namespace.
        """
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "fl.worker", *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.process.kill)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"process (\d+)", self.line)
        if found is None:
            raise AssertionError(self.line + self.end(signal.SIGKILL))
        self.pid = int(found[1])  # Of TFF's own program.

    def end(self, number: int = signal.SIGTERM) -> str:
        """Sends a signal, waits for the end, and returns what was said on stderr."""
        self.process.send_signal(number)
        try:
            return self.process.communicate(timeout=WAIT_SECONDS)[1]
        finally:
            self.process.kill()


@contextlib.contextmanager
def program(*flags: str, **options: Any) -> Iterator[Program]:
    """The same, ended at the end."""
    running = Program(*flags, **options)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def meanwhile(action: Callable[[], Any]) -> Iterator[None]:
    """Does something from another thread while a computation is under way."""

    def act() -> None:
        time.sleep(BEGIN_SECONDS)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
