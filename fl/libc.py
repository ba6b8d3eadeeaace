"""What we ask of the C library: a process that ends with its parent, memory kept."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Dict

# From the kernel's and glibc's headers.
_PR_SET_PDEATHSIG = 1
_TRIM_THRESHOLD = "MALLOC_TRIM_THRESHOLD_", -1
_TOP_PAD = "MALLOC_TOP_PAD_", -2
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", -3
_ARENA_MAX = "MALLOC_ARENA_MAX", -8

# glibc hands memory back to the kernel as soon as some tens of megabytes are free, and
# the next buffers cost page faults all over; it also keeps a heap per thread, each with
# its own holes. So: a single heap, which is not given back by itself; the program has
# it given back once a round (`fl.garbage`), a worker never. Buffers of more than 24 MB,
# such as messages (ResNet8's weights take 26), stay apart: the holes that they leave
# would let the heap grow.
_KEEPING = {
    _ARENA_MAX: 1,
    _MMAP_THRESHOLD: 3 * 2**23,
    _TRIM_THRESHOLD: 2**31 - 1,
    _TOP_PAD: 2**26,
}

_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """Has the kernel end this process when its parent's thread that made it ends.

    To be called after `enclosure.enter`, which may undo it.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the tie was made.
        os._exit(1)


def keep_memory() -> None:
    """Has this process keep the memory that it frees, for its next large buffers.

    What a user set by the environment stays.
    """
    if hasattr(_LIBC, "mallopt"):
        for (name, number), value in _KEEPING.items():
            if name not in os.environ:
                _LIBC.mallopt(number, value)


def release_memory() -> None:
    """Gives the pages of this process's heap that are free to the kernel, this once."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def keeping_memory() -> Dict[str, str]:
    """An environment in which a process does so."""
    chosen = {name: str(value) for (name, _), value in _KEEPING.items()}
    return {**chosen, **os.environ}
