"""Tests that TensorBoard's own reader finds each point once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List, Tuple

import attr
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl.records import RoundRecord
from fl.tensorboard import TAGS, TensorBoardLog


def _read(folder: Path) -> Dict[str, List[Tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def _full_row() -> RoundRecord:
    """Eighths, so that float32 (TensorBoard's precision) holds every value."""
    values = dict(zip(TAGS, [n / 8 for n in range(1, 11)]))
    return RoundRecord(
        1, bytes_down=2048, bytes_up=4096, pseudo_label_share=1.5, **values
    )


def test_every_field_but_the_round_has_a_tag() -> None:
    fields = [field.name for field in attr.fields(RoundRecord)]
    assert list(TAGS) == fields[1:]
    assert len(set(TAGS.values())) == len(TAGS)


def test_a_row_is_one_point_per_value(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path / "log") as log:
        log.write(_full_row())
    assert _read(tmp_path / "log") == {
        "train/accuracy": [(1, 0.125)],
        "train/loss": [(1, 0.25)],
        "train/unlabeled_loss": [(1, 0.375)],
        "pseudo_label/accuracy": [(1, 0.5)],
        "pseudo_label/confidence": [(1, 0.625)],
        "validation/accuracy": [(1, 0.75)],
        "validation/loss": [(1, 0.875)],
        "test/accuracy": [(1, 1.0)],
        "test/loss": [(1, 1.125)],
        "cost/seconds": [(1, 1.25)],
        "cost/bytes_down": [(1, 2048.0)],
        "cost/bytes_up": [(1, 4096.0)],
        "pseudo_label/share": [(1, 1.5)],
    }


def test_absent_values_have_no_point(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        log.write(RoundRecord(1))
        log.write(RoundRecord(2, train_acc=0.0))
        log.write(RoundRecord(5, train_acc=0.5, val_acc=0.25))
    assert _read(tmp_path) == {
        "train/accuracy": [(2, 0.0), (5, 0.5)],
        "validation/accuracy": [(5, 0.25)],
    }


def test_points_can_be_read_while_the_log_is_open(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        log.write(RoundRecord(1, train_acc=0.5))
        assert _read(tmp_path) == {"train/accuracy": [(1, 0.5)]}


def test_after_reopening_each_point_stands_once(tmp_path: Path) -> None:
    """A run of three rounds falls back to round two and is resumed."""
    rows = [RoundRecord(n, train_acc=n / 8) for n in (1, 2, 3)]
    with TensorBoardLog(tmp_path) as log:
        for row in rows:
            log.write(row)
    (tmp_path / "notes.txt").write_text("stays")
    with TensorBoardLog(tmp_path) as log:
        for row in rows[:2]:
            log.write(row)
        log.write(RoundRecord(3, train_acc=1.0))
    assert _read(tmp_path) == {"train/accuracy": [(1, 0.125), (2, 0.25), (3, 1.0)]}
    assert len(os.listdir(tmp_path)) == 2
    assert (tmp_path / "notes.txt").read_text() == "stays"


def test_file_of_a_reopened_log_sorts_after_the_one_before(tmp_path: Path) -> None:
    """TensorBoard, left running, goes on to files of greater name only."""
    TensorBoardLog(tmp_path).close()
    (first,) = os.listdir(tmp_path)
    TensorBoardLog(tmp_path).close()
    (second,) = os.listdir(tmp_path)
    assert second > first


def test_value_is_kept_to_single_precision(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        log.write(RoundRecord(1, train_loss=0.1))
    assert _read(tmp_path) == {"train/loss": [(1, float(np.float32(0.1)))]}


def test_closed_log_takes_no_row(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write(RoundRecord(1, train_acc=0.5))
