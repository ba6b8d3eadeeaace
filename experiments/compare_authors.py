"""Holds runs of ours against a run of the authors' own program.

    python -m experiments.compare_authors --theirs=RESULT_DIR
        --ours=RUN_DIR [RUN_DIR...] [--exp_name=NAME] [--out=compare_authors.png]

RESULT_DIR is the folder `result` of their program (`experiments.authors_runs` tells
what is in it). Of several runs the newest is taken, with --exp_name the newest of that
name.

Prints the test accuracy of each at its best validation round, and the differences round
by round where both have the round; draws all curves over each other, and writes the
joined rows to a CSV file of the picture's name.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import statistics
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from experiments.authors_runs import (
    PARTS,
    Joined,
    Run,
    Summary,
    find_theirs,
    join,
    read_ours,
    read_summary,
    read_theirs,
)
from fl import environment, files
from fl.progress import write_line
from flags.arguments import ArgumentParser
from flags.errors import UsageError

MOST_LINES = 20
_COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_THEIRS, _INK, _GRID = "#9a9a9a", "#333333", "#e4e4e4"
_DPI = 110
_PANEL_INCHES = 4.4
_FEW_POINTS = 40
_LONGEST_LABEL = 60


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    try:
        arguments = _parser().parse_args(_apart(argv))
        compare(arguments.theirs, arguments.ours, arguments.exp_name, arguments.out)
    except UsageError as error:
        sys.stderr.write(f"compare_authors: error: {error}\n")
        return 2
    return 0


def compare(
    folder: Path, ours: Sequence[Path], exp_name: Optional[str], out: Path
) -> None:
    """Reads all, tells the differences, and writes picture and table.

    Raises:
        UsageError: if a folder or file is missing or damaged, or cannot be written.
    """
    if out.suffix != ".png":
        raise UsageError(f"--out: found {out}, must end in .png")
    runs = [read_ours(path) for path in ours]
    titles = find_theirs(folder, exp_name)
    theirs = read_theirs(folder, titles[-1])
    if len(titles) > 1:
        write_line(f"{folder} holds {len(titles)} such runs; taken: {titles[-1]}")
    joined = {run.label: join(theirs, run) for run in runs}
    for line in best_lines(theirs, runs, read_summary(folder, titles[-1])):
        write_line(line)
    for label, rows in joined.items():
        write_line(f"\n{label} minus theirs, accuracy in points:")
        for line in difference_lines(rows):
            write_line(f"  {line}")
    _write_files(theirs, runs, joined, out)


def best_lines(
    theirs: Run, runs: Sequence[Run], summary: Optional[Summary]
) -> Iterator[str]:
    """A line a run: its best round by validation, and the test accuracy there."""
    yield _best_line(theirs)
    if summary is not None:
        verdict = "agrees" if summary.agrees_with(theirs) else "DOES NOT AGREE"
        yield (
            f"  their summary: {summary.dataset}, {summary.model}, round "
            f"{summary.round} ({_percent(summary.val)}), test {_percent(summary.test)}"
            f": {verdict}"
        )
    test = theirs.accuracy("test", theirs.best)
    for run in runs:
        own = run.accuracy("test", run.best)
        if own is None or test is None:
            yield _best_line(run)
        else:
            yield f"{_best_line(run)}, {100 * (own - test):+.2f} points"


def difference_lines(joined: Sequence[Joined]) -> Iterator[str]:
    """A line a round, of many rounds the fullest; then means over all."""
    by_round: Dict[int, Dict[str, Joined]] = {}
    for row in joined:
        by_round.setdefault(row.round, {})[row.part] = row
    numbers = _shown_rounds(by_round)
    if not numbers:
        yield "no round in common"
        return
    yield "".join(head.rjust(12) for head in ("round", *PARTS.values()))
    for number in numbers:
        cells = [by_round[number].get(part) for part in PARTS]
        shown = [f"{100 * cell.accuracy:+.2f}" if cell else "-" for cell in cells]
        yield "".join(cell.rjust(12) for cell in (str(number), *shown))
    if len(numbers) < len(by_round):
        yield f"({len(numbers)} of {len(by_round)} rounds; the CSV file has all)"
    for part, title in PARTS.items():
        yield from _mean_lines(title, [row for row in joined if row.part == part])


def draw(theirs: Run, runs: Sequence[Run], path: Path) -> None:
    """Draws accuracy over the rounds, a panel for each part of the data."""
    columns = 3 if len(runs) > 2 else len(runs) + 2
    legend = 0.15 + 0.23 * math.ceil((len(runs) + 2) / columns)
    height = _PANEL_INCHES + legend
    figure = import_module("matplotlib.figure").Figure((13.0, height), dpi=_DPI)
    import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(PARTS))
    bottom, top = (legend + 0.5) / height, 1 - 0.35 / height
    figure.subplots_adjust(left=0.05, right=0.99, top=top, bottom=bottom, wspace=0.13)
    for axes, (part, title) in zip(panels, PARTS.items()):
        _draw_curve(axes, theirs, part, _THEIRS, width=2.2)
        for color, run in zip(itertools.cycle(_COLORS), runs):
            _draw_curve(axes, run, part, color, width=1.1)
        _dress(axes, title)
    panels[0].set_ylabel("accuracy (%)", color=_INK)
    _add_legend(figure, theirs, runs, columns)
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m experiments.compare_authors",
        description=__doc__.split("\n")[0],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--theirs", type=Path, required=True, help="folder of their result files"
    )
    parser.add_argument(
        "--ours",
        type=Path,
        required=True,
        nargs="+",
        action="extend",
        help="folders of runs of ours",
    )
    parser.add_argument("--exp_name", help="which of their runs; the newest of it")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("compare_authors.png"),
        help="the picture; the table stands beside it as .csv",
    )
    return parser


def _apart(argv: Sequence[str]) -> List[str]:
    """Sets `--ours=A B` in two words, for argparse takes a single value after the =."""
    start = "--ours="
    words: List[str] = []
    for word in argv:
        words += ["--ours", word[len(start) :]] if word.startswith(start) else [word]
    return words


def _best_line(run: Run) -> str:
    best = run.best
    if best is None:
        return f"{run.label}: never evaluated"
    val, test = (run.accuracy(part, best) for part in ("val", "test"))
    return (
        f"{run.label}: best validation in round {best} ({_percent(val)}), test there "
        f"{_percent(test)}"
    )


def _mean_lines(title: str, rows: Sequence[Joined]) -> Iterator[str]:
    """Mean and widest difference over the rounds of one part."""
    known = {row.round: row.accuracy for row in rows if math.isfinite(row.accuracy)}
    if not known:
        return
    widest = max(known, key=lambda number: abs(known[number]))
    yield (
        f"{title}: mean {100 * statistics.fmean(known.values()):+.2f}, widest "
        f"{100 * known[widest]:+.2f} in round {widest}, over {len(known)} rounds"
    )


def _shown_rounds(by_round: Mapping[int, Mapping[str, Joined]]) -> List[int]:
    """At most `MOST_LINES` rounds: those with more parts first, else evenly spaced."""
    chosen: List[int] = []
    for parts in range(len(PARTS), 0, -1):
        group = sorted(n for n, found in by_round.items() if len(found) == parts)
        chosen += _spaced(group, MOST_LINES - len(chosen))
    return sorted(chosen)


def _spaced(numbers: Sequence[int], count: int) -> List[int]:
    """So many of the numbers, or all; evenly spaced, the last among them."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[len(numbers) * (i + 1) // count - 1] for i in range(count)]


def _percent(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{100 * value:.2f} %"


def _write_files(
    theirs: Run, runs: Sequence[Run], joined: Mapping[str, Sequence[Joined]], out: Path
) -> None:
    table = out.with_suffix(".csv")
    try:
        draw(theirs, runs, out)
        files.write_text(table, _csv_text(joined))
    except OSError as error:
        raise UsageError(
            f"--out: {out} cannot be written ({error.strerror}); name a file that can"
        ) from None
    write_line(f"\npicture: {out}")
    write_line(f"rounds that both have: {table}")


def _csv_text(joined: Mapping[str, Sequence[Joined]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("run", "part", "round", "theirs_acc", "ours_acc", "acc_difference")
        + ("theirs_loss", "ours_loss", "loss_difference")
    )
    for label, rows in joined.items():
        for row in rows:
            writer.writerow(
                (label, row.part, row.round, row.theirs.accuracy, row.ours.accuracy)
                + (row.accuracy, row.theirs.loss, row.ours.loss, row.loss)
            )
    return text.getvalue()


def _draw_curve(axes: Any, run: Run, part: str, color: str, width: float) -> None:
    curve = run.curves[part]
    if not curve:
        return
    axes.plot(
        list(curve),
        [100 * point.accuracy for point in curve.values()],
        color=color,
        linewidth=width,
        marker="o" if len(curve) <= _FEW_POINTS else None,
        markersize=1.5 + 1.5 * width,
    )
    best = run.accuracy(part, run.best)
    if best is not None and part != "train":
        axes.plot(
            run.best,
            100 * best,
            linestyle="none",
            marker="*",
            markersize=14,
            color=color,
            markeredgecolor=_INK,
            markeredgewidth=0.7,
            zorder=5,
        )


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK)
    axes.set_xlabel("round", color=_INK)
    locator = import_module("matplotlib.ticker").MaxNLocator
    axes.xaxis.set_major_locator(locator(nbins=7, integer=True, min_n_ticks=1))
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)


def _add_legend(figure: Any, theirs: Run, runs: Sequence[Run], columns: int) -> None:
    """The names below the panels."""
    line = import_module("matplotlib.lines").Line2D
    colors = itertools.chain([_THEIRS], itertools.cycle(_COLORS))
    handles = [line([], [], color=color) for color, _ in zip(colors, (theirs, *runs))]
    star = {"linestyle": "none", "marker": "*", "markersize": 11}
    handles.append(line([], [], color="#7a7a7a", **star))
    labels = [_short(run.label) for run in (theirs, *runs)]
    legend = figure.legend(
        handles,
        [*labels, "best round by validation"],
        loc="lower center",
        ncol=columns,
        frameon=False,
        fontsize=9,
        labelcolor=_INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _short(label: str) -> str:
    """The end of a path tells runs apart."""
    return label if len(label) <= _LONGEST_LABEL else f"...{label[-_LONGEST_LABEL:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
