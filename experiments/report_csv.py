"""A report as two CSV files: a line an entry, and a line a run.

Accuracies are in per cent, not rounded; an absent value is an empty cell.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Mapping, Optional, Sequence

from experiments.outcomes import Account, Line
from experiments.report_text import mark_words
from experiments.results import Run
from fl.records import RoundRecord

ENTRY_COLUMNS = (
    "suite",
    "row",
    "column",
    "cell",
    "paper",
    "mean",
    "deviation",
    "seeds",
    "seed_list",
    "rounds",
    "num_round",
    "budget",
    "factor",
    "partial",
    "own_data",
    "comparable",
    "difference",
    "mark",
    "note",
)
RUN_COLUMNS = (
    "suite",
    "run",
    "results",
    "seed",
    "counted",
    "budget",
    "factor",
    "partial",
    "own_data",
    "rounds",
    "num_round",
    "best_round",
    "val_acc",
    "test_acc",
    "last_val_acc",
    "last_test_acc",
    "seconds",
    "bytes_down",
    "bytes_up",
    "commit",
    "versions",
    "differences",
    "mark",
)


def entries_csv(account: Account) -> str:
    """A line an entry, with the result that the table shows."""
    return _csv(ENTRY_COLUMNS, [_entry(account, line) for line in account.lines])


def runs_csv(account: Account) -> str:
    """A line a run."""
    rows = [
        _run(account, run, mark_words(result), counted=True)
        for result in account.results
        for run in result.runs
    ]
    rows += [_run(account, run, "", counted=False) for run in account.repeats]
    return _csv(RUN_COLUMNS, rows)


def _entry(account: Account, line: Line) -> Mapping[str, Any]:
    entry = line.entry
    return {
        "suite": account.suite.name,
        "row": entry.row,
        "column": entry.column,
        "cell": entry.cell.path,
        "paper": entry.paper,
        "difference": line.difference,
        "note": " ".join(dict.fromkeys(filter(None, (entry.note, entry.cell.note)))),
        **(_shown(line) if line.shown else {"seeds": 0, "mark": "not run"}),
    }


def _shown(line: Line) -> Mapping[str, Any]:
    result = line.results[0]
    return {
        "mean": result.mean,
        "deviation": result.deviation,
        "seeds": len(result.seeds),
        "seed_list": " ".join(map(str, result.seeds)),
        "comparable": line.is_comparable,
        "mark": ", ".join(words for _, words in line.marks),
        **_length(result.first),
    }


def _length(run: Run) -> Mapping[str, Any]:
    return {
        "rounds": run.rounds,
        "num_round": run.num_round,
        "budget": run.budget,
        "factor": run.factor,
        "partial": run.is_partial,
        "own_data": run.own_data,
    }


def _run(account: Account, run: Run, mark: str, counted: bool) -> Mapping[str, Any]:
    return {
        "suite": account.suite.name,
        "run": run.path,
        "results": run.source,
        "seed": run.seed,
        "counted": counted,
        "best_round": run.summary["best_round"],
        "val_acc": run.val_acc,
        "test_acc": run.test_acc,
        "last_val_acc": _last(run.rows, "val_acc"),
        "last_test_acc": _last(run.rows, "test_acc"),
        "seconds": run.summary["total_seconds"],
        "bytes_down": _sum(run.rows, "bytes_down"),
        "bytes_up": _sum(run.rows, "bytes_up"),
        "commit": run.environment.commit,
        "versions": run.environment.versions,
        "differences": "; ".join(map(str, run.differences)),
        "mark": mark,
        **_length(run),
    }


def _last(rows: Sequence[RoundRecord], field: str) -> Optional[float]:
    """In per cent, of the last round that was evaluated."""
    values = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return 100.0 * values[-1] if values else None


def _sum(rows: Sequence[RoundRecord], field: str) -> Optional[int]:
    values = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return sum(values) if values else None


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_text(row.get(column)) for column in columns])
    return text.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
