"""From runs to the figures of a table: which runs share a mean, and what it is worth.

Runs of one cell share a mean only where they had the same budget and the same number of
rounds. An entry shows the mean that stands on the most training; a figure is held
against the paper only where the runs are the cell's own experiment, to its end.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import attr

from experiments.results import Fault, Run, read_runs, strays
from experiments.suites import Cell, Entry, Suite

FULL, QUICK, OTHER = "full", "quick", "other"


@attr.frozen
class Result:
    """Runs of one cell, budget and length, and their mean.

    Attributes:
        runs: by seed; there is at least one, and no seed twice.
    """

    runs: Tuple[Run, ...]

    @property
    def figures(self) -> List[float]:
        """Test accuracies in per cent, of those runs that have one."""
        return [run.test_acc for run in self.runs if run.test_acc is not None]

    @property
    def mean(self) -> Optional[float]:
        """Their mean."""
        return math.fsum(self.figures) / len(self.figures) if self.figures else None

    @property
    def deviation(self) -> Optional[float]:
        """Their standard deviation, that of a sample; a single run has none."""
        return statistics.stdev(self.figures) if len(self.figures) > 1 else None

    @property
    def seeds(self) -> Tuple[int, ...]:
        """The seeds behind the mean."""
        return tuple(run.seed for run in self.runs if run.test_acc is not None)

    @property
    def without_figure(self) -> int:
        """How many runs have no finite test accuracy to count."""
        return len(self.runs) - len(self.figures)

    @property
    def first(self) -> Run:
        """Any of the runs, for what they have in common."""
        return self.runs[0]

    @property
    def is_comparable(self) -> bool:
        """Whether it may be held against the paper: full, and no run fell out."""
        return self.first.is_comparable and not self.without_figure

    @property
    def marks(self) -> Tuple[Tuple[str, str], ...]:
        """What keeps it from being the paper's experiment: kind and words of each."""
        run, marks = self.first, []
        if run.budget == QUICK:
            marks.append((QUICK, f"quick {fraction(run.factor or 0.0)}"))
        if run.budget == OTHER:
            marks.append((OTHER, "other settings"))
        if run.is_partial:
            marks.append(("partial", f"partial {run.rounds}/{run.num_round} rounds"))
        if self.without_figure:
            runs = f"{self.without_figure} of {len(self.runs)} runs"
            marks.append(("partial", f"{runs} without a figure"))
        return tuple(marks)

    @property
    def rank(self) -> Tuple[Any, ...]:
        """Greater for the result that is to be shown."""
        run = self.first
        return (run.is_comparable, run.share, len(self.figures), run.rounds)


@attr.frozen
class Line:
    """An entry of a table with its results.

    Attributes:
        entry: its place and the printed value.
        results: of its cell, the one to show first; may be none.
    """

    entry: Entry
    results: Tuple[Result, ...]

    @property
    def shown(self) -> Optional[Result]:
        """The result that stands in the table."""
        return self.results[0] if self.results else None

    @property
    def is_comparable(self) -> bool:
        """Whether ours may be held against what is printed."""
        return (
            self.entry.comparable
            and self.shown is not None
            and self.shown.is_comparable
        )

    @property
    def marks(self) -> Tuple[Tuple[str, str], ...]:
        """What keeps ours from being held against the paper's."""
        if self.shown is None:
            return ()
        other = ((OTHER, "printed for another setting"),)
        return self.shown.marks + (() if self.entry.comparable else other)

    @property
    def difference(self) -> Optional[float]:
        """Ours minus the paper's in points, where the two may be compared."""
        if not self.is_comparable or self.shown is None or self.entry.paper is None:
            return None
        return None if self.shown.mean is None else self.shown.mean - self.entry.paper

    @property
    def group(self) -> str:
        """The part of the suite that it is in."""
        return self.entry.address.partition("/")[0]


@attr.frozen
class Account:
    """All that is known of a suite.

    Attributes:
        suite: the suite.
        lines: an element an entry, in the order of the suite.
        repeats: runs left out, since a folder named earlier has the same one.
        faults: runs that could not be read.
    """

    suite: Suite
    lines: Tuple[Line, ...]
    repeats: Tuple[Run, ...]
    faults: Tuple[Fault, ...]

    @property
    def results(self) -> Tuple[Result, ...]:
        """Every result once."""
        every = [result for line in self.lines for result in line.results]
        return tuple({id(result): result for result in every}.values())

    @property
    def runs(self) -> Tuple[Run, ...]:
        """Every run once, those left out last."""
        return (*(run for r in self.results for run in r.runs), *self.repeats)

    @property
    def has_runs(self) -> bool:
        """Whether there is anything but the paper's values."""
        return bool(self.runs or self.faults)

    @property
    def groups(self) -> Mapping[str, Tuple[Line, ...]]:
        """The lines by group, in order."""
        groups: Dict[str, List[Line]] = {}
        for line in self.lines:
            groups.setdefault(line.group, []).append(line)
        return {group: tuple(lines) for group, lines in groups.items()}


def account(suite: Suite, folders: Sequence[Path], known: Collection[str]) -> Account:
    """Reads all runs of a suite's cells and reckons their means.

    Args:
        suite: the suite.
        folders: the folders of results.
        known: paths of the cells that there are; another in their place is a fault.
    """
    results: Dict[Cell, Tuple[Result, ...]] = {}
    repeats: List[Run] = []
    faults: List[Fault] = []
    for cell in suite.cells:
        runs, broken = read_runs(folders, cell)
        kept, again = _without_repeats(runs)
        results[cell] = _results(kept)
        repeats.extend(again)
        faults.extend(broken)
    for folder in folders:
        faults.extend(strays(folder, suite.name, known))
    lines = tuple(Line(entry, results[entry.cell]) for entry in suite.entries)
    return Account(suite, lines, tuple(repeats), tuple(faults))


def fraction(share: float) -> str:
    """`1/50` for 0.02: how much of a whole a share is."""
    inverse = 1.0 / share
    return f"1/{inverse:.0f}" if inverse >= 10.0 else f"1/{inverse:.2g}"


def _without_repeats(runs: Sequence[Run]) -> Tuple[List[Run], List[Run]]:
    """A seed counts once in a mean, however many folders have it."""
    kept: Dict[Tuple[Any, ...], Run] = {}
    again = []
    for run in runs:
        if kept.setdefault((run.seed, run.key), run) is not run:
            again.append(run)
    return list(kept.values()), again


def _results(runs: Sequence[Run]) -> Tuple[Result, ...]:
    sets: Dict[Tuple[Any, ...], List[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        sets.setdefault(run.key, []).append(run)
    found = [Result(tuple(members)) for _, members in sorted(sets.items())]
    return tuple(sorted(found, key=lambda result: result.rank, reverse=True))
