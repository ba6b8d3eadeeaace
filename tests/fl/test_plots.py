"""Tests that the pictures are drawn, whatever values there are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl import plots
from fl.records import RoundRecord

ORANGE = (0xD5, 0x5E, 0x00)
BLUE = (0x56, 0xB4, 0xE9)


def _pixels(path: Path) -> np.ndarray:
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def _has_color(pixels: np.ndarray, color: tuple[int, int, int]) -> bool:
    return bool((np.abs(pixels - np.array(color)).max(axis=-1) <= 2).any())


def _rows(count: int) -> list[RoundRecord]:
    return [
        RoundRecord(n, n / (count + 1), 1 / n, val_acc=n / 400, test_acc=n / 500)
        for n in range(1, count + 1)
    ]


def test_curves_have_a_fixed_size_and_show_each_kind(tmp_path: Path) -> None:
    plots.draw_curves(_rows(60), tmp_path / "curves.png", "a run")
    pixels = _pixels(tmp_path / "curves.png")
    assert pixels.shape == (506, 1210, 3)
    assert _has_color(pixels, BLUE)
    assert _has_color(pixels, ORANGE)
    assert os.listdir(tmp_path) == ["curves.png"]


def test_without_evaluation_there_is_no_validation_curve(tmp_path: Path) -> None:
    rows = [RoundRecord(n, 0.1 * n, 1.0) for n in (1, 2, 3)]
    plots.draw_curves(rows, tmp_path / "a.png", "t")
    pixels = _pixels(tmp_path / "a.png")
    assert _has_color(pixels, BLUE)
    assert not _has_color(pixels, ORANGE)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [RoundRecord(1)],
        _rows(1),
        [RoundRecord(1, math.nan, math.inf, val_acc=math.nan)],
        [RoundRecord(7, 0.5), RoundRecord(9, None, 3.0, val_loss=1.0)],
    ],
    ids=["no row", "no value", "one row", "not finite", "with gaps"],
)
def test_curves_are_drawn_from_little(tmp_path: Path, rows: list[RoundRecord]) -> None:
    plots.draw_curves(rows, tmp_path / "a.png", "t")
    pixels = _pixels(tmp_path / "a.png")
    assert pixels.shape == (506, 1210, 3)
    assert pixels.min() < 128


def test_rare_evaluations_are_joined_by_a_line(tmp_path: Path) -> None:
    """Two evaluations, 100 rounds apart: the line between them crosses the panel.

    The panel is 0.065 to 0.525 of 1210 pixels wide; of its middle third every column
    must hold a pixel of the validation colour.
    """
    rows = [RoundRecord(n) for n in range(1, 102)]
    rows[0] = RoundRecord(1, val_acc=0.25)
    rows[100] = RoundRecord(101, val_acc=0.75)
    plots.draw_curves(rows, tmp_path / "a.png", "t")
    middle = _pixels(tmp_path / "a.png")[:400, 264:450]
    near = np.abs(middle - np.array(ORANGE)).max(axis=-1) <= 60
    assert near.any(axis=0).all()


def test_value_that_is_no_number_leaves_a_gap(tmp_path: Path) -> None:
    """Of 101 rounds the middle fifth is NaN: of the panel's middle no pixel is blue."""
    rows = [
        RoundRecord(n, math.nan if 41 <= n <= 61 else 0.01 * n) for n in range(1, 102)
    ]
    plots.draw_curves(rows, tmp_path / "a.png", "t")
    pixels = _pixels(tmp_path / "a.png")[:400]
    assert _has_color(pixels[:, 100:200], BLUE)
    assert not _has_color(pixels[:, 320:360], BLUE)


def test_best_round_is_marked(tmp_path: Path) -> None:
    """Round 30 of 60 is the best: the star and its line stand in mid-panel."""
    rows = [RoundRecord(n, val_acc=0.5 - abs(n - 30) / 100) for n in range(1, 60)]
    plots.draw_curves(rows, tmp_path / "a.png", "t")
    # Inside the axes, over the pixels of the panel from 79 to 600.
    panel = _pixels(tmp_path / "a.png")[80:400, 85:600]
    grey = (np.ptp(panel, axis=-1) <= 2) & (panel[..., 0] < 0xC8)
    column = 85 + int(grey.sum(axis=0).argmax())
    assert abs(column - 0.5 * (79 + 600)) < 10


def test_title_is_no_formula(tmp_path: Path) -> None:
    """As a formula it would not parse, and the drawing would fail."""
    plots.draw_curves(_rows(2), tmp_path / "a.png", r"$\frac{$ " + "long " * 99)
    assert _pixels(tmp_path / "a.png").shape == (506, 1210, 3)


def test_failed_drawing_leaves_the_old_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"old")
    with pytest.raises(ValueError, match="shape"):
        plots.draw_confusion(np.eye(2), ["a"], tmp_path / "a.png", "t")
    assert (tmp_path / "a.png").read_bytes() == b"old"


@pytest.mark.parametrize("classes", [1, 2, 10, 20, 100])
def test_confusion_of_any_size(tmp_path: Path, classes: int) -> None:
    matrix = np.eye(classes, dtype=int) * 30
    names = [f"class $ {n}" for n in range(classes)]
    plots.draw_confusion(matrix, names, tmp_path / "a.png", "t")
    pixels = _pixels(tmp_path / "a.png")
    assert min(pixels.shape[:2]) > 400
    darkest_blue = (8, 48, 107)
    assert _has_color(pixels, darkest_blue)


def test_counts_stand_in_the_cells_of_few_classes(tmp_path: Path) -> None:
    """With one class the cell is one colour, unless a count is written in it."""
    plots.draw_confusion(np.array([[123]]), ["a"], tmp_path / "a.png", "t")
    pixels = _pixels(tmp_path / "a.png")
    height, width, _ = pixels.shape
    white = (pixels > 200).all(axis=-1)
    cell = white[height // 3 : height * 2 // 3, width // 4 : width * 2 // 3]
    assert 20 < cell.sum() < cell.size // 10


def test_class_without_images_is_drawn(tmp_path: Path) -> None:
    """Its row is zero; zero by zero must not spoil the colours."""
    with np.errstate(all="raise"):
        plots.draw_confusion(
            np.array([[4, 0], [0, 0]]), ["a", "b"], tmp_path / "a.png", "t"
        )
        plots.draw_confusion(np.zeros((2, 2)), ["a", "b"], tmp_path / "b.png", "t")
    assert _has_color(_pixels(tmp_path / "a.png"), (8, 48, 107))


def test_pyplot_stays_out_and_matplotlib_waits_for_a_picture(tmp_path: Path) -> None:
    program = (
        "import sys; from fl import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.draw_curves([], sys.argv[1], 't')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "a.png")]
    root = Path(plots.__file__).parents[1]
    assert subprocess.run(run, cwd=root).returncode == 0
