"""Runs the cells of a suite: what is missing, one after the other, each resumable.

    python -m experiments.run SUITE [SUITE ...] [--only=PATTERN,...] [--seeds=N]
        [--budget=full|quick] [--rounds=R] [--out_dir=results/full] [--data_dir=FOLDER]
        [--dry_run] [--list] [--keep_checkpoints]

    python -m experiments.run main --only=svhn_iid --seeds=3
    python -m experiments.run all --budget=quick --dry_run

It first says how long it will take on this machine (`experiments.timing`) and then runs
main.py for every cell and seed that is not complete, all cells with the first seed
before the second. A run that fails does not end the suite: it is listed at the end, and
the exit code is 1. Ctrl-C ends the run under way, which loses at most a round; the same
command goes on from there.

--only takes groups (svhn_iid), names (fedavg) or both (svhn_iid/fedavg), with * and ?
as in the shell; a word that is none of these selects all cells that contain it. A cell
that stands in two suites or columns is one run. --budget=quick cuts rounds, clients and
unlabelled images (`experiments.budgets`); its results lie apart and say so.

A run's folder is <out_dir>/<suite>/<group>/<cell>/seed_<seed>, its log and the share of
the full training that it is beside it. Checkpoints and what clients keep are removed
when a run is complete, as they take up to gigabytes; --keep_checkpoints keeps them.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import attr
from tqdm import tqdm

from experiments import jobs, suites, timing
from experiments.budgets import BUDGETS, budget_for
from experiments.jobs import COMPLETE, DIFFERENT, MISSING, PARTIAL, Job, State
from experiments.suites import Cell, Entry, Suite
from experiments.timing import Estimate
from fl import signals
from fl.progress import duration, write_line
from flags import paths
from flags.arguments import ArgumentParser, at_least_one
from flags.errors import UsageError

FIRST_SEED = 1000
ALL = "all"
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@attr.frozen
class Task:
    """A job, how far it is, and how long it will take."""

    job: Job
    state: State
    estimate: Estimate

    @property
    def is_due(self) -> bool:
        """Whether it is to be run."""
        return self.state.kind in (MISSING, PARTIAL)


@attr.frozen
class Ended:
    """A job that was run, or could not be.

    Attributes:
        job: the job.
        seconds: how long it took.
        failure: why it failed; None if it is complete.
    """

    job: Job
    seconds: float
    failure: Optional[str]


def main(argv: Sequence[str], known: Mapping[str, Suite] = suites.SUITES) -> int:
    """Runs the program; returns its exit code.

    Args:
        argv: the command line without the program's name.
        known: the suites by name.
    """
    signals.remember()
    try:
        arguments = _parser(known).parse_args(argv)
        _check(arguments, known)
        entries = select(_chosen(arguments.suite, known), arguments.only)
        if arguments.list:
            return _list(entries)
        made = make_jobs(entries, arguments)
        tasks = make_tasks(made)
        for line in plan_lines(tasks):
            write_line(line)
        if arguments.dry_run:
            return 0
        return run_all(tasks, keep_checkpoints=arguments.keep_checkpoints)
    except UsageError as error:
        sys.stderr.write(f"run: error: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def select(chosen: Sequence[Suite], only: str) -> List[Tuple[Suite, Entry]]:
    """The entries of some suites that `--only` asks for; all if it is empty.

    Raises:
        UsageError: if a pattern selects nothing.
    """
    entries = [(suite, entry) for suite in chosen for entry in suite.entries]
    patterns = [pattern for pattern in only.split(",") if pattern]
    if not patterns:
        return entries
    wanted: List[Entry] = []
    for pattern in patterns:
        found = _matching(entries, pattern)
        if not found:
            names = ", ".join(suite.name for suite in chosen)
            raise UsageError(
                f"--only: found '{pattern}', which is in no cell of {names}; "
                "--list shows them"
            )
        wanted.extend(found)
    return [(suite, entry) for suite, entry in entries if entry in wanted]


def _matching(entries: Sequence[Tuple[Suite, Entry]], pattern: str) -> List[Entry]:
    """Those a pattern names exactly or as a glob, or else those that contain it."""

    def names(suite: Suite, entry: Entry) -> Tuple[str, ...]:
        whole = f"{suite.name}/{entry.address}"
        return (whole, entry.address, *entry.address.split("/"), entry.cell.path)

    exact = [
        entry
        for suite, entry in entries
        if any(fnmatch.fnmatchcase(name, pattern) for name in names(suite, entry))
    ]
    return exact or [
        entry
        for suite, entry in entries
        if any(pattern in name for name in names(suite, entry))
    ]


def make_jobs(
    entries: Sequence[Tuple[Suite, Entry]], arguments: argparse.Namespace
) -> List[Job]:
    """One job a cell and seed, seed by seed.

    Raises:
        UsageError: if a flagfile is not as the table says.
    """
    results = arguments.out_dir or Path("results") / arguments.budget
    cells: List[Cell] = list(dict.fromkeys(entry.cell for _, entry in entries))
    for cell in cells:
        jobs.check_flagfile(cell)
    budgets = {c: budget_for(c, arguments.budget, arguments.rounds) for c in cells}
    return [
        Job(cell, seed, budgets[cell], results, arguments.data_dir)
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        for cell in cells
    ]


def make_tasks(made: Sequence[Job]) -> List[Task]:
    """Looks how far each job is and how long it will take.

    Networks are timed only where no run of the same cell has told its pace.
    """
    looked_at = [(job, jobs.state(job)) for job in made]
    paces = _measured_paces(looked_at)
    networks = [
        timing.network(job.config)
        for job, state in looked_at
        if state.kind in (MISSING, PARTIAL) and paces[job.cell] is None
    ]
    distinct = list(dict.fromkeys(networks))
    if distinct:
        write_line(f"timing some steps of {len(distinct)} network(s) on this machine")
    timed = timing.calibrate(distinct)
    return [
        Task(
            job,
            state,
            timing.estimate(job.config, state.rounds, paces[job.cell], timed),
        )
        for job, state in looked_at
    ]


def _measured_paces(
    looked_at: Sequence[Tuple[Job, State]],
) -> Dict[Cell, Optional[float]]:
    """For each cell, the seconds of a pass in its runs with any of the seeds."""
    metrics: Dict[Cell, List[Path]] = {job.cell: [] for job, _ in looked_at}
    for job, state in looked_at:
        if state.kind in (PARTIAL, COMPLETE):
            metrics[job.cell].append(job.files.metrics_file)
    configs = {job.cell: job.config for job, _ in looked_at}
    return {c: timing.measured_pace(configs[c], metrics[c]) for c in configs}


def plan_lines(tasks: Sequence[Task]) -> List[str]:
    """What will be run, cell by cell, and how long it will take."""
    by_cell: Dict[Cell, List[Task]] = {}
    for task in tasks:
        by_cell.setdefault(task.job.cell, []).append(task)
    width = max(len(cell.path) for cell in by_cell)
    lines = [
        f"{'cell':{width}}  missing  partial  complete  one run   all due  told from"
    ]
    lines.extend(_plan_line(cell, width, mine) for cell, mine in by_cell.items())
    due = [task for task in tasks if task.is_due]
    budget = tasks[0].job.budget.name
    lines.append(
        f"in all {len(due)} runs to do (budget {budget}), about {_total(due)} on this "
        f"machine; {_count(tasks, COMPLETE)} complete; results in "
        f"{tasks[0].job.results}"
    )
    lines.extend(task.state.reason for task in tasks if task.state.kind == DIFFERENT)
    return lines


def _plan_line(cell: Cell, width: int, tasks: Sequence[Task]) -> str:
    due = [task for task in tasks if task.is_due]
    counts = [_count(tasks, kind) for kind in (MISSING, PARTIAL, COMPLETE)]
    one = _total(due[:1]) if due else "-"
    basis = due[0].estimate.basis if due else ""
    return (
        f"{cell.path:{width}}  {counts[0]:7d}  {counts[1]:7d}  {counts[2]:8d}  "
        f"{one:>7}  {_total(due) if due else '-':>8}  {basis}"
    ).rstrip()


def _count(tasks: Sequence[Task], kind: str) -> int:
    return sum(task.state.kind == kind for task in tasks)


def _total(tasks: Sequence[Task]) -> str:
    seconds = _known_seconds(tasks)
    return "unknown" if seconds is None else duration(seconds)


def _known_seconds(tasks: Sequence[Task]) -> Optional[float]:
    each = [task.estimate.seconds for task in tasks]
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def run_all(tasks: Sequence[Task], keep_checkpoints: bool = False) -> int:
    """Runs what is due, goes on past failures, and tells of both; the exit code."""
    due = [task for task in tasks if task.is_due]
    ended = [
        Ended(task.job, 0.0, task.state.reason)
        for task in tasks
        if task.state.kind == DIFFERENT
    ]
    code = 0
    with RunsProgress(due) as progress:
        try:
            for task in due:
                ended.append(_run_one(task, progress, keep_checkpoints))
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except SystemExit as asked:
            code = int(asked.code or 0)
    for line in _closing_lines(ended, due, interrupted=code != 0):
        write_line(line)
    return code or (EXIT_FAILURE if any(each.failure for each in ended) else 0)


def _run_one(task: Task, progress: RunsProgress, keep_checkpoints: bool) -> Ended:
    job = task.job
    progress.begin(task)
    began = time.monotonic()
    try:
        failure = jobs.run(job, lambda: progress.tell(jobs.last_row(job)))
    except (UsageError, OSError) as error:  # A full disk, say: others may have room.
        failure = str(error)
    ended = Ended(job, time.monotonic() - began, failure)
    if failure is None and not keep_checkpoints:
        jobs.clean(job)
    progress.end(ended)
    return ended


def _closing_lines(
    ended: Sequence[Ended], due: Sequence[Task], interrupted: bool
) -> List[str]:
    done = [each for each in ended if each.failure is None]
    failed = [each for each in ended if each.failure is not None]
    lines = []
    if interrupted:
        lines.append("interrupted; the same command goes on from here. Finished:")
        lines.extend(f"  {each.job.label}" for each in done)
    lines.append(f"{len(done)} of {len(due)} runs finished, {len(failed)} failed")
    lines.extend(f"  failed: {each.job.label}: {each.failure}" for each in failed)
    return lines


class RunsProgress:
    """A bar over runs on a terminal, plain lines elsewhere."""

    def __init__(self, due: Sequence[Task]):
        """Starts before the first run.

        Args:
            due: the runs to come, in order.
        """
        self._due = list(due)
        self._number = 0
        self._task: Optional[Task] = None
        self._began = time.monotonic()
        self._bar: Optional[tqdm] = None
        if due and sys.stdout.isatty() and sys.stderr.isatty():
            self._bar = tqdm(total=len(due), unit="run")

    def __enter__(self) -> RunsProgress:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin(self, task: Task) -> None:
        """A run begins."""
        self._task, self._number = task, self._number + 1
        self._began = time.monotonic()
        if self._bar is None:
            verb = "resuming" if task.state.kind == PARTIAL else "running"
            write_line(
                f"[{self._number}/{len(self._due)}] {verb} {task.job.label}, about "
                f"{_total([task])}"
            )
        self.tell(None)

    def tell(self, row: Any) -> None:
        """Shows the run under way and its last round."""
        if self._bar is None or self._task is None:
            return
        job = self._task.job
        rounds = row.round if row else self._task.state.rounds
        text = f"{job.label}, round {rounds}/{job.config.num_round}"
        left = _known_seconds(self._due[self._number - 1 :])
        if left is not None:
            passed = time.monotonic() - self._began
            text += f", about {duration(max(left - passed, 0.0))} left"
        self._bar.set_postfix_str(text)

    def end(self, ended: Ended) -> None:
        """A run has ended."""
        what = "done" if ended.failure is None else f"FAILED, {ended.failure}"
        if ended.failure is None:
            what += f", test acc {jobs.test_accuracy(ended.job):.3f}"
        line = f"{ended.job.label}: {what} ({duration(ended.seconds)})"
        if self._bar is None:
            write_line(f"  {line}")
            return
        self._bar.write(line)
        self._bar.update()


def _check(arguments: argparse.Namespace, known: Mapping[str, Suite]) -> None:
    choices = f"{', '.join(known)} or {ALL}"
    for name in arguments.suite:
        if name not in (*known, ALL):
            raise UsageError(f"found suite '{name}', must be one of {choices}")
    if not arguments.suite and not arguments.list:
        raise UsageError(f"found no suite; give one of {choices}")
    if arguments.out_dir and arguments.out_dir.is_file():
        raise UsageError(f"--out_dir: found a file at {arguments.out_dir}, no folder")
    if arguments.rounds and arguments.budget != "quick":
        raise UsageError(
            f"--rounds: found {arguments.rounds} with --budget={arguments.budget}, "
            "which has all rounds of the paper; --budget=quick takes it"
        )


def _chosen(names: Sequence[str], known: Mapping[str, Suite]) -> List[Suite]:
    if not names or ALL in names:
        return list(known.values())
    return [known[name] for name in dict.fromkeys(names)]


def _list(entries: Sequence[Tuple[Suite, Entry]]) -> int:
    """Names suites and their cells; where a cell is another's, whose."""
    for suite in dict.fromkeys(suite for suite, _ in entries):
        write_line(f"{suite.name}: {suite.title}")
        for entry in (entry for of, entry in entries if of is suite):
            own = entry.cell.path == f"{suite.name}/{entry.address}"
            same = "" if own else f"  = {entry.cell.path}"
            write_line(f"  {entry.address}{same}")
    return 0


def _parser(known: Mapping[str, Suite]) -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m experiments.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(known)
    parser.add_argument("suite", nargs="*", help=f"{names} or {ALL}")
    parser.add_argument("--only", default="", help="groups or cells, comma separated")
    parser.add_argument(
        "--seeds", type=at_least_one, default=1, help="how many, from 1000"
    )
    parser.add_argument("--budget", choices=BUDGETS, default="full")
    parser.add_argument("--rounds", type=at_least_one, help="with --budget=quick")
    parser.add_argument(
        "--out_dir",
        type=functools.partial(paths.expand, "out_dir"),
        help="default: results/<budget>",
    )
    parser.add_argument("--data_dir", default="", help="as for main.py")
    parser.add_argument(
        "--dry_run", action="store_true", help="say what would run and how long"
    )
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument(
        "--keep_checkpoints", action="store_true", help="also of complete runs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
