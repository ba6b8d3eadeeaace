"""Pictures of a report: curves of every run of a group, and the points of a figure.

Drawn as in `fl.plots`: matplotlib's objects with the Agg backend, no display and no
state. A picture is the bytes of a PNG without date or version of the program, so that
the same runs give the same file. A curve is told by colour, marker and style together.
"""

from __future__ import annotations

import io
import math
from importlib import import_module
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import attr
import numpy as np

from experiments.outcomes import Account, Line, Result
from experiments.report_text import heading, mark_words
from experiments.results import Run
from fl.records import RoundRecord

# The type checker is kept away from matplotlib, see fl.plots.
Axes = Any
Figure = Any

_DPI = 110
_INK = "#333333"
_GRID = "#dddddd"
# Okabe and Ito's colours, which the colour-blind tell, without their yellow, which
# white paper swallows.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_STYLES = ("-", "--", "-.", ":")
_BUDGETS = {
    "full": "full budget",
    "quick": "quick budget",
    "other": "other settings",
}
_PANELS = (("val_acc", "validation accuracy (%)"), ("test_acc", "test accuracy (%)"))
_WIDTH = 11.0
_PANEL_INCHES = 3.6
_TITLE_INCHES = 0.55
_AXIS_INCHES = 0.55
_LEGEND_ROW_INCHES = 0.23
_STRIP_GAP_INCHES = 0.35
_MARKS_PER_CURVE = 8


@attr.frozen
class _Look:
    """How a curve is told from the others; hollow is not the paper's experiment."""

    color: str
    marker: str
    style: str
    hollow: bool = False

    @property
    def marks(self) -> Mapping[str, Any]:
        """What matplotlib calls it."""
        return {
            "color": self.color,
            "linestyle": self.style,
            "marker": self.marker,
            "markerfacecolor": "white" if self.hollow else self.color,
            "markeredgecolor": self.color,
        }


@attr.frozen
class _Curve:
    """The runs of one result under one label."""

    label: str
    result: Result
    look: _Look


def draw_group(account: Account, lines: Sequence[Line]) -> bytes:
    """Draws validation and test accuracy over rounds, for all runs of a group.

    A thin line a run; where a result has several seeds, their mean as a thick one. A
    group with several rows and columns has a strip of panels for each row.

    Args:
        account: the suite.
        lines: the group's entries; at least one has a result.

    Returns:
        The PNG.
    """
    strips = _strips(account, lines)
    legends = [_legend_rows([c.label for c in curves]) for curves in strips.values()]
    heights = [
        _PANEL_INCHES
        + _AXIS_INCHES
        + rows * _LEGEND_ROW_INCHES
        + _STRIP_GAP_INCHES * (len(strips) > 1)
        for rows in legends
    ]
    title = f"{account.suite.title}: {heading(lines)}"
    figure = _new_figure(_TITLE_INCHES + math.fsum(heights) + 0.1, title)
    top = _TITLE_INCHES
    for (name, curves), height in zip(strips.items(), heights):
        shift = _STRIP_GAP_INCHES if len(strips) > 1 else 0.0
        _draw_strip(figure, name if len(strips) > 1 else "", curves, top + shift)
        top += height
    return _png(figure)


def draw_points(account: Account) -> bytes:
    """Draws a figure of the paper: accuracy over its x axis, a line a row.

    The paper's points, where it prints them, are grey. Ours have the standard deviation
    over seeds as bars; only results with the same marks are joined.

    Returns:
        The PNG.
    """
    series, printed = _series(account), _printed(account)
    rows = _legend_rows([*series, *(f"paper: {row}" for row in printed)])
    height = 4.7 + _TITLE_INCHES + _AXIS_INCHES + rows * _LEGEND_ROW_INCHES
    figure = _new_figure(height, account.suite.title)
    axes = _add_axes(figure, 0.08, 0.90, _TITLE_INCHES, 4.6)
    for row, points in printed.items():
        look = _look(account.suite.rows.index(row))
        _draw_printed(axes, f"paper: {row}", points, look)
    drawn: Dict[str, int] = {}
    for label, lines in series.items():
        row = lines[0].entry.row
        number = drawn[row] = drawn.get(row, -1) + 1
        hollow = not lines[0].is_comparable
        look = _look(account.suite.rows.index(row), number, hollow)
        _draw_series(axes, label, lines, look)
    axes.set_xlabel(account.suite.x_label, color=_INK, parse_math=False)
    axes.set_ylabel("test accuracy (%)", color=_INK)
    axes.set_xticks([float(column) for column in account.suite.columns])
    _add_legend(figure, [axes], _TITLE_INCHES + 4.6 + _AXIS_INCHES)
    return _png(figure)


def describe_group(account: Account, lines: Sequence[Line]) -> str:
    """The picture of a group in words, for those who do not see it."""
    curves = [curve for strip in _strips(account, lines).values() for curve in strip]
    told = "; ".join(
        f"{curve.label}, seeds {' '.join(str(run.seed) for run in curve.result.runs)}"
        for curve in curves
    )
    return f"Validation and test accuracy over rounds, {heading(lines)}: {told}"


def _strips(account: Account, lines: Sequence[Line]) -> Dict[str, List[_Curve]]:
    """The curves of each strip of panels, by its heading.

    A budget has a strip of its own: its rounds are fewer, its curves not to be taken
    for those of others.
    """
    columns = {line.entry.column for line in lines}
    by_row = len(columns) > 1 and len({line.entry.row for line in lines}) > 1
    strips: Dict[str, List[_Curve]] = {}
    for line in lines:
        row, column = line.entry.row, line.entry.column
        # A row or column looks the same in all pictures of its suite.
        place = account.suite.rows.index(row)
        label = row
        if len(columns) > 1:
            place = account.suite.columns.index(column)
            label = column if by_row else f"{row}, {column}"
        for number, result in enumerate(line.results):
            look = _look(place, number, hollow=not result.is_comparable)
            curve = _Curve(_marked(label, result), result, look)
            budget = _BUDGETS[result.first.budget]
            name = f"{row}: {budget}" if by_row else budget
            strips.setdefault(name, []).append(curve)
    order = list(_BUDGETS.values())
    return dict(
        sorted(strips.items(), key=lambda item: order.index(item[0].split(": ")[-1]))
    )


def _marked(label: str, result: Result) -> str:
    marks = mark_words(result)
    return f"{label} ({marks})" if marks else label


def _look(place: int, number: int = 0, hollow: bool = False) -> _Look:
    """The look of the result `number` in a place.

    The first 70 places differ in colour or marker, results of one place in style.
    """
    return _Look(
        _COLORS[place % len(_COLORS)],
        _MARKERS[place % len(_MARKERS)],
        _STYLES[(place // len(_COLORS) + number) % len(_STYLES)],
        hollow,
    )


def _draw_strip(
    figure: Figure, name: str, curves: Sequence[_Curve], top: float
) -> None:
    panels = []
    for (field, label), left in zip(_PANELS, (0.06, 0.565)):
        axes = _add_axes(figure, left, 0.42, top, _PANEL_INCHES)
        for curve in curves:
            _draw_curve(axes, curve, field)
        axes.set_xlabel("round", color=_INK)
        axes.set_ylabel(label, color=_INK)
        _set_rounds(axes, curves)
        panels.append(axes)
    panels[0].set_title(name, loc="left", fontsize=10, color=_INK, parse_math=False)
    _share_heights(panels)
    _add_legend(figure, panels, top + _PANEL_INCHES + _AXIS_INCHES)


def _draw_curve(axes: Axes, curve: _Curve, field: str) -> None:
    runs, look = curve.result.runs, curve.look
    alone = len(runs) == 1
    for run in runs:
        rounds, values = _points(run.rows, field)
        if not alone and rounds:
            axes.plot(rounds, values, color=look.color, linewidth=0.7, alpha=0.55)
    rounds, values = _mean_points(runs, field)
    if rounds:
        axes.plot(
            rounds,
            values,
            **look.marks,
            linewidth=1.1 if alone else 2.0,
            markevery=max(1, math.ceil(len(rounds) / _MARKS_PER_CURVE)),
            markersize=5,
            label=curve.label,
        )


def _points(rows: Sequence[RoundRecord], field: str) -> Tuple[List[int], List[float]]:
    """Rounds that were evaluated, and accuracies there in per cent.

    One that is not finite becomes a gap, for there the run went wrong.
    """
    kept = [(row.round, getattr(row, field)) for row in rows]
    kept = [(number, value) for number, value in kept if value is not None]
    values = [100.0 * v if math.isfinite(v) else math.nan for _, v in kept]
    return [number for number, _ in kept], values


def _mean_points(runs: Sequence[Run], field: str) -> Tuple[List[int], List[float]]:
    """The mean over runs in each round that all of them evaluated."""
    each = [dict(zip(*_points(run.rows, field))) for run in runs]
    rounds = sorted(set.intersection(*(set(values) for values in each)))
    return rounds, [float(np.mean([values[r] for values in each])) for r in rounds]


def _set_rounds(axes: Axes, curves: Sequence[_Curve]) -> None:
    locator = import_module("matplotlib.ticker").MaxNLocator
    last = max(max(c.result.first.rounds, 1) for c in curves)
    margin = max(0.02 * last, 0.5)
    axes.set_xlim(min(1.0, last) - margin, last + margin)
    axes.xaxis.set_major_locator(locator(nbins=9, integer=True, min_n_ticks=1))
    if not axes.lines:
        axes.set(yticks=[])
        axes.text(
            0.5, 0.5, "no values yet", transform=axes.transAxes, ha="center", color=_INK
        )


def _share_heights(panels: Sequence[Axes]) -> None:
    """The same span in all panels that have curves, so that they compare."""
    drawn = [axes for axes in panels if axes.lines]
    if drawn:
        spans = [axes.get_ylim() for axes in drawn]
        for axes in drawn:
            axes.set_ylim(min(low for low, _ in spans), max(high for _, high in spans))


def _series(account: Account) -> Dict[str, List[Line]]:
    """Our points by label: the row, and the marks where there are any.

    A quick budget is another share of each cell; its points are one line all the same.
    """
    series: Dict[Tuple[Any, ...], List[Line]] = {}
    for line in account.lines:
        if line.shown is not None and line.shown.mean is not None:
            run = line.shown.first
            kinds = tuple(kind for kind, _ in line.shown.marks)
            key = (line.entry.row, kinds, run.rounds, run.num_round)
            series.setdefault(key, []).append(line)
    return {_series_label(lines): lines for lines in series.values()}


def _series_label(lines: Sequence[Line]) -> str:
    labels = {_marked(line.entry.row, line.shown) for line in lines if line.shown}
    if len(labels) == 1:
        return labels.pop()
    shown = [line.shown for line in lines if line.shown]
    kinds = ", ".join(kind for kind, _ in shown[0].marks)
    return f"{lines[0].entry.row} ({kinds}, {shown[0].first.rounds} rounds)"


def _draw_series(axes: Axes, label: str, lines: Sequence[Line], look: _Look) -> None:
    points = sorted(
        (float(line.entry.column), line.shown.mean, line.shown.deviation or 0.0)
        for line in lines
        if line.shown is not None and line.shown.mean is not None
    )
    xs, means, deviations = zip(*points)
    axes.errorbar(
        xs,
        means,
        yerr=deviations,
        **look.marks,
        linewidth=1.6,
        markersize=6,
        capsize=3,
        label=label,
    )


def _printed(account: Account) -> Dict[str, List[Tuple[float, float]]]:
    """The paper's points by row."""
    rows: Dict[str, List[Tuple[float, float]]] = {}
    for line in account.lines:
        if line.entry.paper is not None:
            point = (float(line.entry.column), line.entry.paper)
            rows.setdefault(line.entry.row, []).append(point)
    return rows


def _draw_printed(
    axes: Axes, label: str, points: Sequence[Tuple[float, float]], look: _Look
) -> None:
    xs, values = zip(*sorted(points))
    axes.plot(
        xs,
        values,
        color="#7a7a7a",
        linestyle=":",
        linewidth=1.0,
        marker=look.marker,
        markersize=7,
        label=label,
    )


def _new_figure(height: float, title: str) -> Figure:
    figure = import_module("matplotlib.figure").Figure(
        figsize=(_WIDTH, height), dpi=_DPI, facecolor="white"
    )
    import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.text(
        0.5,
        1.0 - 0.2 / height,
        title,
        ha="center",
        va="center",
        fontsize=12,
        color=_INK,
        parse_math=False,
    )
    return figure


def _add_axes(
    figure: Figure, left: float, width: float, top: float, height: float
) -> Axes:
    """A panel so many inches below the top; left and width are shares."""
    whole = figure.get_figheight()
    axes = figure.add_axes((left, 1.0 - (top + height) / whole, width, height / whole))
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)
    return axes


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max(len(label) for label in labels)
    return max(1, min(len(labels), int(140 / (longest + 8))))


def _legend_rows(labels: Sequence[str]) -> int:
    return math.ceil(len(labels) / _legend_columns(labels))


def _add_legend(figure: Figure, panels: Sequence[Axes], top: float) -> None:
    """Names each curve once, below the panels, where it hides none."""
    entries: Dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    if not entries:
        return
    legend = figure.legend(
        list(entries.values()),
        list(entries),
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 - top / figure.get_figheight()),
        ncol=_legend_columns(list(entries)),
        frameon=False,
        fontsize=9,
        labelcolor=_INK,
        handlelength=2.6,
        columnspacing=1.4,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()
