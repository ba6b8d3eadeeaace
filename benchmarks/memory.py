"""How much memory runs take: whether it stays flat, and how it grows.

    python -m benchmarks.memory [flat] [clients] [active] [--rounds=60] [flags of main]

Each part is a run of main.py, watched from outside: the resident memory of the program
and of TFF's worker.

* flat: digits; the growth from round 10 to round 60, each the median over it and the
  nine rounds after it. It should stay under 3 %.
* clients: CIFAR-10 dealt to 100 and to 1,000 clients of 50 images, five runs of each in
  turn, as their peaks differ by up to 100 MB from run to run; the difference of the
  mean peaks should stay under 100 MB.
* active: CIFAR-10 with 30 active clients a round; the peak should stay under 8 GB.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

import attr

from benchmarks import program
from flags.errors import UsageError
from flags.parse import parse

PARTS = ("flat", "clients", "active")
FIRST_ROUND = 10
WINDOW = 10
CLIENTS_RUNS = 5
POLL_SECONDS = 0.2
MEGABYTE = 1e6
SMALL_CLIENTS = (
    "--dataset=cifar10",
    "--num_label=3",
    "--num_unlabel=20",
    "--q_unlabel=20",
    "--local_episode=1",
    "--num_round=2",
)
MANY_ACTIVE = (
    "--dataset=cifar10",
    "--num_active_client=30",
    "--local_episode=1",
    "--num_round=2",
    "--optimizer_state=fresh",
)


@attr.frozen
class Sample:
    """Resident bytes at a moment, after so many rounds."""

    rounds: int
    program: int
    worker: int

    @property
    def both(self) -> int:
        """The two together."""
        return self.program + self.worker


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    return program.run("memory", argv, {"rounds": 60}, _measure)


def _measure(numbers: Mapping[str, int], words: Sequence[str]) -> Iterator[str]:
    parts, flags = program.split_parts(words, PARTS)
    parse(flags)
    for part in parts:
        yield from _run_part(part, numbers["rounds"], flags)


def _run_part(part: str, rounds: int, flags: Sequence[str]) -> List[str]:
    if part == "flat":
        # One more, for what a run does at its very end takes memory of its own.
        count = rounds + WINDOW + 1
        return flat_lines(watch([f"--num_round={count}", *flags]), rounds)
    if part == "clients":
        peaks: Dict[int, List[int]] = {100: [], 1000: []}
        for _ in range(CLIENTS_RUNS):
            for count, found in peaks.items():
                words = [*SMALL_CLIENTS, f"--num_client={count}", *flags]
                found.append(peak(watch(words)))
        return clients_lines(peaks)
    most = peak(watch([*MANY_ACTIVE, *flags]))
    return [f"active: 30 clients a round, peak {most / 1e9:.2f} GB (under 8 wanted)"]


def watch(words: Sequence[str]) -> List[Sample]:
    """Runs main.py with these flags and samples its memory until it ends.

    Raises:
        UsageError: with what it said, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "main.py", *words, f"--out_dir={folder}"]
        with log.open("wb") as file:
            run = subprocess.Popen(
                [*command, "--exp_name=run"], stdout=file, stderr=subprocess.STDOUT
            )
            samples = []
            while run.poll() is None:
                samples.append(_sample(run.pid, Path(folder, "run", "metrics.csv")))
                time.sleep(POLL_SECONDS)
        if run.returncode:
            raise UsageError(f"main.py failed: {log.read_text().strip()[-500:]}")
    return samples


def _sample(pid: int, metrics: Path) -> Sample:
    try:
        rounds = max(metrics.read_text().count("\n") - 1, 0)
    except OSError:
        rounds = 0
    sizes = resident_bytes(pid)
    worker = sum(size for name, size in sizes if name.startswith("worker_binary"))
    return Sample(rounds, sum(size for _, size in sizes) - worker, worker)


def resident_bytes(pid: int) -> List[Tuple[str, int]]:
    """Name and resident bytes of a process and of all that descend from it."""
    parents: Dict[int, int] = {}
    found: Dict[int, Tuple[str, int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(
                line.split(":", 1) for line in status.read_text().splitlines()
            )
        except OSError:  # It has ended meanwhile.
            continue
        number = int(status.parent.name)
        parents[number] = int(fields["PPid"])
        kilobytes = int(fields.get("VmRSS", "0 kB").split()[0])
        found[number] = (fields["Name"].strip(), 1024 * kilobytes)
    return [found[p] for p in found if _descends(p, pid, parents)]


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid != ancestor and pid in parents:
        pid = parents[pid]
    return pid == ancestor


def peak(samples: Sequence[Sample]) -> int:
    """The most that both took together."""
    return max(sample.both for sample in samples)


def flat_lines(samples: Sequence[Sample], last: int) -> List[str]:
    """Growth of each process, and of both, from round 10 to round `last`.

    A process's size swings from moment to moment: each end is a median over ten rounds.
    """
    first = min(FIRST_ROUND, last)
    lines = [f"flat: resident memory from round {first} to round {last}"]
    for name in ("program", "worker", "both"):
        before, after = (
            statistics.median(
                getattr(s, name) for s in samples if 0 <= s.rounds - start < WINDOW
            )
            for start in (first, last)
        )
        growth = 100 * (after - before) / before
        lines.append(
            f"  {name:8} {before / MEGABYTE:7.0f} MB -> {after / MEGABYTE:7.0f} MB  "
            f"{growth:+.1f} % (under 3 wanted)"
        )
    return lines


def clients_lines(peaks: Mapping[int, Sequence[int]]) -> List[str]:
    """Mean peaks by number of clients, and their difference."""
    few, many = min(peaks), max(peaks)
    low, high = (statistics.mean(peaks[count]) / MEGABYTE for count in (few, many))
    return [
        f"clients: peak {low:.0f} MB with {few}, {high:.0f} MB with {many}: "
        f"{high - low:+.0f} MB (under 100 wanted)"
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
