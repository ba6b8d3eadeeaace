"""What we ask of the C library, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from fl import libc

ROOT = Path(__file__).parents[2]
MEGABYTES = 20
BUFFERS = 8


def run(code: str, environment: Dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_one_whose_parent_is_gone_ends() -> None:
    """A child that is told of a parent that it does not have ends at once."""
    code = """
import os
from fl import libc
child = os.fork()
if child == 0:
    libc.end_with(1 if os.getppid() != 1 else 2)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code, {}) == "1"


COUNT_FAULTS = f"""
import resource
import sys
from fl import libc
if sys.argv[1:] == ["keep"]:
    libc.keep_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    buffers = [bytearray({MEGABYTES} * 2**20) for _ in range({BUFFERS})]

use()
before = faults()
use()
print(faults() - before)
"""


def faults(environment: Dict[str, str], keep: bool = False) -> int:
    code = COUNT_FAULTS.replace("sys.argv[1:]", repr(["keep"] if keep else []))
    return int(run(code, environment))


@pytest.mark.skipif(not hasattr(libc._LIBC, "mallopt"), reason="needs glibc's malloc")
def test_large_buffers_are_reused() -> None:
    """A fault is a page of 4 kB; a new buffer has one in each unless it is reused."""
    pages = BUFFERS * MEGABYTES * 256
    assert faults({}) > pages // 2
    assert faults({}, keep=True) < pages // 8
    assert faults(libc.keeping_memory()) < pages // 8


def test_a_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    assert libc.keeping_memory()["MALLOC_ARENA_MAX"] == "7"


def test_kept_memory_can_be_released() -> None:
    code = f"""
from fl import libc

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20

libc.keep_memory()
buffers = [bytearray(b"1") * ({MEGABYTES} * 2**20) for _ in range({BUFFERS})]
del buffers
kept = resident()
libc.release_memory()
print(kept - resident())
"""
    assert int(run(code, {})) > MEGABYTES * BUFFERS // 2
