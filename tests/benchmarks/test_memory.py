"""How memory is read and told; no run of any length."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import memory
from benchmarks.memory import Sample
from flags.errors import UsageError


def test_reads_a_process_and_what_descends_from_it() -> None:
    """A shell (kept alive by the command after it) with a child of its own."""
    code = (
        "import time; x = bytearray(50_000_000); print('up', flush=True); "
        "time.sleep(60)"
    )
    child = subprocess.Popen(
        ["sh", "-c", f'{sys.executable} -c "{code}"; true'], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        sizes = memory.resident_bytes(child.pid)
    finally:
        subprocess.run(["pkill", "-P", str(child.pid)], check=True)
        child.wait()
    assert len(sizes) == 2
    assert 50e6 < sum(size for _, size in sizes) < 200e6


def test_growth_is_from_round_ten_to_the_round_asked_for() -> None:
    """Largest of each: program 100 -> 103, worker 200 -> 190; 9 and 13 are out."""
    million = 10**6
    samples = [
        Sample(9, 500 * million, 500 * million),
        Sample(10, 90 * million, 200 * million),
        Sample(10, 100 * million, 150 * million),
        Sample(12, 103 * million, 190 * million),
        Sample(13, 500 * million, 500 * million),
    ]
    title, program, worker = memory.flat_lines(samples, 12)
    assert title.endswith("from round 10 to round 12")
    assert "100 MB" in program
    assert "+3.0 %" in program
    assert "-5.0 %" in worker
    assert memory.peak(samples) == 1000 * million


def test_many_clients_are_told_as_a_difference() -> None:
    (line,) = memory.clients_lines({100: 2 * 10**9, 1000: 2_050_000_000})
    assert "2000 MB with 100, 2050 MB with 1000: +50 MB" in line


def test_a_run_that_fails_is_an_error() -> None:
    with pytest.raises(UsageError, match="num_client: found -1"):
        memory.watch(["--num_client=-1"])
