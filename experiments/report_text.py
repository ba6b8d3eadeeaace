"""The words of a report, the same in Markdown and HTML: figures, marks, notes, tables.

Nothing here is escaped; the formats do that.
"""

from __future__ import annotations

import math
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import attr

from experiments.outcomes import Account, Line, Result
from experiments.results import Environment, Run
from experiments.suites import COLUMNS, Suite
from fl.progress import duration

MINUS = "\N{MINUS SIGN}"
NOT_RUN = "not run"
NO_RUNS = "Not run at all:"
COMMIT_LENGTH = 12

READING = (
    "Test accuracy in per cent at the round with the best validation accuracy. Each "
    "cell has the paper's value, then ours: mean ± sample standard deviation over "
    "seeds, what it stands on, and ours minus the paper's in points."
)
NO_DIFFERENCE = (
    "Figures marked quick, partial or other settings are no reproduction: they come "
    "from less or other training than the paper's, so no difference from the paper is "
    "given for them. Runs of different budgets or lengths never share a mean."
)


@attr.frozen
class CellText:
    """What stands in one cell of a table.

    Attributes:
        paper: the paper's value.
        ours: our mean and deviation.
        basis: seeds and rounds behind it; empty if there are none.
        difference: ours minus the paper's; empty if they may not be compared.
        marks: kind and words of each mark.
        also: other results of the cell that are not shown; empty if there are none.
        notes: numbers of the notes below the table.
    """

    paper: str
    ours: str
    basis: str
    difference: str
    marks: Tuple[Tuple[str, str], ...]
    also: str
    notes: Tuple[int, ...]


@attr.frozen
class Table:
    """A plain table with a row of heads; the first column names the row."""

    heads: Tuple[str, ...]
    rows: Tuple[Tuple[str, ...], ...]


@attr.frozen
class SuiteText:
    """A suite in words.

    Attributes:
        suite: the suite.
        counts: how many entries are run, and how.
        effort: how many runs there are, and how long they took.
        cells: by row and column.
        notes: those the cells refer to, from 1.
        runs: a row a run.
        environments: what the runs were made with, by letter.
        faults: runs that could not be read.
    """

    suite: Suite
    counts: str
    effort: str
    cells: Dict[Tuple[str, str], CellText]
    notes: Tuple[str, ...]
    runs: Table
    environments: Table
    faults: Table


def suite_text(account: Account) -> SuiteText:
    """Puts all that is known of a suite into words."""
    notes: List[str] = []
    cells = {
        (line.entry.row, line.entry.column): _cell(line, notes)
        for line in account.lines
    }
    letters = _letters(account.runs)
    return SuiteText(
        suite=account.suite,
        counts=counts(account.lines),
        effort=effort(account.runs),
        cells=cells,
        notes=tuple(notes),
        runs=_runs_table(account, letters),
        environments=_environments_table(letters),
        faults=Table(
            ("Run", "Reason"), tuple((f.path, f.reason) for f in account.faults)
        ),
    )


def counts(lines: Sequence[Line]) -> str:
    """`60 entries: 3 full, 20 quick, 1 partial, 36 not run`."""
    kinds = ["full", "quick", "partial", "other settings", NOT_RUN]
    numbers = dict.fromkeys(kinds, 0)
    for line in lines:
        numbers[_kind(line.shown)] += 1
    told = [f"{number} {kind}" for kind, number in numbers.items() if number]
    noun = "entry" if len(lines) == 1 else "entries"
    return f"{len(lines)} {noun}: {', '.join(told)}"


def effort(runs: Sequence[Run]) -> str:
    """`12 runs, 3.5 h of training in all`."""
    seconds = math.fsum(run.summary["total_seconds"] or 0.0 for run in runs)
    return f"{_count(len(runs), 'run')}, {duration(seconds)} of training in all"


def one_decimal(value: Optional[float], signed: bool = False) -> str:
    """A figure as the paper prints it; nothing for none."""
    if value is None:
        return ""
    text = f"{value:+.1f}" if signed else f"{value:.1f}"
    # A difference that rounds to nothing has no sign.
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def mean_text(result: Result) -> str:
    """`66.9 ± 0.5`."""
    if result.mean is None:
        return "no figure yet"
    if result.deviation is None:
        return one_decimal(result.mean)
    return f"{one_decimal(result.mean)} ± {one_decimal(result.deviation)}"


def basis(result: Result) -> str:
    """`3 seeds, 300 rounds`."""
    seeds, rounds = len(result.seeds), result.first.rounds
    told = f"{_count(seeds, 'seed')}, {_count(rounds, 'round')}"
    # Whoever reads it cannot know what files those were.
    return f"{told}, data from --data_dir" if result.first.own_data else told


def mark_words(result: Result) -> str:
    """All marks of a result in a few words; empty for the cell's own experiment."""
    return ", ".join(words for _, words in result.marks)


def heading(lines: Sequence[Line]) -> str:
    """What a group has in common: its column, its row, or the group's own name."""
    group = lines[0].group
    columns = {line.entry.column for line in lines}
    rows = {line.entry.row for line in lines}
    if len(columns) == 1:
        return columns.pop()
    return rows.pop() if len(rows) == 1 else COLUMNS.get(group, group)


def _kind(result: Optional[Result]) -> str:
    if result is None:
        return NOT_RUN
    run = result.first
    if run.budget == "other":
        return "other settings"
    return "partial" if run.is_partial else run.budget


def _cell(line: Line, notes: List[str]) -> CellText:
    shown = line.shown
    paper = "not printed" if line.entry.paper is None else one_decimal(line.entry.paper)
    return CellText(
        paper=paper,
        ours=mean_text(shown) if shown else NOT_RUN,
        basis=basis(shown) if shown else "",
        difference=one_decimal(line.difference, signed=True),
        marks=line.marks,
        also=_also(line.results[1:]),
        notes=tuple(sorted(_numbered(line, notes))),
    )


def _numbered(line: Line, notes: List[str]) -> Iterable[int]:
    """The numbers of an entry's notes; a note not met before is added."""
    for note in dict.fromkeys((line.entry.note, line.entry.cell.note)):
        if note:
            if note not in notes:
                notes.append(note)
            yield notes.index(note) + 1


def _also(results: Sequence[Result]) -> str:
    told = [
        f"{mark_words(r) or 'full'} ({_count(len(r.runs), 'run')})" for r in results
    ]
    return f"also {'; '.join(told)}" if told else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _letters(runs: Iterable[Run]) -> Dict[Environment, str]:
    """A, B, ... Z, AA, ... for each environment, in order of appearance."""
    letters: Dict[Environment, str] = {}
    for run in runs:
        if run.environment not in letters:
            letters[run.environment] = _letter(len(letters))
    return letters


def _letter(number: int) -> str:
    higher, lower = divmod(number, 26)
    return (_letter(higher - 1) if higher else "") + chr(ord("A") + lower)


def _environments_table(letters: Dict[Environment, str]) -> Table:
    rows = [
        (letter, env.commit[:COMMIT_LENGTH] or "unknown", env.versions)
        for env, letter in letters.items()
    ]
    return Table(("Made with", "Commit", "Versions"), tuple(rows))


def _runs_table(account: Account, letters: Dict[Environment, str]) -> Table:
    heads = (
        "Run",
        "Test",
        "Validation",
        "Best round",
        "Rounds",
        "Time",
        "Made with",
        "Remark",
    )
    rows = [
        _run_row(run, letters[run.environment], mark_words(result))
        for result in account.results
        for run in result.runs
    ]
    rows += [
        _run_row(
            run, letters[run.environment], "not counted: a folder named earlier has it"
        )
        for run in account.repeats
    ]
    return Table(heads, tuple(rows))


def _run_row(run: Run, letter: str, mark: str) -> Tuple[str, ...]:
    seconds = run.summary["total_seconds"]
    best = run.summary["best_round"]
    differences = "; ".join(map(str, run.differences))
    return (
        run.path,
        f"{run.test_acc:.2f}" if run.test_acc is not None else "none",
        f"{run.val_acc:.2f}" if run.val_acc is not None else "none",
        "none" if best is None else str(best),
        f"{run.rounds}/{run.num_round}",
        "unknown" if seconds is None else f"{seconds:.0f} s",
        letter,
        f"{mark}: {differences}" if differences else mark,
    )
