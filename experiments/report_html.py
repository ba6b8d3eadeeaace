"""A report as one HTML page that needs nothing else: no script, no file, no network."""

from __future__ import annotations

import base64
from html import escape
from typing import List, Mapping, Optional, Sequence, Tuple

import attr

from experiments import report_text as words
from experiments.report_remarks import to_html
from experiments.report_text import CellText, SuiteText, Table

# The page may load nothing, whatever a file that it shows had in it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """\
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5c5c63; --back: #ffffff;
  --line: #c9c9d1; --head: #f0f0f4; --quick: #8a3a00; --quick-back: #ffe9d1;
  --partial: #5b2a86; --partial-back: #f0e3fb; --other: #9b1c1c;
  --other-back: #fde2e2; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --soft: #a8a8b3;
  --back: #17171b; --line: #45454f; --head: #24242b; --quick: #ffc890;
  --quick-back: #4a2a08; --partial: #dcb8ff; --partial-back: #3b2252;
  --other: #ffb3b3; --other-back: #571d1d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; color: var(--ink);
  background: var(--back); font: 1rem/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
h1, h2, p, li { overflow-wrap: anywhere; } p, li { max-width: 48rem; }
a { color: inherit; }
.scroll { overflow-x: auto; max-width: 100%; border: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
caption { text-align: left; padding: 0.5rem; font-weight: 600; }
th, td { border-top: 1px solid var(--line); padding: 0.4rem 0.6rem; text-align: left;
  vertical-align: top; }
thead th { background: var(--head); white-space: nowrap; }
.results td { min-width: 10rem; } .results td div { white-space: nowrap; }
.results tbody th { min-width: 7rem; position: sticky; left: 0;
  background: var(--back); }
#runs td { white-space: nowrap; } #runs td:last-child { white-space: normal;
  min-width: 14rem; }
#runs tbody th { overflow-wrap: anywhere; min-width: 12rem; }
.paper, .basis, .also, .none { color: var(--soft); }
.results td .also { white-space: normal; }
.figure { font-weight: 600; font-variant-numeric: tabular-nums; }
.unlike .figure { font-weight: 400; font-style: italic; color: var(--soft); }
.mark { display: inline-block; padding: 0 0.4rem; border: 1px solid; font-weight: 600;
  border-radius: 0.25rem; font-size: 0.95em; }
.mark.quick { color: var(--quick); background: var(--quick-back); }
.mark.partial { color: var(--partial); background: var(--partial-back); }
.mark.other { color: var(--other); background: var(--other-back); }
.counts { padding: 0.6rem 0.8rem; border-left: 0.3rem solid var(--quick);
  background: var(--head); }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: 0.9rem; }
img { max-width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); }
pre { overflow-x: auto; padding: 0.6rem; background: var(--head); }
@media print { :root { color-scheme: light; } body { max-width: none; padding: 0;
  font-size: 9pt; } .scroll { overflow: visible; border: 0; }
  table { font-size: 7.5pt; } .results td { min-width: 0; }
  .results td div, thead th { white-space: normal; }
  .results tbody th { position: static; min-width: 0; }
  #runs tbody th, #runs td:last-child { min-width: 0; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; }
  .mark { print-color-adjust: exact; } }
"""


@attr.frozen
class Picture:
    """A picture of a page.

    Attributes:
        caption: what it shows.
        description: the same for those who do not see it.
        png: the file.
    """

    caption: str
    description: str
    png: bytes


def suite_page(
    text: SuiteText, pictures: Sequence[Picture], remarks: str = "", opening: str = ""
) -> str:
    """The page of a suite.

    Args:
        text: the suite in words.
        pictures: its figure and curves.
        remarks: hand-written Markdown about the suite.
        opening: hand-written Markdown about the whole.
    """
    suite = text.suite
    parts = [f"<h1>{escape(suite.title)}</h1>", to_html(opening)]
    parts += _paragraphs(suite.caption)
    parts.append(f'<p class="counts">{escape(text.counts)}; {escape(text.effort)}.</p>')
    parts += _paragraphs(words.READING, words.NO_DIFFERENCE)
    parts += ["<h2>Results</h2>", _results_table(text), *_notes(text.notes)]
    if remarks:
        parts += ["<h2>Remarks</h2>", to_html(remarks)]
    if pictures:
        parts += ["<h2>Figures</h2>", *map(_figure, pictures)]
    parts += _section("Runs", "runs", text.runs)
    parts += _section("What they were made with", "environments", text.environments)
    parts += _section("Could not be read", "faults", text.faults)
    return _page(suite.title, parts)


def index_page(
    title: str,
    texts: Sequence[SuiteText],
    links: Mapping[str, str],
    silent: Sequence[str],
    opening: str = "",
) -> str:
    """A page that leads to those of the suites.

    Args:
        title: its heading.
        texts: the suites.
        links: the address of each, by name.
        silent: names of suites that have no run.
        opening: hand-written Markdown.
    """
    rows = "".join(
        f'<tr><th scope="row"><a href="{escape(links[t.suite.name])}">'
        f"{escape(t.suite.name)}</a></th>"
        + _cells((t.suite.title, t.counts, t.effort))
        + "</tr>"
        for t in texts
    )
    table = _scroll(
        "index",
        f"<caption id='index-caption'>Suites</caption>"
        f"{_head(('Suite', 'What', 'Entries', 'Runs'))}<tbody>{rows}</tbody>",
        "plain",
    )
    parts = [f"<h1>{escape(title)}</h1>", to_html(opening)]
    parts += [*_paragraphs(words.READING, words.NO_DIFFERENCE), table]
    if silent:
        parts += _paragraphs(f"{words.NO_RUNS} {', '.join(silent)}.")
    return _page(title, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _paragraphs(*texts: str) -> List[str]:
    return [f"<p>{escape(text)}</p>" for text in texts if text]


def _results_table(text: SuiteText) -> str:
    columns = text.suite.columns
    rows = []
    for row in text.suite.rows:
        cells = "".join(_cell(text.cells.get((row, column))) for column in columns)
        rows.append(f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>')
    told = f"{text.suite.title}: test accuracy in per cent"
    caption = f"<caption id='results-caption'>{escape(told)}</caption>"
    head = _head((text.suite.x_label, *columns))
    body = f"{caption}{head}<tbody>{''.join(rows)}</tbody>"
    return _scroll("results", body, "results")


def _cell(cell: Optional[CellText]) -> str:
    if cell is None:
        return '<td class="none">–</td>'
    notes = ", ".join(f'<a href="#note-{n}">{n}</a>' for n in cell.notes)
    paper = f"paper {escape(cell.paper)}" + (f" <sup>{notes}</sup>" if notes else "")
    lines = [("paper", paper)]
    lines += [
        ("", f'<span class="mark {escape(kind)}">{escape(mark)}</span>')
        for kind, mark in cell.marks
    ]
    if cell.basis:
        figure = f'ours <span class="figure">{escape(cell.ours)}</span>'
        lines += [("", figure), ("basis", escape(cell.basis))]
    else:
        lines.append(("none", escape(cell.ours)))
    if cell.difference:
        shown = f'<span class="figure">{escape(cell.difference)}</span>'
        lines.append(("", f"difference {shown}"))
    if cell.also:
        lines.append(("also", escape(cell.also)))
    body = "".join(f'<div class="{kind}">{line}</div>' for kind, line in lines)
    return f'<td class="{"unlike" if cell.marks else "like"}">{body}</td>'


def _notes(notes: Sequence[str]) -> List[str]:
    if not notes:
        return []
    items = "".join(
        f'<li id="note-{number}">{escape(note)}</li>'
        for number, note in enumerate(notes, 1)
    )
    return [f"<h2>Notes</h2><ol>{items}</ol>"]


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure><img alt="{escape(picture.description)}" '
        f'src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _section(title: str, name: str, table: Table) -> List[str]:
    """A table below a heading; nothing where it has no rows."""
    if not table.rows:
        return []
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{_cells(row[1:])}</tr>'
        for row in table.rows
    )
    caption = f"<caption id='{name}-caption'>{escape(title)}</caption>"
    body = f"{caption}{_head(table.heads)}<tbody>{rows}</tbody>"
    return [f"<h2>{escape(title)}</h2>", _scroll(name, body, "plain")]


def _head(heads: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    return f"<thead><tr>{cells}</tr></thead>"


def _cells(texts: Tuple[str, ...]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _scroll(name: str, body: str, kind: str) -> str:
    """A table that scrolls in its own frame, by keyboard too, where it is too wide."""
    return (
        f"<div class='scroll' role='region' tabindex='0' "
        f"aria-labelledby='{name}-caption'>"
        f"<table id='{name}' class='{kind}'>{body}</table></div>"
    )
