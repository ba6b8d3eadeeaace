"""Reads result files of the authors' program, and runs of ours, as the same thing.

Their program leaves three files a run in its folder `result`, named
`<exp_name>_<YYYYmmdd HHMM>_` with `train_acc`, `val_acc` or `test_acc` (in old editions
without the time): lines `round,accuracy,loss`, no header. It evaluates from round 101
on and tests only where validation improved. `summary` has a line a run. Both programs
count rounds from 1.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import attr

from fl.records import RecordError, RoundRecord, best_round, read_rows
from fl.run_folder import RunFiles
from flags.errors import UsageError

PARTS = {"train": "training", "val": "validation", "test": "test"}
# Their training accuracy is a mean in float32 and may exceed 1 by a rounding.
LARGEST_ACCURACY = 1.001
_SHOWN_CHARACTERS = 60
_FILE_NAME = re.compile(r"(.+?)(?:_(\d{8} \d{4}))?_(?:train|val|test)_acc")
# Name, time, data set, model, round, validation, test; old editions end no line.
_SUMMARY = re.compile(
    r"expname: (.*?), time: (.*?), dataset: (.*?), model: (.*?), maxround: (\d+), "
    r"maxval: (\d+\.\d{6}), maxtest: (\d+\.\d{6})"
)
_SUMMARY_STEP = 1e-6


@attr.frozen
class Point:
    """A round's accuracy, a share from 0 to 1, and loss on one part of the data."""

    accuracy: float
    loss: Optional[float]


Curve = Mapping[int, Point]


@attr.frozen
class Run:
    """A run of either program.

    Attributes:
        label: what to call it.
        curves: for `train`, `val` and `test` the points by round.
    """

    label: str
    curves: Mapping[str, Curve]

    @property
    def best(self) -> Optional[int]:
        """The first round of the greatest validation accuracy."""
        rows = [
            RoundRecord(round=number, val_acc=point.accuracy)
            for number, point in self.curves["val"].items()
        ]
        found = best_round(rows)
        return None if found is None else found.round

    def accuracy(self, part: str, number: Optional[int]) -> Optional[float]:
        """The accuracy of a round, if there is one."""
        point = self.curves[part].get(number) if number is not None else None
        return None if point is None else point.accuracy


@attr.frozen
class Joined:
    """A round that both programs have: ours and theirs."""

    part: str
    round: int
    theirs: Point
    ours: Point

    @property
    def accuracy(self) -> float:
        """Ours minus theirs."""
        return self.ours.accuracy - self.theirs.accuracy

    @property
    def loss(self) -> Optional[float]:
        """Ours minus theirs."""
        ours, theirs = self.ours.loss, self.theirs.loss
        return None if ours is None or theirs is None else ours - theirs


@attr.frozen(order=True)
class Title:
    """Their name of a run; `time` is empty where the files have none.

    Titles are ordered by time.
    """

    time: str
    exp_name: str

    def __str__(self) -> str:
        return f"{self.exp_name}, {self.time}" if self.time else self.exp_name

    def file_name(self, part: str) -> str:
        """The name of the file for a part of the data."""
        return "_".join(filter(None, (self.exp_name, self.time, part, "acc")))


@attr.frozen
class Summary:
    """What their file `summary` says of a run."""

    dataset: str
    model: str
    round: int
    val: float
    test: float

    def agrees_with(self, run: Run) -> bool:
        """Whether the run's files have the same best round and accuracies."""
        if run.best is None:
            return self.round == 0
        found = [run.accuracy(part, run.best) for part in ("val", "test")]
        return self.round == run.best and all(
            value is not None and abs(value - said) < _SUMMARY_STEP
            for value, said in zip(found, (self.val, self.test))
        )


def find_theirs(folder: Path, exp_name: Optional[str]) -> List[Title]:
    """Their runs in a folder, of a name if one is given; the newest last.

    Raises:
        UsageError: if there is no such folder, run or name.
    """
    if not folder.is_dir():
        found = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"--theirs: {folder} {found}; name their folder of results")
    matches = [_FILE_NAME.fullmatch(path.name) for path in folder.iterdir()]
    titles = {Title(m.group(2) or "", m.group(1)) for m in matches if m}
    if not titles:
        raise UsageError(
            f"--theirs: found no file <exp_name>_<time>_val_acc in {folder}; name "
            "their folder of results"
        )
    named = sorted(t for t in titles if exp_name in (None, t.exp_name))
    if not named:
        names = ", ".join(sorted({title.exp_name for title in titles}))
        raise UsageError(f"--exp_name: found '{exp_name}', {folder} holds {names}")
    return named


def read_theirs(folder: Path, title: Title) -> Run:
    """One of their runs.

    Raises:
        UsageError: if one of its three files is missing or damaged.
    """
    curves = {part: read_curve(folder / title.file_name(part)) for part in PARTS}
    return Run(f"theirs ({title})", curves)


def read_curve(path: Path) -> Dict[int, Point]:
    """The lines `round,accuracy,loss` of one of their files, by round.

    Raises:
        UsageError: naming file and line, if it cannot be read as that.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"--theirs: {path} is missing; their program writes three files a run"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--theirs: {path} cannot be read ({error})") from None
    points: Dict[int, Point] = {}
    last = 0
    for place, line in enumerate(text.splitlines(keepends=True), start=1):
        where = f"--theirs: {path} line {place}"
        last, point = _read_line(where, line, last)
        points[last] = point
    return points


def read_summary(folder: Path, title: Title) -> Optional[Summary]:
    """What `summary` says of a run, the last time it speaks of it; None if nothing."""
    try:
        text = (folder / "summary").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = None
    for name, time, dataset, model, number, val, test in _SUMMARY.findall(text):
        if (time, name) == (title.time, title.exp_name):
            found = Summary(dataset, model, int(number), float(val), float(test))
    return found


def read_ours(folder: Path) -> Run:
    """A run of ours.

    Raises:
        UsageError: if it has no metrics.csv, or a damaged one.
    """
    path = RunFiles(folder).metrics_file
    if not path.exists():
        raise UsageError(f"--ours: found no metrics.csv in {folder}, must be a run")
    try:
        rows = read_rows(path, RoundRecord)
    except RecordError as error:
        raise UsageError(f"--ours: {error}") from None
    if not rows:
        raise UsageError(f"--ours: {path} holds no round yet")
    return Run(str(folder), {part: _curve(rows, part) for part in PARTS})


def join(theirs: Run, ours: Run) -> List[Joined]:
    """The rounds that both have, part by part."""
    return [
        Joined(part, number, theirs.curves[part][number], ours.curves[part][number])
        for part in PARTS
        for number in sorted(theirs.curves[part].keys() & ours.curves[part].keys())
    ]


def _read_line(where: str, line: str, last: int) -> Tuple[int, Point]:
    """The round of a line, and its point; rounds only go up."""
    try:
        first, *rest = line.rstrip("\r\n").split(",")
        number = int(first)
        accuracy, loss = map(float, rest)
    except ValueError:
        shown = repr(line.rstrip("\r\n")[:_SHOWN_CHARACTERS])
        raise UsageError(f"{where} is {shown}; round,accuracy,loss is right") from None
    if not line.endswith("\n"):
        # Without this a number cut in the middle would pass for a shorter one.
        raise UsageError(f"{where} is cut off; it has no end")
    if number <= last:
        raise UsageError(f"{where}: found round {number}, must be above {last}")
    if not math.isnan(accuracy) and not 0 <= accuracy <= LARGEST_ACCURACY:
        raise UsageError(f"{where}: found accuracy {accuracy}, must be from 0 to 1")
    return number, Point(accuracy, loss)


def _curve(rows: Sequence[RoundRecord], part: str) -> Dict[int, Point]:
    """The rounds in which there is an accuracy."""
    return {
        row.round: Point(getattr(row, f"{part}_acc"), getattr(row, f"{part}_loss"))
        for row in rows
        if getattr(row, f"{part}_acc") is not None
    }
