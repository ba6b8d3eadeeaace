"""One run of a suite: a cell with a seed, trained by main.py in a process of its own.

A crash, an exhausted memory or a lost worker ends that process alone. It ends with this
one, however this one ends: the kernel kills it, and with it TFF's worker, which it ties
to itself in the same way.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Tuple

import attr

from experiments import suites
from experiments.budgets import Budget
from experiments.suites import Cell
from fl import files, libc, records
from fl.records import RecordError, RoundRecord
from fl.run_folder import RunFiles, depends_on_num_round, read_config
from flags.config import ExperimentConfig, declarations
from flags.errors import UsageError
from flags.parse import parse

MAIN = Path(__file__).parents[1] / "main.py"
POLL_SECONDS = 1.0
ENDING_SECONDS = 20.0
# Where a run's files lie is no part of what it is.
_PLACES = ("exp_name", "data_dir")

MISSING, PARTIAL, COMPLETE, DIFFERENT = "missing", "partial", "complete", "different"


@attr.frozen
class Job:
    """A run to be done.

    Attributes:
        cell: what is trained.
        seed: with which seed.
        budget: how much of it.
        results: the folder of all results.
        data_dir: see main.py's flag.
    """

    cell: Cell
    seed: int
    budget: Budget
    results: Path
    data_dir: str = ""

    @property
    def label(self) -> str:
        """For the user."""
        return f"{self.cell.path} seed {self.seed}"

    @property
    def files(self) -> RunFiles:
        """The folder of the run."""
        return RunFiles(self.results / self.cell.path / f"seed_{self.seed}")

    @property
    def budget_file(self) -> Path:
        """What share of the cell's training the run is."""
        return self.files.path.with_suffix(".budget.json")

    @property
    def log_file(self) -> Path:
        """What the run's process says."""
        return self.files.path.with_suffix(".log")

    @property
    def words(self) -> Tuple[str, ...]:
        """All flags of main.py."""
        places = (
            f"--seed={self.seed}",
            f"--out_dir={self.files.path.parent}",
            f"--exp_name={self.files.path.name}",
            *((f"--data_dir={self.data_dir}",) if self.data_dir else ()),
        )
        return (f"--flagfile={self.cell.flagfile}", *self.budget.words, *places)

    @property
    def config(self) -> ExperimentConfig:
        """What the flags resolve to."""
        return _config(self.words)


@attr.frozen
class State:
    """How far a run is.

    Attributes:
        kind: MISSING, PARTIAL, COMPLETE or DIFFERENT.
        rounds: rounds that are done.
        reason: for DIFFERENT, what lies in its place.
    """

    kind: str
    rounds: int = 0
    reason: str = ""


@functools.cache
def _config(words: Tuple[str, ...]) -> ExperimentConfig:
    return parse(words).config


def check_flagfile(cell: Cell) -> None:
    """Refuses a flagfile that is not what the table says.

    Raises:
        UsageError: if it is missing or differs.
    """
    try:
        found: Optional[str] = cell.flagfile.read_text(encoding="utf-8")
    except OSError:
        found = None
    if found != suites.flagfile_text(cell):
        what = "is missing" if found is None else "differs from the table of suites"
        raise UsageError(
            f"{cell.flagfile}: {what}; `python -m experiments.suites` writes it"
        )


def state(job: Job) -> State:
    """Looks how far a run is; a run of another configuration is never touched."""
    run = job.files
    if not run.config_file.exists():
        return State(MISSING)
    try:
        before = read_config(run.config_file)
    except UsageError as error:
        return State(DIFFERENT, reason=str(error))
    rounds = rounds_done(job)
    differing = _differing(before, job.config)
    grows = list(differing) == ["num_round"] and not depends_on_num_round(job.config)
    if grows and differing["num_round"] < job.config.num_round:
        if not any(run.checkpoints.glob("*")):
            return State(
                DIFFERENT,
                reason=f"a run of {rounds} rounds is complete there and its "
                "checkpoints are gone; choose another --out_dir",
            )
        return State(PARTIAL, rounds)
    if differing:
        found = "; ".join(
            f"--{name} was {value}, now {getattr(job.config, name)}"
            for name, value in differing.items()
        )
        reason = f"{run.path} holds another run ({found}); choose another --out_dir"
        return State(DIFFERENT, rounds, reason)
    return State(COMPLETE if run.summary_file.exists() else PARTIAL, rounds)


def _differing(before: Mapping[str, object], now: ExperimentConfig) -> Dict[str, int]:
    """The values that another run had, where a flag describes the run and differs."""
    names = [
        field.name
        for field in declarations()
        if field.metadata["describes_run"] and field.name not in _PLACES
    ]
    found: Dict[str, int] = {}
    for name in names:
        if name in before and before[name] != getattr(now, name):
            found[name] = before[name]  # type: ignore[assignment]
    return found


def rounds_done(job: Job) -> int:
    """Rounds that a run has recorded."""
    row = last_row(job)
    return row.round if row else 0


def last_row(job: Job) -> Optional[RoundRecord]:
    """The newest row of a run's metrics.csv, if there is one."""
    try:
        rows = records.read_rows(job.files.metrics_file, RoundRecord)
    except RecordError:
        return None
    return rows[-1] if rows else None


def test_accuracy(job: Job) -> float:
    """What a complete run found: the test accuracy at its best validation round."""
    summary = json.loads(job.files.summary_file.read_text(encoding="utf-8"))
    return float(summary["test_acc_at_best"])


def prepare(job: Job) -> None:
    """Writes down, before a run begins, what share of the training it is.

    Raises:
        UsageError: if the folder cannot be written.
    """
    try:
        files.write_json(
            job.budget_file,
            {
                "budget": job.budget.name,
                "factor": job.budget.factor,
                "flags": {k: str(v) for k, v in job.budget.flags.items()},
                "full": dict(job.budget.full),
            },
        )
    except OSError as error:
        raise UsageError(
            f"--out_dir: {job.budget_file.parent} cannot be written "
            f"({error.strerror}); name a folder that can"
        ) from None


def run(job: Job, tell: Callable[[], None]) -> Optional[str]:
    """Runs a job to its end; returns None, or why it failed.

    Args:
        job: a run that is missing or partial.
        tell: called every second or so while it runs.
    """
    words: List[str] = [sys.executable, str(MAIN), *job.words]
    if state(job).kind == PARTIAL:
        words.append("--resume")
    prepare(job)
    parent = os.getpid()
    with open(job.log_file, "ab") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the suite, which then ends the run.
            start_new_session=True,
            preexec_fn=lambda: libc.end_with(parent),
        )
        try:
            code = _wait(process, tell)
        finally:
            end(process)
    if code == 0 and state(job).kind == COMPLETE:
        return None
    return _failure(code, job.log_file)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a run's process, gently first; it is gone on return."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def clean(job: Job) -> None:
    """Removes what only a run that goes on needs: up to gigabytes with FixMatch."""
    for path in (job.files.checkpoints, job.files.client_states):
        shutil.rmtree(path, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], tell: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            tell()


def _failure(code: int, log_file: Path) -> str:
    """Why a run failed, in one line: the last thing it said, or how it ended."""
    text = log_file.read_text(encoding="utf-8", errors="replace")
    said = [line.strip() for line in text.splitlines() if line.strip()]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = said[-1] if said and code >= 0 else "killed, by whom is not known"
    return f"{how}: {last} (log: {log_file})"
