"""A network namespace, entered by a child of ours, as root and as anyone."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fl import enclosure

NOBODY = 65534
PR_SET_DUMPABLE = 4


def in_child(question: str, user: int) -> bool:
    """Whether a function here says yes in a process that belongs to that user.

    A new process: this one may have threads, and a fork of those is not to be trusted.
    """
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    code = (
        f"import sys; sys.path[:0] = {folders!r}; import test_enclosure as here; "
        f"here.become({user}); sys.exit(0 if here.{question}() else 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode in (0, 1)
    return done.returncode == 0


def become(user: int) -> None:
    """Turns this process into one of that user."""
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        # As if started by that user: one who was root before is not trusted.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)


def is_possible() -> bool:
    """See `enclosure`."""
    return enclosure.is_possible()


def is_enclosed() -> bool:
    """Enters, and looks round: only a loopback device, and that one works."""
    user, before = os.geteuid(), os.readlink("/proc/self/ns/net")
    enclosure.enter()
    devices = re.findall(
        r"^ *(\w+):", Path("/proc/self/net/dev").read_text(), re.MULTILINE
    )
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
    moved = os.readlink("/proc/self/ns/net") != before
    return moved and devices == ["lo"] and os.geteuid() == user


def users() -> list[int]:
    return [os.geteuid(), NOBODY] if os.geteuid() == 0 else [os.geteuid()]


@pytest.mark.parametrize("user", users())
def test_nothing_but_the_loopback_device_is_inside(user: int) -> None:
    if not in_child("is_possible", user):
        pytest.skip("this system allows no network namespace to this user")
    assert in_child("is_enclosed", user)


def asking_changes_nothing() -> bool:
    """Where this process is, before and after the question."""
    before = os.readlink("/proc/self/ns/net")
    enclosure.is_possible()
    return os.readlink("/proc/self/ns/net") == before


def test_asking_whether_it_is_possible_changes_nothing() -> None:
    assert in_child("asking_changes_nothing", os.geteuid())


def socket_stays_outside() -> bool:
    """A child with a socket from before is reached from outside."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        child = os.fork()
        if child == 0:
            enclosure.enter()
            try:
                server.accept()[0].close()
                os._exit(0)
            finally:
                os._exit(1)
        socket.create_connection(server.getsockname(), timeout=10).close()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_socket_opened_before_stays_outside() -> None:
    if not in_child("is_possible", os.geteuid()):
        pytest.skip("this system allows no network namespace")
    assert in_child("socket_stays_outside", os.geteuid())


def test_an_enclosure_taken_by_others_in_between_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system has a number of them; somebody got the last after the trial."""

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "none left")

    monkeypatch.setattr(enclosure, "is_possible", lambda: True)
    monkeypatch.setattr(enclosure, "enter", refuse)
    assert not enclosure.enter_if_possible()
