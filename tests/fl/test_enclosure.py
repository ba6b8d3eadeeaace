"""A network namespace, entered by a child of ours, as root and as anyone."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from pathlib import Path
from typing import Callable

import pytest

from fl import enclosure

NOBODY = 65534
FAILED = 255
PR_SET_DUMPABLE = 4


def in_child(action: Callable[[], bool], user: int) -> bool:
    """Whether an action says yes in a child that belongs to that user."""
    child = os.fork()
    if child == 0:
        result = FAILED
        try:
            if user != os.geteuid():
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                # As if started by that user: one who was root before is not trusted.
                ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
            result = 0 if action() else 1
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
    if not in_child(enclosure.is_possible, user):
        pytest.skip("this system allows no network namespace to this user")
    assert in_child(is_enclosed, user)


def test_asking_whether_it_is_possible_changes_nothing() -> None:
    before = os.readlink("/proc/self/ns/net")
    enclosure.is_possible()
    assert os.readlink("/proc/self/ns/net") == before


def test_a_socket_opened_before_stays_outside() -> None:
    if not enclosure.is_possible():
        pytest.skip("this system allows no network namespace")
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
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_whose_parent_is_gone_ends() -> None:
    child = os.fork()
    if child == 0:
        enclosure.end_with(1 if os.getppid() != 1 else 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
