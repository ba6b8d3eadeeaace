"""The arithmetic of how long runs take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import timing
from experiments.timing import HANDLING, START_SECONDS, Network
from fl import records
from fl.records import RoundRecord
from flags.config import ExperimentConfig
from flags.parse import parse

RESNET9 = Network("res9", "none", True, (32, 32, 3))


def configure(*words: str) -> ExperimentConfig:
    return parse(["--dataset=cifar10", "--num_active_client=1", *words]).config


def test_protofssl_passes() -> None:
    """10 episodes of 10 x 3 labelled and 100 unlabelled images, then 50 for prototypes.

    With three passes for a trained image: 3 * 10 * 130 + 50.
    """
    assert timing.round_passes(configure()) == 3950


def test_algorithm_2_passes() -> None:
    """All 50 labelled images are queries: 3 * 10 * 150 + 50."""
    assert timing.round_passes(configure("--prototype_source=global")) == 4550


def test_fedavg_passes() -> None:
    """Two epochs of 540 images."""
    config = configure("--method=fedavg", "--num_label=54")
    assert timing.round_passes(config) == 3 * 2 * 540


def test_clients_count() -> None:
    config = configure("--method=fedavg", "--num_active_client=5")
    assert timing.round_passes(config) == 5 * 3 * 2 * 50


def test_fedrgd_passes() -> None:
    """5 steps of 64 labelled, 64 weak and 64 strong views, the weak ones untrained."""
    config = configure("--method=fedrgd", "--num_active_client=2")
    assert timing.round_passes(config) == 2 * 5 * 64 * (3 + 1 + 3)


@pytest.mark.parametrize(
    ("labels", "steps"),
    [
        (5, 5),  # 490 unlabelled images in hundreds; 50 labelled ones in tens.
        (10, 10),  # 100 labelled images in tens, 440 unlabelled ones spread.
    ],
)
def test_fixmatch_passes(labels: int, steps: int) -> None:
    """Two epochs: labelled images trained, unlabelled ones once untrained too."""
    unlabeled = 540 - 10 * labels
    words = (f"--num_label={labels}", f"--num_unlabel={unlabeled}")
    config = configure("--method=fixmatch", *words)
    assert timing.round_passes(config) == 2 * (3 * 10 * steps + 4 * unlabeled)


def test_fixmatch_passes_few_unlabelled_images_again() -> None:
    """50 steps for 500 labelled images; 40 unlabelled ones go to them in turns."""
    words = ("--num_label=50", "--num_unlabel=40", "--local_episode=1")
    config = configure("--method=fixmatch", *words)
    assert timing.round_passes(config) == 3 * 500 + 4 * 50


def test_fedmatch_passes() -> None:
    """Forward, twice with a gradient, and once for each of two helpers.

    Then the 50 labelled images and the image by which clients are compared.
    """
    config = configure("--method=fedmatch")
    assert timing.round_passes(config) == 3 * 50 + (1 + 3 + 3 + 2) * 490 + 51


@pytest.mark.parametrize(
    ("words", "done", "count"),
    [
        (("--num_round=30", "--eval_every=10"), 0, 3),
        (("--num_round=30", "--eval_every=10"), 20, 1),
        (("--num_round=30", "--eval_every=10"), 30, 0),
        (("--num_round=31", "--eval_every=10"), 0, 4),
        (("--num_round=3", "--eval_every=10"), 0, 1),
        (("--num_round=300", "--eval_every=1", "--eval_from=101"), 0, 200),
    ],
)
def test_evaluations(words: Any, done: int, count: int) -> None:
    """Every so many rounds from the first that may be, and after the last."""
    from fl.experiment import is_evaluated

    config = configure(*words)
    assert timing.evaluations(config, done + 1) == count
    rounds = range(done + 1, config.num_round + 1)
    assert sum(is_evaluated(config, number) for number in rounds) == count


def test_cost_left() -> None:
    """Rounds of 300 passes and one client's weights, and 6,000 held-out images twice.

    The first time after round 5.
    """
    config = configure("--method=fedavg", "--num_round=10", "--eval_every=5")
    assert timing.cost_left(config, 5) == 5 * (300 + HANDLING) + 6000
    assert timing.cost_left(config, 0) == 10 * (300 + HANDLING) + 12000


def test_estimate_by_a_timed_network() -> None:
    config = configure("--method=fedavg", "--num_round=10", "--eval_every=5")
    found = timing.estimate(config, 6, None, {RESNET9: 0.01})
    seconds = START_SECONDS + 0.01 * timing.cost_left(config, 6)
    assert found == timing.Estimate(seconds, "timed")


def test_estimate_by_runs_beats_the_timed_network() -> None:
    config = configure("--method=fedavg", "--num_round=10", "--eval_every=5")
    found = timing.estimate(config, 0, 0.1, {RESNET9: 0.01})
    seconds = START_SECONDS + 0.1 * timing.cost_left(config, 0)
    assert found == timing.Estimate(seconds, "measured")


def test_estimate_without_any_pace() -> None:
    assert timing.estimate(configure(), 0, None, {}) == timing.Estimate(None, "unknown")


def write_metrics(path: Path, *seconds: float) -> Path:
    rows = [RoundRecord(round=i, seconds=s) for i, s in enumerate(seconds, start=1)]
    records.write_rows(path, rows, RoundRecord)
    return path


def test_measured_pace_is_the_median_without_first_rounds(tmp_path: Path) -> None:
    """Rounds of 2, 4 and 9 s after the first: 4 s for 300 passes and the weights."""
    config = configure("--method=fedavg")
    paths = [
        write_metrics(tmp_path / "a.csv", 100.0, 2.0, 4.0),
        write_metrics(tmp_path / "b.csv", 100.0, 9.0),
        tmp_path / "missing.csv",
    ]
    pace = timing.measured_pace(config, paths)
    assert pace == pytest.approx(4.0 / (300 + HANDLING))


def test_measured_pace_of_a_single_round(tmp_path: Path) -> None:
    config = configure("--method=fedavg")
    path = write_metrics(tmp_path / "a.csv", 100.0)
    assert timing.measured_pace(config, [path]) == pytest.approx(100 / (300 + HANDLING))
    assert timing.measured_pace(config, [write_metrics(tmp_path / "b.csv")]) is None


def test_network_of_a_run() -> None:
    config = parse(["--dataset=stl10", "--bn_type=sbn", "--model=res18"]).config
    assert timing.network(config) == Network("res18", "sbn", True, (96, 96, 3))
    assert timing.network(configure("--method=fedavg")) == RESNET9


def test_calibrate_times_real_networks() -> None:
    """In the order asked for, and in another process."""
    networks = [Network("res9", norm, True, (8, 8, 1)) for norm in ("none", "bn")]
    paces = timing.calibrate(networks)
    assert list(paces) == networks
    assert all(pace > 0 for pace in paces.values())


def test_calibrate_tells_nothing_where_it_fails() -> None:
    assert timing.calibrate([]) == {}
    assert timing.calibrate([Network("no such", "none", True, (8, 8, 1))]) == {}
