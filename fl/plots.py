"""Pictures of a run: its curves, its confusion matrix, and how its data is dealt.

Drawn with matplotlib's objects and the Agg backend: no display, no pyplot, no state
shared between figures. matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

import math
import textwrap
from importlib import import_module
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import attr
import numpy as np

from fl import files
from fl.records import RoundRecord, best_round

# Some releases of matplotlib are written in a newer Python than the oldest one this
# project is checked against, so the type checker is kept away from it.
Axes = Any
Figure = Any

_DPI = 110
_MOST_COUNTED_CLASSES = 20
_MOST_NAMED_CLASSES = 25
_FEW_POINTS = 40
_INK = "#333333"
_GRID = "#dddddd"
_BEST = "#7a7a7a"


@attr.frozen
class _Curve:
    """A field of `RoundRecord` and its looks (colours that the colour-blind tell)."""

    field: str
    label: str
    color: str
    style: str = "-"


_ACCURACY = (
    _Curve("train_acc", "train", "#56b4e9"),
    _Curve("val_acc", "validation", "#d55e00"),
    _Curve("test_acc", "test", "#009e73", "--"),
)
_LOSS = (
    _Curve("train_loss", "train", "#56b4e9"),
    _Curve("unlabeled_loss", "unlabelled", "#cc79a7", ":"),
    _Curve("val_loss", "validation", "#d55e00"),
    _Curve("test_loss", "test", "#009e73", "--"),
)


def draw_curves(rows: Sequence[RoundRecord], path: files.PathLike, title: str) -> None:
    """Draws accuracy and loss over the rounds, the best round marked.

    Args:
        rows: The rounds so far; any value may be absent, and there may be no row.
        path: The PNG file, written atomically.
        title: What stands above.
    """
    figure = _new_figure((11.0, 4.6), title)
    figure.subplots_adjust(left=0.065, right=0.985, top=0.85, bottom=0.2, wspace=0.14)
    accuracy, loss = figure.subplots(1, 2)
    _draw_panel(accuracy, rows, _ACCURACY, "accuracy (%)", scale=100.0)
    _mark_best(accuracy, rows)
    _draw_panel(loss, rows, _LOSS, "loss", scale=1.0)
    for axes in (accuracy, loss):
        _add_legend(axes)
    _save(figure, path)


def draw_confusion(
    matrix: np.ndarray, class_names: Sequence[str], path: files.PathLike, title: str
) -> None:
    """Draws how often each true class (row) is taken for each class (column).

    The colour is the share of the row, so classes of unequal size compare. Up to 20
    classes the counts stand in the cells.

    Args:
        matrix: Counts, [K, K].
        class_names: The K names.
        path: The PNG file, written atomically.
        title: What stands above.
    """
    matrix = np.asarray(matrix)
    classes = len(class_names)
    if matrix.shape != (classes, classes):
        raise ValueError(
            f"matrix has shape {matrix.shape}; {classes} class names need "
            f"{(classes, classes)}"
        )
    shares = _row_shares(matrix)
    figure, axes, bar_axes = _confusion_panels(class_names, title)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=_top(shares))
    bar = figure.colorbar(image, cax=bar_axes)
    bar.set_label("share of the true class (%)", color=_INK)
    bar.outline.set_visible(False)
    bar_axes.tick_params(colors=_INK, labelsize=9)
    axes.set_xlabel("predicted class", color=_INK)
    axes.set_ylabel("true class", color=_INK)
    _name_classes(axes, class_names)
    if classes <= _MOST_COUNTED_CLASSES:
        _write_counts(axes, matrix, shares)
    _save(figure, path)


def draw_class_counts(
    tables: Mapping[str, np.ndarray], path: files.PathLike, title: str
) -> None:
    """Draws, for each kind of images, one bar a client, stacked by class.

    Args:
        tables: by the name of the kind, the images per client and class, [N, K]; a
            single column stands for images of unknown class.
        path: Where the PNG is to stand.
        title: The picture's heading.
    """
    figure = _new_figure((11.0, 3.2 * len(tables) + 0.6), title)
    panels = figure.subplots(len(tables), 1, squeeze=False)[:, 0]
    for axes, (kind, counts) in zip(panels, tables.items()):
        _stack_bars(axes, counts)
        axes.set_ylabel(f"{kind} images", color=_INK)
        axes.set_xlabel("client", color=_INK)
        axes.xaxis.set_major_locator(
            import_module("matplotlib.ticker").MaxNLocator(integer=True)
        )
        axes.margins(x=0.01)
    figure.tight_layout()
    _save(figure, path)


def _stack_bars(axes: Axes, counts: np.ndarray) -> None:
    clients, classes = counts.shape
    colors = import_module("matplotlib").colormaps[
        "tab10" if classes <= 10 else "nipy_spectral"
    ]
    bottom = np.zeros(clients)
    for number in range(classes):
        known = classes > 1
        axes.bar(
            np.arange(clients),
            counts[:, number],
            width=0.9,
            bottom=bottom,
            color=colors(number if classes <= 10 else number / classes),
            label=f"class {number}" if known else "class unknown",
        )
        bottom = bottom + counts[:, number]
    if classes <= 10:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _new_figure(size: Tuple[float, float], title: str) -> Figure:
    figure = import_module("matplotlib.figure").Figure(
        figsize=size, dpi=_DPI, facecolor="white"
    )
    import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    width = int(size[0] * 9)
    # A "$" in a run's name is a "$", not the start of a formula.
    figure.suptitle(
        textwrap.shorten(title, width, placeholder=" ..."),
        fontsize=12,
        color=_INK,
        parse_math=False,
    )
    return figure


def _save(figure: Figure, path: files.PathLike) -> None:
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI)


def _points(rows: Sequence[RoundRecord], field: str) -> Tuple[List[int], List[float]]:
    """Collects the rounds that have a value, and the values.

    Absent ones are left out, so that rare evaluations are joined by a line; one that
    is not a number stays and leaves a gap, for there the run went wrong.
    """
    kept = [row for row in rows if getattr(row, field) is not None]
    return [row.round for row in kept], [getattr(row, field) for row in kept]


def _draw_panel(
    axes: Axes,
    rows: Sequence[RoundRecord],
    curves: Sequence[_Curve],
    label: str,
    scale: float,
) -> None:
    locator = import_module("matplotlib.ticker").MaxNLocator
    for curve in curves:
        _draw_curve(axes, rows, curve, scale)
    axes.set_xlabel("round", color=_INK)
    axes.set_ylabel(label, color=_INK)
    axes.xaxis.set_major_locator(locator(nbins=9, integer=True, min_n_ticks=1))
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)
    if not axes.lines:
        axes.set(xticks=[], yticks=[])
        axes.text(
            0.5, 0.5, "no values yet", transform=axes.transAxes, ha="center", color=_INK
        )
        return
    last = max(row.round for row in rows)
    margin = max(0.02 * last, 0.5)
    axes.set_xlim(min(row.round for row in rows) - margin, last + margin)


def _draw_curve(
    axes: Axes, rows: Sequence[RoundRecord], curve: _Curve, scale: float
) -> None:
    nums, values = _points(rows, curve.field)
    if not nums:
        return
    axes.plot(
        nums,
        [scale * value for value in values],
        color=curve.color,
        linestyle=curve.style,
        linewidth=1.6,
        marker="o" if len(nums) <= _FEW_POINTS else None,
        markersize=3.5,
        label=curve.label,
    )


def _mark_best(axes: Axes, rows: Sequence[RoundRecord]) -> None:
    best = best_round(rows)
    if best is None or best.val_acc is None:
        return
    axes.axvline(best.round, color=_BEST, linestyle=(0, (4, 3)), linewidth=1.0)
    axes.plot(
        best.round,
        100.0 * best.val_acc,
        linestyle="none",
        marker="*",
        markersize=13,
        color="#d55e00",
        markeredgecolor="white",
        zorder=5,
        label="best round",
    )
    text = _best_text(best.round, best.val_acc, best.test_acc)
    axes.set_title(text, loc="left", fontsize=9.5, color=_INK)


def _best_text(num: int, val_acc: float, test_acc: Optional[float]) -> str:
    text = f"best: round {num}, validation {100.0 * val_acc:.2f} %"
    return text if test_acc is None else f"{text}, test {100.0 * test_acc:.2f} %"


def _add_legend(axes: Axes) -> None:
    """Puts the legend below the panel, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    axes.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncol=len(handles),
        frameon=False,
        fontsize=9,
        labelcolor=_INK,
        handlelength=2.0,
        columnspacing=1.2,
    )


def _row_shares(matrix: np.ndarray) -> np.ndarray:
    """Returns each cell's share of its row in per cent; an empty row has none."""
    totals = matrix.sum(axis=1, keepdims=True)
    return 100.0 * matrix / np.where(totals > 0, totals, 1)


def _top(shares: np.ndarray) -> float:
    """Returns the share that gets the darkest colour; never zero."""
    return float(shares.max(initial=0.0)) or 100.0


def _confusion_panels(names: Sequence[str], title: str) -> Tuple[Figure, Axes, Axes]:
    """Makes a figure with a square for the matrix and a strip for the colour bar.

    The margins, in inches, are reckoned from the longest name: matplotlib's own
    layout would draw every label several times to find them.
    """
    classes = len(names)
    square = min(max(0.46 * classes, 3.0), 8.0)
    longest = max((len(name) for name in names), default=0)
    turned = 1.0 if classes > _MOST_COUNTED_CLASSES else 0.7
    left = 0.55 + 0.078 * longest
    bottom = 0.6 + 0.078 * longest * turned
    width, height = left + square + 1.0, bottom + square + 0.6
    figure = _new_figure((width, height), title)
    low, high = bottom / height, square / height
    axes = figure.add_axes((left / width, low, square / width, high))
    strip = ((left + square + 0.15) / width, low, 0.18 / width, high)
    return figure, axes, figure.add_axes(strip)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    """Names the classes along both axes; of many classes, evenly spaced ones."""
    step = math.ceil(len(names) / _MOST_NAMED_CLASSES)
    ticks = range(0, len(names), step)
    shown = [names[tick] for tick in ticks]
    plain = {"fontsize": 9, "color": _INK, "parse_math": False}
    axes.set_yticks(ticks, shown, **plain)
    axes.set_xticks(ticks, shown, **plain, **_turn(names))
    axes.tick_params(length=3 if step > 1 else 0, color=_INK)
    for spine in axes.spines.values():
        spine.set_color(_GRID)


def _turn(names: Sequence[str]) -> Dict[str, Any]:
    """Turns the names below the matrix as far as they need to stand side by side."""
    if len(names) > _MOST_COUNTED_CLASSES:
        return {"rotation": 90}
    if max((len(name) for name in names), default=0) > 3:
        return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    return {}


def _write_counts(axes: Axes, matrix: np.ndarray, shares: np.ndarray) -> None:
    top = _top(shares)
    for (row, column), count in np.ndenumerate(matrix):
        dark = shares[row, column] > 0.55 * top
        axes.text(
            column,
            row,
            f"{count:g}" if count < 10**6 else f"{count:.1e}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else _INK,
        )
