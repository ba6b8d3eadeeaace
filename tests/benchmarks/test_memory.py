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


def test_growth_is_between_the_medians_of_ten_rounds() -> None:
    """From rounds 10 to 19 to rounds 30 to 39: program 100 -> 103, worker 200 -> 190.

    One moment in each window, and what is outside of both, says nothing.
    """
    million = 10**6
    first = [Sample(n, 100 * million, 200 * million) for n in range(10, 20)]
    last = [Sample(n, 103 * million, 190 * million) for n in range(30, 40)]
    odd = [Sample(n, 500 * million, 500 * million) for n in (9, 15, 20, 35, 40)]
    samples = [*first, *last, *odd]
    title, program, worker, both = memory.flat_lines(samples, 30)
    assert title.endswith("from round 10 to round 30")
    assert "100 MB" in program
    assert "+3.0 %" in program
    assert "-5.0 %" in worker
    assert "-2.3 %" in both
    assert memory.peak(samples) == 1000 * million


def test_many_clients_are_told_as_a_difference_of_means() -> None:
    peaks = {100: [1_990_000_000, 2_010_000_000], 1000: [2_050_000_000]}
    (line,) = memory.clients_lines(peaks)
    assert "2000 MB with 100, 2050 MB with 1000: +50 MB" in line


def test_a_run_that_fails_is_an_error() -> None:
    with pytest.raises(UsageError, match="num_client: found -1"):
        memory.watch(["--num_client=-1"])
