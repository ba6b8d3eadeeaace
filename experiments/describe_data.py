"""Shows how a configuration deals its data: a table and a picture.

    python -m experiments.describe_data [flags of main.py]

Prints, for each client, how many labelled and unlabelled images of each class it has,
and writes the same as stacked bars to <out_dir>/data_<dataset>.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from absl import logging

from data.partition import FederatedData
from fl import environment, plots, wiring
from fl.progress import write_line
from flags.errors import UsageError
from flags.parse import HelpWanted, parse


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    try:
        resolved = parse(argv)
        for warning in resolved.warnings:
            logging.warning("%s", warning)
        config = resolved.config
        data = wiring.load_data(config)
        labeled, unlabeled = class_tables(data)
        for line in table_lines(labeled, unlabeled, data):
            write_line(line)
        path = Path(config.out_dir) / f"data_{config.dataset}.png"
        _draw(
            labeled, unlabeled, path, f"{config.dataset}: {config.num_client} clients"
        )
        write_line(f"picture: {path}")
    except HelpWanted as wanted:
        write_line(str(wanted))
    except UsageError as error:
        sys.stderr.write(f"describe_data: error: {error}\n")
        return 2
    return 0


def class_tables(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Images per client and class, [N, K]; one column where classes are unknown."""

    def count(labels: Optional[np.ndarray], indices: np.ndarray) -> np.ndarray:
        if labels is None:
            return np.array([len(indices)])
        return np.bincount(labels[indices], minlength=data.num_classes)

    labeled = [count(data.labels, client.labeled) for client in data.clients]
    unlabeled = [count(data.unlabeled_labels, c.unlabeled) for c in data.clients]
    return np.stack(labeled), np.stack(unlabeled)


def table_lines(
    labeled: np.ndarray, unlabeled: np.ndarray, data: FederatedData
) -> List[str]:
    """The table, a line a client, and the held-out images."""
    lines = ["client  labelled by class | unlabelled by class"]
    for number, (first, second) in enumerate(zip(labeled, unlabeled)):
        lines.append(f"{number:6d}  {_row(first)} | {_row(second)}")
    lines.append(f"   all  {_row(labeled.sum(0))} | {_row(unlabeled.sum(0))}")
    held_out = f"{data.validation.shape[1]} validation, {data.test.shape[1]} test"
    lines.append(f"held out per class: {held_out}")
    return lines


def _row(counts: np.ndarray) -> str:
    return " ".join(f"{count:4d}" for count in counts) + f"  ({counts.sum()})"


def _draw(labeled: np.ndarray, unlabeled: np.ndarray, path: Path, title: str) -> None:
    try:
        plots.draw_class_counts(
            {"labelled": labeled, "unlabelled": unlabeled}, path, title
        )
    except OSError as error:
        raise UsageError(
            f"--out_dir: {path} cannot be written ({error.strerror}); name a folder "
            "that can"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
