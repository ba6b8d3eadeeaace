"""Shows what each augmentation does to a few images of a data set.

    python -m experiments.show_augmentations [--dataset=digits --data_dir=FOLDER]
        [--out=augmentations.png --seed=0 --magnitude=20]

Writes a sheet of pictures: a row for each augmentation and each operation of
RandAugment, a column for each image. Operations that have a sign show it in turn, plus
in the first column.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import numpy as np

from data.sources import DataError, load_dataset
from fl import environment, files
from fl.progress import write_line
from flags.errors import UsageError

COLUMNS = 8
_GAPS_PER_SIDE = 8  # So many gaps between images are as wide as an image.
_CELL_INCHES = 0.8
_LABEL_INCHES = 2.0
_TITLE_INCHES = 0.4
_DPI = 110


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    arguments = _parser().parse_args(argv)
    environment.set_up_logging()
    try:
        _check(arguments)
        images = load_images(arguments.dataset, arguments.data_dir)
        rows = augmented_rows(images, arguments.seed, arguments.magnitude)
        _draw(rows, arguments.out, f"{arguments.dataset}, seed {arguments.seed}")
    except UsageError as error:
        sys.stderr.write(f"show_augmentations: error: {error}\n")
        return 2
    write_line(f"picture: {arguments.out}")
    return 0


def load_images(dataset: str, data_dir: Optional[str]) -> np.ndarray:
    """The first images of a data set, float32 [B, H, W, C] in [0, 1].

    Raises:
        UsageError: if it cannot be had.
    """
    try:
        raw = load_dataset(dataset, data_dir)
    except DataError as error:
        raise UsageError(str(error)) from None
    part = raw.x_train if len(raw.x_train) else raw.x_test
    return part[:COLUMNS].astype(np.float32) / 255.0


def augmented_rows(
    images: np.ndarray, seed: int, magnitude: float
) -> Dict[str, np.ndarray]:
    """The images after each augmentation, by label.

    Args:
        images: float32 [B, H, W, C] in [0, 1].
        seed: for all random draws.
        magnitude: of the single operations of RandAugment, 0 to 30; the augmentations
            keep the magnitudes that the methods use.

    Returns:
        The images themselves first, then [B, H, W, C] for each augmentation.
    """
    environment.prepare_tensorflow()
    import tensorflow as tf

    from fl import augment

    batch, pair = tf.constant(images), tf.constant([seed, 0], tf.int32)
    signs = tf.constant([(-1.0) ** column for column in range(len(images))])
    rows = {"original": images}
    for name, kind in augment.KINDS.items():
        rows[name] = kind(batch, pair).numpy()
    for name in augment.OPERATIONS:
        changed = augment.apply_operation(name, batch, signs, magnitude)
        rows[f"{name} ({magnitude:g} of {augment.MAX_MAGNITUDE})"] = changed.numpy()
    return rows


def montage(rows: Sequence[np.ndarray]) -> np.ndarray:
    """One RGB picture of all rows, a white gap below and to the right of each image."""
    gap = rows[0].shape[1] // _GAPS_PER_SIDE
    frame = ((0, 0), (0, gap), (0, gap), (0, 0))
    lines = [np.pad(row, frame, constant_values=1.0) for row in rows]
    sheet = np.concatenate([np.concatenate(list(line), axis=1) for line in lines])
    return np.broadcast_to(sheet, (*sheet.shape[:2], 3))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.show_augmentations",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("--dataset", default="digits", help="name of the data set")
    parser.add_argument("--data_dir", help="folder that may hold <dataset>.npz")
    parser.add_argument("--out", type=Path, default=Path("augmentations.png"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--magnitude", type=float, default=20.0, help="of RandAugment's operations"
    )
    return parser


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.seed < 2**31:
        raise UsageError(f"--seed: found {arguments.seed}; 0 to 2147483647 is right")
    if not 0.0 <= arguments.magnitude <= 30.0:
        raise UsageError(f"--magnitude: found {arguments.magnitude}; 0 to 30 is right")


def _draw(rows: Dict[str, np.ndarray], path: Path, title: str) -> None:
    sheet = montage(list(rows.values()))
    width = COLUMNS * _CELL_INCHES + _LABEL_INCHES
    height = len(rows) * _CELL_INCHES + _TITLE_INCHES
    figure = import_module("matplotlib.figure").Figure((width, height), dpi=_DPI)
    import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    left, top = _LABEL_INCHES / width, 1.0 - _TITLE_INCHES / height
    axes = figure.add_axes((left, 0.0, 1.0 - left, top))
    axes.imshow(sheet, interpolation="nearest", vmin=0.0, vmax=1.0, aspect="auto")
    centers = (np.arange(len(rows)) + 0.5) * sheet.shape[0] / len(rows)
    axes.set_yticks(centers, list(rows))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, parse_math=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        with files.atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=_DPI)
    except OSError as error:
        raise UsageError(
            f"--out: {path} cannot be written ({error.strerror}); name a file that can"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
