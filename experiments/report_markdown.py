"""A report as Markdown: the same text for the same runs, whenever and wherever made."""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Sequence, Tuple

from experiments import report_text as words
from experiments.report_text import CellText, SuiteText, Table

# What would end a table's cell or start markup; an underscore inside a word is plain.
_SPECIAL = re.compile(r"([\\`*|\[\]<>&#~])")


def suite_lines(
    text: SuiteText, pictures: Sequence[Tuple[str, str]], remarks: str = ""
) -> List[str]:
    """A suite's part of a report.

    Args:
        text: the suite in words.
        pictures: what each shows and its link; none to leave them out.
        remarks: hand-written Markdown, put below the table as it is.

    Returns:
        The lines, without line ends.
    """
    suite = text.suite
    lines = [f"## {escape(suite.title)}", "", escape(suite.caption), ""]
    lines += [f"{escape(text.counts)}; {escape(text.effort)}.", ""]
    lines += [*_results_table(text), ""]
    lines += _notes(text.notes)
    if remarks:
        lines += [remarks.strip("\n"), ""]
    for shown, link in pictures:
        lines += [f"![{escape(shown)}]({link})", ""]
    lines += _section(f"### Runs of {suite.name}", text.runs, code=True)
    lines += _section("### What they were made with", text.environments)
    return lines + _section("### Could not be read", text.faults)


def introduction(title: str, opening: str = "") -> List[str]:
    """The heading of a whole report, hand-written Markdown, and how to read it."""
    lines = [f"# {escape(title)}", ""]
    lines += [opening.strip("\n"), ""] if opening else []
    return [*lines, words.READING, "", words.NO_DIFFERENCE, ""]


def index_table(
    texts: Sequence[SuiteText], links: Mapping[str, str], silent: Sequence[str]
) -> List[str]:
    """A row a suite.

    Args:
        texts: the suites.
        links: the address of each, by name.
        silent: names of suites that have no run.
    """
    lines = ["| Suite | What | Entries | Runs |", "|---|---|---|---|"]
    for text in texts:
        name = f"[{text.suite.name}]({links[text.suite.name]})"
        cells = [name, *map(escape, (text.suite.title, text.counts, text.effort))]
        lines.append(_row(cells))
    lines.append("")
    return [*lines, f"{words.NO_RUNS} {', '.join(silent)}.", ""] if silent else lines


def anchor(title: str) -> str:
    """The address that GitHub gives a heading: its letters and digits, and hyphens."""
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return "#" + kept.replace(" ", "-")


def document(lines: Sequence[str]) -> str:
    """The file's text: no empty lines at its end, one line end."""
    return "\n".join(lines).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """Makes any text plain on one line, whatever a damaged file had in it."""
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return _SPECIAL.sub(r"\\\1", printable)


def _results_table(text: SuiteText) -> List[str]:
    columns = text.suite.columns
    corner = escape(text.suite.x_label)
    lines = [_row([corner, *map(escape, columns)]), _row(["---"] * (len(columns) + 1))]
    for row in text.suite.rows:
        cells = [_cell(text.cells.get((row, column))) for column in columns]
        lines.append(_row([escape(row), *cells]))
    return lines


def _cell(cell: Optional[CellText]) -> str:
    """The lines of a cell; where the table of the paper has none, a dash."""
    if cell is None:
        return "–"
    notes = "".join(f" [{number}]" for number in cell.notes)
    parts = [f"paper {cell.paper}{escape(notes)}"]
    parts += [f"**{mark}**" for _, mark in cell.marks]
    # Only a figure that may be held against the paper's stands out.
    stands_out = cell.basis and not cell.marks
    ours = f"**{cell.ours}**" if stands_out else cell.ours
    parts.append(f"ours {ours} ({cell.basis})" if cell.basis else cell.ours)
    parts += [f"difference {cell.difference}"] if cell.difference else []
    parts += [escape(cell.also)] if cell.also else []
    return "<br>".join(parts)


def _notes(notes: Sequence[str]) -> List[str]:
    if not notes:
        return []
    numbered = [f"{number}. {escape(note)}" for number, note in enumerate(notes, 1)]
    return ["Notes:", "", *numbered, ""]


def _section(heading: str, table: Table, code: bool = False) -> List[str]:
    """A table below a heading; nothing where it has no rows."""
    if not table.rows:
        return []
    lines = [heading, "", _row(list(table.heads)), _row(["---"] * len(table.heads))]
    for row in table.rows:
        first = f"`{row[0]}`" if code else escape(row[0])
        lines.append(_row([first, *map(escape, row[1:])]))
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
