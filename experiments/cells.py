"""What a suite is made of: cells, and their places in a table or figure."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Tuple

import attr

FOLDER = Path(__file__).parent


@attr.frozen
class Cell:
    """One training of the paper.

    Attributes:
        suite: the suite it belongs to.
        group: its folder there.
        name: its name in that folder.
        title: what is trained, on what.
        flags: words for main.py, without seed, exp_name and out_dir.
        note: what to know about it: a switch that it sets and why, a difference.
    """

    suite: str
    group: str
    name: str
    title: str
    flags: Tuple[str, ...]
    note: str = ""

    @property
    def path(self) -> str:
        """Where its flagfile (under experiments/) and its results are."""
        return f"{self.suite}/{self.group}/{self.name}"

    @property
    def flagfile(self) -> Path:
        """Its flagfile."""
        return FOLDER / f"{self.path}.flags"


@attr.frozen
class Entry:
    """A cell's place in a table or figure.

    Attributes:
        cell: what is trained.
        row: the row's label; for a figure, the line's.
        column: the column's label; for a figure, the value on its x axis.
        paper: what is printed there, in per cent; None where nothing is.
        note: what to know beside that.
        address: group and name in this suite, also where the cell is another's.
        comparable: whether ours may be held against what is printed.
    """

    cell: Cell
    row: str
    column: str
    paper: Optional[float]
    note: str
    address: str
    comparable: bool = True


@attr.frozen
class Suite:
    """A table or figure of the paper.

    Attributes:
        name: as on the command line.
        title: its name in the paper.
        caption: what it shows and how it was run.
        entries: row by row.
        kind: "table" or "figure".
        x_label: a figure's x axis.
    """

    name: str
    title: str
    caption: str
    entries: Tuple[Entry, ...]
    kind: str = "table"
    x_label: str = ""

    @property
    def cells(self) -> Tuple[Cell, ...]:
        """Each cell once, in order of appearance; some are of other suites."""
        return tuple(dict.fromkeys(entry.cell for entry in self.entries))

    @property
    def rows(self) -> Tuple[str, ...]:
        """The labels of the rows, in order."""
        return tuple(dict.fromkeys(entry.row for entry in self.entries))

    @property
    def columns(self) -> Tuple[str, ...]:
        """The labels of the columns, in order; of a figure, from left to right."""
        labels = dict.fromkeys(entry.column for entry in self.entries)
        return tuple(sorted(labels, key=float) if self.kind == "figure" else labels)
