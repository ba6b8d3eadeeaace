"""The scaling benchmark's arithmetic and its data of noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.scaling import Point
from data.partition import partition
from data.sources import load_dataset
from fl.wiring import partition_spec
from flags.parse import parse


def test_seconds_are_per_client_and_milliseconds_per_image() -> None:
    point = Point("m", 4, run=lambda: None, clients=4, images=50)
    row = scaling.row_of(point, seconds=2.0)
    assert (row["seconds_a_client"], row["ms_an_image"]) == (0.5, 10.0)


def test_ratios_are_to_the_first_of_the_series() -> None:
    rows = [
        scaling.row_of(Point(series, value, lambda: None, 1, images), seconds)
        for series, value, images, seconds in (
            ("m", 5, 10, 2.0),
            ("m", 30, 10, 2.2),
            ("K", 10, 10, 4.0),
            ("K", 100, 40, 8.0),
        )
    ]
    lines = scaling.table_lines(rows)
    assert lines[2].split() == ["m", "=", "30", "2.200", "1.10", "220.00", "1.10"]
    assert lines[4].split() == ["K", "=", "100", "8.000", "2.00", "200.00", "0.50"]


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_noise_suffices_for_thirty_clients(dataset: str, tmp_path: Path) -> None:
    scaling.write_noise(tmp_path)
    words = [*scaling.COMMON, f"--dataset={dataset}", "--num_unlabel=100"]
    config = parse([*words, "--helper_cnt=5"]).config
    raw = load_dataset(dataset, str(tmp_path))
    clients = partition(raw, partition_spec(config)).clients
    assert len(clients) == 30
    classes = {"cifar10": 10, "cifar100": 100}[dataset]
    assert {len(c.labeled) for c in clients} == {3 * classes}
    assert {len(c.unlabeled) for c in clients} == {100}


def test_picture_and_table_are_written(tmp_path: Path) -> None:
    rows = [
        scaling.row_of(Point(series, value, lambda: None, 1, 10), 1.0)
        for series in "mK"
        for value in (1, 2)
    ]
    scaling._write(rows, tmp_path / "new")
    text = (tmp_path / "new" / "scaling.csv").read_text().splitlines()
    assert text[0] == "varies,value,seconds,seconds_a_client,ms_an_image"
    assert len(text) == 5
    assert (tmp_path / "new" / "scaling.png").read_bytes()[:4] == b"\x89PNG"
    assert np.isfinite(float(text[1].split(",")[2]))
