"""Tests that rows come back as they were and that a damaged file is named."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import attr
import numpy as np
import pytest

from fl import records
from fl.records import ClientRecord, RoundRecord

METRICS = (
    "round,train_acc,train_loss,unlabeled_loss,pseudo_label_acc,"
    "pseudo_label_confidence,val_acc,val_loss,test_acc,test_loss,seconds,"
    "bytes_down,bytes_up,pseudo_label_share"
)
CLIENTS = "round,client,train_acc,train_loss,unlabeled_loss,prototype_norm,num_examples"


def test_file_is_plain_csv(tmp_path: Path) -> None:
    row = RoundRecord(1, train_acc=0.1, val_acc=1.0, bytes_up=26262040)
    records.write_rows(tmp_path / "metrics.csv", [row, RoundRecord(2)])
    assert (tmp_path / "metrics.csv").read_bytes().decode() == (
        f"{METRICS}\n1,0.1,,,,,1.0,,,,,,26262040,\n2,,,,,,,,,,,,,\n"
    )


def test_clients_file_has_its_columns(tmp_path: Path) -> None:
    row = ClientRecord(3, 0, 0.5, 1.25, None, 2.0, 540)
    records.write_rows(tmp_path / "clients.csv", [row])
    text = (tmp_path / "clients.csv").read_text()
    assert text == f"{CLIENTS}\n3,0,0.5,1.25,,2.0,540\n"
    assert records.read_rows(tmp_path / "clients.csv", ClientRecord) == [row]


def test_any_standard_reader_gives_the_same_numbers(tmp_path: Path) -> None:
    row = RoundRecord(1, train_acc=1 / 3, seconds=0.1 + 0.2)
    records.write_rows(tmp_path / "m.csv", [row])
    with open(tmp_path / "m.csv", newline="") as file:
        (read,) = csv.DictReader(file)
    assert float(read["train_acc"]) == 1 / 3
    assert float(read["seconds"]) == 0.1 + 0.2
    assert read["val_acc"] == ""


def test_floats_come_back_exactly(tmp_path: Path) -> None:
    """Random bit patterns over the whole range, and the edges of it."""
    bits = np.random.default_rng(0).integers(0, 2**64, 500, dtype=np.uint64)
    values = [x for x in bits.view(np.float64).tolist() if math.isfinite(x)]
    values += [0.0, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf]
    rows = [RoundRecord(n, train_loss=x) for n, x in enumerate(values, start=1)]
    records.write_rows(tmp_path / "m.csv", rows)
    read = records.read_rows(tmp_path / "m.csv", RoundRecord)
    assert read == rows
    # Equality does not tell -0.0 from 0.0; the sign does.
    assert str(read[values.index(0.0) + 1].train_loss) == "-0.0"


def test_nan_is_a_value_and_not_an_absence(tmp_path: Path) -> None:
    records.write_rows(tmp_path / "m.csv", [RoundRecord(1, train_loss=math.nan)])
    (read,) = records.read_rows(tmp_path / "m.csv", RoundRecord)
    assert read.train_loss is not None
    assert math.isnan(read.train_loss)
    assert read.val_loss is None


def test_numpy_scalars_become_plain_numbers() -> None:
    """A float32 keeps its value: 0.1f is 13421773 / 2^27 exactly."""
    row = RoundRecord(np.int64(1), train_acc=np.float32(0.1), bytes_up=np.int32(5))
    assert type(row.round) is int
    assert type(row.train_acc) is float
    assert row.train_acc == 13421773 / 2**27
    assert type(row.bytes_up) is int


def test_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(TypeError):
        RoundRecord(1, bytes_up=1.5)


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="round"):
        RoundRecord(0)
    with pytest.raises(ValueError, match="client"):
        ClientRecord(1, -1)


def test_records_are_frozen() -> None:
    with pytest.raises(attr.exceptions.FrozenInstanceError):
        RoundRecord(1).round = 2  # type: ignore[misc]


def test_no_rows_is_a_header(tmp_path: Path) -> None:
    records.write_rows(tmp_path / "m.csv", [], RoundRecord)
    assert (tmp_path / "m.csv").read_text() == METRICS + "\n"
    assert records.read_rows(tmp_path / "m.csv", RoundRecord) == []
    with pytest.raises(ValueError, match="record_class"):
        records.write_rows(tmp_path / "other.csv", [])


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    rows = [RoundRecord(n) for n in (1, 2, 3)]
    records.write_rows(tmp_path / "m.csv", rows)
    records.write_rows(tmp_path / "m.csv", rows[:1])
    assert records.read_rows(tmp_path / "m.csv", RoundRecord) == rows[:1]
    assert os.listdir(tmp_path) == ["m.csv"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is cut off"),
        (METRICS.encode(), "is cut off"),
        (f"{METRICS}\n1,,,,,,0.12".encode(), "is cut off"),
        (f"{METRICS}\n1,0.5\n".encode(), "line 2 has 2 cells; 14 are expected"),
        (f"{METRICS}\n\n".encode(), "line 2 has 0 cells"),
        (
            f"{METRICS}\n1,abc,,,,,,,,,,,,\n".encode(),
            "line 2: train_acc is 'abc'; a number or nothing is expected",
        ),
        (
            f"{METRICS}\n1,,,,,,,,,,,0.5,,\n".encode(),
            "bytes_down is '0.5'; an integer or nothing is expected",
        ),
        (
            f"{METRICS}\n1,,,,,,,,,,,,,\n,,,,,,,,,,,,,\n".encode(),
            "line 3: round is ''; an integer is expected",
        ),
        (f"{METRICS}\n0,,,,,,,,,,,,,\n".encode(), "line 2: 'round' must be >= 1"),
        (f"{CLIENTS}\n".encode(), "begins with 'round,client"),
        (b"\n", "begins with ''"),
        (b"\xff\xfe\n", "is damaged"),
        (b'"never closed\n', "is damaged"),
        (b"\0" * 50 + b"\n", "damaged|begins with"),
    ],
)
def test_damaged_file_is_named_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with pytest.raises(records.RecordError, match=message) as caught:
        records.read_rows(path, RoundRecord)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(records.RecordError, match="m.csv cannot be read .No such"):
        records.read_rows(tmp_path / "m.csv", RoundRecord)


def test_best_round_is_the_first_of_equals() -> None:
    accuracies = [0.1, None, 0.5, 0.5, math.nan, 0.4]
    rows = [RoundRecord(n, val_acc=a) for n, a in enumerate(accuracies, start=1)]
    assert records.best_round(rows) == rows[2]


def test_best_round_may_have_no_accuracy_at_all() -> None:
    """Zero is an accuracy: it is better than none."""
    zero = RoundRecord(2, val_acc=0.0)
    assert records.best_round([RoundRecord(1), zero]) == zero


def test_best_round_of_nothing_is_none() -> None:
    assert records.best_round([]) is None
    assert records.best_round([RoundRecord(1, test_acc=0.9)]) is None
    assert records.best_round([RoundRecord(1, val_acc=math.nan)]) is None


def test_summary_of_a_run() -> None:
    """Best validation is in round 2; the seconds are 1.5 + 2.5 = 4."""
    rows = [
        RoundRecord(1, val_acc=0.25, test_acc=0.3, seconds=1.5),
        RoundRecord(2, val_acc=0.5, test_acc=0.4),
        RoundRecord(3, val_acc=0.375, test_acc=0.75, seconds=2.5),
    ]
    assert records.summarize(rows) == {
        "best_round": 2,
        "best_val_acc": 0.5,
        "test_acc_at_best": 0.4,
        "last_val_acc": 0.375,
        "last_test_acc": 0.75,
        "rounds": 3,
        "total_seconds": 4.0,
    }


def test_summary_of_nothing_has_no_values() -> None:
    summary = records.summarize([])
    assert summary.pop("rounds") == 0
    assert set(summary.values()) == {None}


def test_truncate_keeps_all_rows_up_to_the_round() -> None:
    rows = [ClientRecord(r, c) for r in (1, 2, 3) for c in (7, 4)]
    assert records.truncate(rows, 2) == rows[:4]
    assert records.truncate(rows, 0) == []
    assert records.truncate(rows, 9) == rows
