"""The sheet of augmented images, through the program itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments import show_augmentations


def test_writes_a_sheet_of_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wide enough for 8 columns; the same seed gives the same picture."""
    first, again, other = (tmp_path / name for name in ("a.png", "b.png", "c.png"))
    assert show_augmentations.main([f"--out={first}"]) == 0
    assert capsys.readouterr().out == f"picture: {first}\n"
    assert show_augmentations.main([f"--out={again}", "--seed=0"]) == 0
    assert show_augmentations.main([f"--out={other}", "--seed=1"]) == 0
    pixels = [np.asarray(Image.open(path)) for path in (first, again, other)]
    assert pixels[0].shape[0] > 2 * pixels[0].shape[1]
    np.testing.assert_array_equal(pixels[0], pixels[1])
    assert (pixels[0] != pixels[2]).any()


def test_rows_are_the_images_then_what_becomes_of_them() -> None:
    images = show_augmentations.load_images("digits", None)
    assert images.shape == (8, 8, 8, 1)
    assert images.max() == 1.0
    rows = show_augmentations.augmented_rows(images, seed=0, magnitude=30)
    names = list(rows)
    assert names[:2] == ["original", "flip"]
    assert {"strong_fedrgd", "rotate (30 of 30)"} <= set(names)
    np.testing.assert_array_equal(rows["original"], images)
    np.testing.assert_allclose(rows["identity (30 of 30)"], images)
    # Signs alternate: 1.9 times as bright in the first column, 0.1 in the second.
    bright = rows["brightness (30 of 30)"]
    np.testing.assert_allclose(bright[0], np.minimum(1.9 * images[0], 1), rtol=1e-5)
    np.testing.assert_allclose(bright[1], 0.1 * images[1], atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_montage_puts_rows_below_each_other(channels: int) -> None:
    """Two rows of three images of side 8, each with a white gap of 1: 18 x 27."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 0.9, (2, 3, 8, 8, channels))
    sheet = show_augmentations.montage(list(rows))
    assert sheet.shape == (18, 27, 3)
    np.testing.assert_array_equal(sheet[9:17, 18:26, :channels], rows[1, 2])
    assert (sheet[8] == 1.0).all()
    assert (sheet[:, 26] == 1.0).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--dataset=mnist", "--dataset=mnist: unknown"),
        ("--data_dir=absent", "--data_dir=absent: does not exist"),
        ("--seed=-1", "--seed: found -1"),
        ("--magnitude=31", "--magnitude: found 31"),
        ("--magnitude=nan", "--magnitude: found nan"),
        ("--out=/dev/null/a.png", "--out: /dev/null/a.png cannot be written"),
    ],
)
def test_a_mistake_is_one_line(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_augmentations.main([words]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith(f"show_augmentations: error: {told}")
