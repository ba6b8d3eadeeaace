"""A network of its own for a process: only a loopback device, which no other has.

TFF's worker listens on every interface and runs whatever it is sent. Inside such a
network namespace nobody reaches it, neither other hosts nor other users of the machine.
Making one takes root or the right to make user namespaces; most systems grant the
latter to everyone, some containers and hardened systems to no one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

LOOPBACK = b"lo"

# From the kernel's headers.
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_INTERFACE_REQUEST = "16sh22x"

_LIBC = ctypes.CDLL(None, use_errno=True)


def enter_if_possible() -> bool:
    """Moves this process into a network of its own, where the system allows it."""
    if not is_possible():
        return False
    try:
        enter()
    except OSError:  # Others have taken the last of those that the system has.
        return False
    return True


def is_possible() -> bool:
    """Whether `enter` would work, tried in a child; this process stays where it is."""
    child = os.fork()
    if child == 0:
        try:
            enter()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def enter() -> None:
    """Moves this process into a new network namespace with its loopback device up.

    Sockets opened before stay in the old network. The process must have one thread.

    Raises:
        OSError: if the system does not allow it; some of it may be done by then.
    """
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _enter_as_user()
    _raise_loopback()


def _enter_as_user() -> None:
    """Whoever owns a user namespace may make network namespaces in it."""
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _unshare(flags: int) -> None:
    if _LIBC.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = struct.pack(_INTERFACE_REQUEST, LOOPBACK, 0)
        answer = fcntl.ioctl(device, _SIOCGIFFLAGS, request)
        flags = struct.unpack(_INTERFACE_REQUEST, answer)[1]
        request = struct.pack(_INTERFACE_REQUEST, LOOPBACK, flags | _IFF_UP)
        fcntl.ioctl(device, _SIOCSIFFLAGS, request)
