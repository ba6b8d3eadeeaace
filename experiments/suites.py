"""The paper's tables and figures as cells: what each one trains and what was printed.

    python -m experiments.suites            writes experiments/<suite>/<group>/*.flags
    python -m experiments.suites --check    only says which of them differ

A `Cell` is one training, with one flagfile. A `Suite` is one table or figure; its
`Entry`s put cells at a row and a column, beside the value printed there. A cell may
stand in several suites, and twice in one: it is trained once. The paper prints
different values for one setting in different tables; each entry has its own.

`experiments.printed` has the values, `experiments.paper` makes cells of them.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Iterable, List, Mapping, Sequence, Tuple

from experiments import cells, paper
from experiments.cells import Cell, Entry, Suite
from experiments.printed import COLUMNS
from fl import files
from fl.progress import write_line
from flags.arguments import ArgumentParser
from flags.errors import UsageError

__all__ = ["COLUMNS", "SUITES", "Cell", "Entry", "Suite", "all_cells", "flagfile_text"]

LINE_WIDTH = 88

SUITES: Mapping[str, Suite] = paper.make_suites()


def all_cells() -> Tuple[Cell, ...]:
    """Every cell once."""
    return tuple(dict.fromkeys(c for suite in SUITES.values() for c in suite.cells))


def flagfile_text(cell: Cell) -> str:
    """A cell's flagfile: what it reproduces, as comments, and its flags."""
    lines = [cell.title.rstrip(".") + ".", *_appearances(cell), cell.note]
    comments = [wrapped for line in lines if line for wrapped in _comment(line)]
    return "\n".join([*comments, *cell.flags]) + "\n"


def _appearances(cell: Cell) -> Iterable[str]:
    """Where the paper shows the cell, with the value printed there."""
    for suite in SUITES.values():
        for entry in suite.entries:
            if entry.cell == cell:
                yield _appearance(suite, entry)


def _appearance(suite: Suite, entry: Entry) -> str:
    value = "no value is printed" if entry.paper is None else f"{entry.paper:.1f} %"
    column = f"{suite.x_label} {entry.column}" if suite.x_label else entry.column
    note = entry.note if entry.note != entry.cell.note else ""
    return f"{suite.title}: {entry.row}; {column}: {value}. {note}".rstrip()


def _comment(text: str) -> List[str]:
    return textwrap.wrap(
        text,
        LINE_WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_on_hyphens=False,
    )


def differing() -> List[Path]:
    """Flagfiles that are missing, differ from the table, or are of no cell."""
    wanted = {cell.flagfile: flagfile_text(cell) for cell in all_cells()}
    found = cells.FOLDER.glob("*/*/*.flags")
    there = {path: path.read_text(encoding="utf-8") for path in found}
    paths = sorted({*wanted, *there})
    return [path for path in paths if wanted.get(path) != there.get(path)]


def write_all() -> List[Path]:
    """Makes the flagfiles agree with the table; returns those that did not."""
    changed = differing()
    wanted = {cell.flagfile: cell for cell in all_cells()}
    for path in changed:
        if path in wanted:
            files.write_text(path, flagfile_text(wanted[path]))
        else:
            path.unlink()
    return changed


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code: 1 if --check finds a difference."""
    parser = ArgumentParser(
        prog="python -m experiments.suites", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, say what differs"
    )
    try:
        check = parser.parse_args(argv).check
    except UsageError as error:
        sys.stderr.write(f"suites: error: {error}\n")
        return 2
    changed = differing() if check else write_all()
    for path in changed:
        what = "differs" if check else "written" if path.exists() else "removed"
        write_line(f"{what}: {path.relative_to(cells.FOLDER.parent)}")
    verb = "differ" if check else "changed"
    write_line(f"{len(all_cells())} cells, {len(changed)} flagfiles {verb}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
