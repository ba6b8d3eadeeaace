"""Ctrl-C and requests to end that are not lost.

Libraries swallow what is raised while they try something, above all while they are
imported. A signal that comes then is remembered here, and raised again by `check`.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, List

EXIT_TERMINATED = 143

_seen: List[int] = []


def remember() -> None:
    """From now on SIGINT and SIGTERM are remembered, and raised as exceptions.

    SIGINT stays ignored where it was, as in what a shell runs in the background.
    """
    _seen.clear()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)


def check() -> None:
    """Raises again what a signal raised since `remember`, if there was one.

    Raises:
        KeyboardInterrupt: after SIGINT.
        SystemExit: after SIGTERM.
    """
    if signal.SIGTERM in _seen:
        sys.exit(EXIT_TERMINATED)
    if _seen:
        raise KeyboardInterrupt


def _on_signal(number: int, frame: Any) -> None:
    del frame
    _seen.append(number)
    check()
