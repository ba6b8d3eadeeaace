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


def _point(series: str, value: int, clients: int = 1, images: int = 10) -> Point:
    return Point(series, value, lambda: None, clients, images)


def test_seconds_are_per_client_and_milliseconds_per_image() -> None:
    (row,) = scaling.table_rows([_point("m", 4, 4, 50)], {"m = 4": [2.0, 9.0, 1.0]})
    assert (row["seconds_a_client"], row["ms_an_image"]) == (0.5, 10.0)


def test_ratios_are_to_the_first_of_the_series_turn_by_turn() -> None:
    """m = 30 takes 12.4, 13.2, 14 times as long for 12 times the clients."""
    points = [_point("m", 5), _point("m", 30, clients=12)]
    points += [_point("K", 10), _point("K", 100, images=40)]
    seconds = {
        "m = 5": [2.0, 4.0, 2.0],
        "m = 30": [26.4, 49.6, 28.0],
        "K = 10": [4.0],
        "K = 100": [8.0],
    }
    lines = scaling.table_lines(scaling.table_rows(points, seconds))
    assert lines[2].split() == ["m", "=", "30", "2.333", "1.10", "233.33", "1.10"]
    assert lines[4].split() == ["K", "=", "100", "8.000", "2.00", "200.00", "0.50"]


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_noise_suffices_for_thirty_clients(dataset: str, tmp_path: Path) -> None:
    scaling.write_noise(tmp_path)
    words = [*scaling.COMMON, f"--dataset={dataset}", "--helper_cnt=5"]
    config = parse(words).config
    raw = load_dataset(dataset, str(tmp_path))
    clients = partition(raw, partition_spec(config)).clients
    assert len(clients) == 30
    classes = {"cifar10": 10, "cifar100": 100}[dataset]
    assert {len(c.labeled) for c in clients} == {3 * classes}
    assert {len(c.unlabeled) for c in clients} == {100}


def test_picture_and_table_are_written(tmp_path: Path) -> None:
    points = [_point(series, value) for series in "mK" for value in (1, 2)]
    rows = scaling.table_rows(points, {point.name: [1.0] for point in points})
    scaling._write(rows, tmp_path / "new")
    text = (tmp_path / "new" / "scaling.csv").read_text().splitlines()
    assert text[0] == (
        "varies,value,seconds,seconds_a_client,ratio_a_client,ms_an_image,ratio_an_image"
    )
    assert len(text) == 5
    assert (tmp_path / "new" / "scaling.png").read_bytes()[:4] == b"\x89PNG"
    assert np.isfinite(float(text[1].split(",")[2]))
