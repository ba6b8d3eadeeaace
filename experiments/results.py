"""Reads the runs of cells: what each was told to do, how far it got, what came out.

A run lies in `<results>/<cell>/seed_<seed>/`. Whether it is the cell's own experiment
is judged by its config.json alone; `seed_<seed>.budget.json` beside it only gives a
shortened run its name. What cannot be read becomes a `Fault`, never an exception.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
from pathlib import Path
from typing import (
    Any,
    Collection,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    get_type_hints,
)

import attr

from experiments.suites import Cell
from fl.records import RoundRecord, summarize
from fl.run_folder import RunFiles
from flags.config import declarations
from flags.errors import UsageError
from flags.parse import parse

_SEED_FOLDER = re.compile(r"seed_(0|[1-9][0-9]*)")
_NEEDED_COLUMNS = ("round", "val_acc", "test_acc")
_SHOWN_CHARACTERS = 60
_MOST_SECONDS = 1e9
# Bar the seed; where files lie is no part of what a run is.
_NOT_COMPARED = ("seed", "exp_name", "data_dir")
_KINDS = get_type_hints(RoundRecord)


class Unreadable(Exception):
    """Why a run cannot be used, in a few words that name the file."""


@attr.frozen
class Fault:
    """A run that could not be read.

    Attributes:
        path: its folder, below the folder of results.
        reason: what is wrong with it.
    """

    path: str
    reason: str


@attr.frozen
class Difference:
    """A flag in which a run is not its cell: its value there and in the cell."""

    flag: str
    found: Any
    cell: Any

    def __str__(self) -> str:
        return f"{self.flag} {_word(self.found)} instead of {_word(self.cell)}"


@attr.frozen
class Environment:
    """What a run was made with; empty where its config.json does not say."""

    commit: str
    python: str
    packages: Tuple[Tuple[str, str], ...]

    @property
    def versions(self) -> str:
        """Python and the packages with their versions."""
        parts = [("Python", self.python or "unknown"), *self.packages]
        return ", ".join(f"{name} {version}" for name, version in parts)


@attr.frozen
class Run:
    """A run of a cell.

    Attributes:
        path: its folder, below the folder of results.
        source: the name of the folder of results.
        seed: its seed.
        num_round: the rounds it was to have.
        rows: the rounds it has.
        differences: the flags in which it is not its cell, bar the seed.
        factor: for the quick budget, the share of the cell's training that all its
            rounds make; None for any other run.
        own_data: whether its data was looked for in --data_dir first.
        environment: what it was made with.
    """

    path: str
    source: str
    seed: int
    num_round: int
    rows: Tuple[RoundRecord, ...]
    differences: Tuple[Difference, ...]
    factor: Optional[float]
    own_data: bool
    environment: Environment
    summary: Mapping[str, Any] = attr.field(init=False, eq=False, repr=False)

    @summary.default
    def _summarize(self) -> Mapping[str, Any]:
        return summarize(self.rows)

    @property
    def budget(self) -> str:
        """`full`, `quick`, or `other` for settings that no budget explains."""
        if not self.differences:
            return "full"
        return "other" if self.factor is None else "quick"

    @property
    def rounds(self) -> int:
        """How many rounds it has."""
        return len(self.rows)

    @property
    def is_partial(self) -> bool:
        """Whether rounds are missing."""
        return self.rounds < self.num_round

    @property
    def is_comparable(self) -> bool:
        """Whether it is the cell's own experiment, to its end."""
        return self.budget == "full" and not self.is_partial

    @property
    def share(self) -> float:
        """Share of the cell's training that was done; 0 where nobody can tell."""
        whole = {"full": 1.0, "quick": self.factor or 0.0, "other": 0.0}[self.budget]
        return whole * self.rounds / self.num_round

    @property
    def key(self) -> Tuple[Any, ...]:
        """Runs may share a mean only where this is the same."""
        found = tuple((d.flag, _word(d.found)) for d in self.differences)
        length = (self.factor or 0.0, self.num_round, self.rounds)
        return (self.budget, *length, self.own_data, found)

    @property
    def test_acc(self) -> Optional[float]:
        """Test accuracy in per cent at the best validation round so far."""
        return _per_cent(self.summary["test_acc_at_best"])

    @property
    def val_acc(self) -> Optional[float]:
        """The best validation accuracy so far, in per cent."""
        return _per_cent(self.summary["best_val_acc"])


def read_runs(folders: Sequence[Path], cell: Cell) -> Tuple[List[Run], List[Fault]]:
    """All runs of a cell in these folders of results, by folder and seed."""
    runs: List[Run] = []
    faults: List[Fault] = []
    for folder in folders:
        base = folder / cell.path
        for seed in _seeds(base):
            path = f"{cell.path}/seed_{seed}"
            try:
                runs.append(_read_run(folder, path, seed, cell))
            except Unreadable as error:
                faults.append(Fault(path, str(error)))
    return runs, faults


def strays(folder: Path, suite: str, known: Collection[str]) -> List[Fault]:
    """Runs in the place of a suite that belong to none of the known cells."""
    found = sorted(
        path.relative_to(folder)
        for path in folder.glob(f"{suite}/*/*/seed_*")
        if path.is_dir() and _SEED_FOLDER.fullmatch(path.name)
    )
    return [
        Fault(path.as_posix(), f"no suite has a cell {path.parent.as_posix()}")
        for path in found
        if path.parent.as_posix() not in known
    ]


def _seeds(base: Path) -> List[int]:
    try:
        names = [child.name for child in base.iterdir() if child.is_dir()]
    except OSError:
        return []
    matches = [_SEED_FOLDER.fullmatch(name) for name in names]
    return sorted(int(match.group(1)) for match in matches if match)


def _read_run(folder: Path, path: str, seed: int, cell: Cell) -> Run:
    files = RunFiles(folder / path)
    description = _read_object(files.config_file)
    config = description.get("config")
    if not isinstance(config, dict):
        raise Unreadable("config.json: no configuration in it")
    if config.get("seed") != seed:
        raise Unreadable(f"config.json: seed {config.get('seed')!r}, folder {seed}")
    num_round = config.get("num_round")
    if not isinstance(num_round, int) or num_round < 1:
        raise Unreadable(f"config.json: num_round {num_round!r}")
    rows = _read_rounds(files.metrics_file)
    if len(rows) > num_round:
        raise Unreadable(f"metrics.csv: {len(rows)} rounds of {num_round}")
    _check_summary(files.summary_file, rows)
    differences = _differences(config, cell.flags)
    factor = None
    if differences:
        factor = _quick_factor(folder / f"{path}.budget.json", config, cell)
    return Run(
        path=path,
        source=folder.resolve().name,
        seed=seed,
        num_round=num_round,
        rows=rows,
        differences=differences,
        factor=factor,
        own_data=bool(config.get("data_dir")),
        environment=_environment(description),
    )


def _read_object(file: Path) -> Mapping[str, Any]:
    """The object in a JSON file."""
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError):
        raise Unreadable(f"{file.name}: damaged, no JSON") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{file.name}: damaged, no object in it")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise Unreadable(f"{file.name}: missing") from None
    except OSError as error:
        raise Unreadable(f"{file.name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unreadable(f"{file.name}: damaged, no text") from None


def _read_rounds(file: Path) -> Tuple[RoundRecord, ...]:
    """The rounds of a metrics.csv.

    Columns go by their names: a file that is kept for years may lack one that came
    later. The run itself, which goes on from this file, reads it more strictly.
    """
    text = _read_text(file)
    if not text.endswith("\n"):
        raise Unreadable("metrics.csv: cut off, its last line has no end")
    try:
        header, *lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (ValueError, csv.Error):
        raise Unreadable("metrics.csv: damaged, no table") from None
    missing = [name for name in _NEEDED_COLUMNS if name not in header]
    if missing:
        raise Unreadable(f"metrics.csv: no column {missing[0]}")
    return tuple(_round(header, line, n) for n, line in enumerate(lines, start=1))


def _round(header: Sequence[str], cells: Sequence[str], number: int) -> RoundRecord:
    """A line of metrics.csv, which must be that of the round `number`."""
    where = f"metrics.csv line {number + 1}"
    if len(cells) != len(header):
        raise Unreadable(f"{where}: {len(cells)} cells for {len(header)} columns")
    values = {
        name: _number(f"{where}: {name}", cell, _KINDS[name])
        for name, cell in zip(header, cells)
        if name in _KINDS and cell != ""
    }
    if values.get("round") != number:
        raise Unreadable(f"{where}: round {values.get('round')}, {number} is due")
    for name in ("val_acc", "test_acc"):
        value = values.get(name)
        if value is not None and math.isfinite(value) and not 0.0 <= value <= 1.0:
            raise Unreadable(f"{where}: {name} {value} is no share")
    if not 0.0 <= values.get("seconds", 0.0) <= _MOST_SECONDS:
        del values["seconds"]  # A sum over it would say nothing, or fail.
    return RoundRecord(**values)


def _number(where: str, cell: str, kind: Any) -> Any:
    whole = kind is int or kind == Optional[int]
    try:
        return int(cell) if whole else float(cell)
    except ValueError:
        raise Unreadable(f"{where} is {_shown(cell)}") from None


def _check_summary(file: Path, rows: Sequence[RoundRecord]) -> None:
    """A finished run's own result must be the one that its rounds give."""
    if not file.exists():
        return
    told, ours = _read_object(file), summarize(rows)
    for name in ("rounds", "best_round", "test_acc_at_best"):
        if told.get(name) != _finite(ours[name]):
            raise Unreadable(
                f"summary.json: {name} {_shown(told.get(name))}, metrics.csv gives "
                f"{ours[name]}"
            )


def _differences(
    config: Mapping[str, Any], words: Sequence[str]
) -> Tuple[Difference, ...]:
    """Flags that describe a run and are not as `words` resolve to.

    A flag that is younger than the run counts with its default, by which the program
    went when it had no such flag; one that is unknown here counts as different.
    """
    wanted = _resolved(tuple(words))
    declared = {field.name: field for field in declarations()}
    found = [
        Difference(name, config.get(name, field.default), wanted[name])
        for name, field in declared.items()
        if field.metadata["describes_run"] and name not in _NOT_COMPARED
    ]
    unknown = [
        Difference(str(name), value, None)
        for name, value in config.items()
        if name not in declared
    ]
    return tuple(d for d in (*found, *unknown) if not _same(d.found, d.cell))


@functools.cache
def _resolved(words: Tuple[str, ...]) -> Mapping[str, Any]:
    return parse(words).config.as_dict()


def _same(found: Any, wanted: Any) -> bool:
    """Equal, and no truth value taken for a number."""
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _quick_factor(file: Path, config: Mapping[str, Any], cell: Cell) -> Optional[float]:
    """The share of a quick run; None where the budget does not explain the run."""
    if not file.exists():
        return None
    budget = _read_object(file)
    flags, factor = budget.get("flags"), budget.get("factor")
    if budget.get("budget") != "quick" or not isinstance(flags, dict):
        return None
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise Unreadable(f"{file.name}: factor {_shown(factor)}")
    if not 0.0 < factor <= 1.0:
        raise Unreadable(f"{file.name}: factor {factor}, above 0 to 1 is right")
    words = [f"--{name}={_word(value)}" for name, value in flags.items()]
    try:
        unexplained = _differences(config, [*cell.flags, *words])
    except UsageError:
        return None
    return None if unexplained else float(factor)


def _environment(description: Mapping[str, Any]) -> Environment:
    packages = description.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    return Environment(
        commit=str(description.get("git_commit") or ""),
        python=str(description.get("python") or ""),
        packages=tuple((str(name), str(value)) for name, value in packages.items()),
    )


def _per_cent(share: Optional[float]) -> Optional[float]:
    """None where there is no number, or none that is finite."""
    share = _finite(share)
    return None if share is None else 100.0 * share


def _finite(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None


def _word(value: Any) -> str:
    """A flag's value as on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else str(value)


def _shown(value: Any) -> str:
    """What was found, quoted, and not at length."""
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return text
