"""Makes run folders as a run leaves them, without training: for tests of reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

from experiments.suites import SUITES, Cell, Entry
from fl import files
from fl.records import RoundRecord, summarize, write_rows
from fl.run_folder import RunFiles
from flags.parse import parse

PACKAGES = {"tensorflow": "2.14.1", "numpy": "1.25.2"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
QUICK = {"num_round": "30", "local_episode": "2"}
QUICK_FACTOR = 0.02


def entry(suite: str, address: str) -> Entry:
    """An entry of a real suite."""
    return next(e for e in SUITES[suite].entries if e.address == address)


def rounds(accuracies: Sequence[float], total: int) -> List[RoundRecord]:
    """So many rounds; the last few are evaluated, on validation as on test.

    Args:
        accuracies: test accuracies of the evaluated rounds; validation is as good.
        total: rounds in all.
    """
    blank = total - len(accuracies)
    rows = [RoundRecord(round=n + 1, train_acc=0.5, seconds=2.0) for n in range(blank)]
    for number, value in enumerate(accuracies, start=blank + 1):
        rows.append(
            RoundRecord(
                round=number,
                val_acc=value,
                test_acc=value,
                seconds=2.0,
                bytes_down=100,
                bytes_up=50,
            )
        )
    return rows


def curve(total: int, top: float, phase: float = 0.0) -> List[RoundRecord]:
    """Rounds that rise to about `top`, evaluated every fifth."""
    rows = []
    for number in range(1, total + 1):
        value = None
        if number % 5 == 0 or number == total:
            rise = 1.0 - math.exp(-5.0 * number / total)
            value = top * rise + 0.01 * math.sin(number + phase)
        rows.append(
            RoundRecord(
                round=number,
                train_acc=0.5,
                val_acc=value,
                test_acc=None if value is None else value - 0.01,
                seconds=3.5,
            )
        )
    return rows


def write_run(
    results: Path,
    cell: Cell,
    seed: int,
    rows: Optional[Sequence[RoundRecord]],
    flags: Mapping[str, Any] = {},
    commit: str = COMMIT,
) -> RunFiles:
    """Writes a run of a cell: its own experiment, but for `flags`.

    Args:
        results: the folder of results.
        cell: what it trains.
        seed: its seed.
        rows: its rounds; None for no metrics.csv. A summary is written if these are
            all rounds it was to have.
        flags: given on the command line after the cell's.
        commit: of the program.
    """
    folder = RunFiles(results / cell.path / f"seed_{seed}")
    words = [f"--{name}={value}" for name, value in flags.items()]
    own = [f"--seed={seed}", f"--exp_name=seed_{seed}", f"--out_dir={results}"]
    config = parse([*cell.flags, *words, *own]).config
    description = {
        "config": config.as_dict(),
        "python": "3.11.7",
        "packages": PACKAGES,
        "git_commit": commit,
    }
    files.write_json(folder.config_file, description)
    if rows is not None:
        write_rows(folder.metrics_file, rows, RoundRecord)
        if len(rows) == config.num_round:
            files.write_json(folder.summary_file, summarize(rows))
    return folder


def write_quick(
    results: Path, cell: Cell, seed: int, rows: Sequence[RoundRecord]
) -> RunFiles:
    """Writes a run of the quick budget, with the file that says so."""
    write_budget(results, cell, seed)
    return write_run(results, cell, seed, rows, QUICK)


def write_budget(results: Path, cell: Cell, seed: int, **changed: Any) -> None:
    """Writes what experiments.run says of a quick run before it starts."""
    budget = {
        "budget": "quick",
        "factor": QUICK_FACTOR,
        "flags": QUICK,
        "full": {"num_round": 300, "local_episode": 10},
        **changed,
    }
    files.write_json(results / cell.path / f"seed_{seed}.budget.json", budget)


def edit_json(file: Path, **changed: Any) -> None:
    """Changes some keys of a JSON file."""
    value = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**value, **changed}), encoding="utf-8")
