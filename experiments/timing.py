"""How long a run will take on this machine, before it starts.

Work is counted in passes of one image forward through the network; a training step
counts three for each image, as its backward pass takes about two. What a client passes
in a round follows from its configuration (`experiments.client_work`). FedMatch counts
all images as confident: an upper bound, and far above the first rounds, in which hardly
any image is.

An evaluation passes all held-out images once. A client's weights to and fro cost about
as much as `HANDLING` passes, whatever it trains on. Augmentation and writing are not
counted.

The seconds of a pass come from the rounds that runs of the same cell have recorded, or
else from a few steps of the cell's network, timed now (`calibrate`). Both include what
else this machine was or is busy with. Beside passes, a run takes `START_SECONDS`.

    python -m experiments.timing NETWORKS   is the timing itself, in its own process
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

import attr

from data.sources import DATASETS
from experiments.client_work import FORWARD_AND_BACK, passes
from fl import environment, records
from fl.progress import write_line
from fl.records import RecordError, RoundRecord
from flags.config import ExperimentConfig

ROOT = Path(__file__).parents[1]
# Measured with ResNet9 on CIFAR-10, FedAvg against FixMatch and clients of few images.
HANDLING = 100
# Imports, data, tracing, the runtime's first round, and writing the model at the end.
START_SECONDS = 30.0
CALIBRATION_SECONDS = 300.0
TIMED_STEPS = 5
LARGEST_BATCH = 32
TIMED_PIXELS = LARGEST_BATCH * 32 * 32
SMALLEST_BATCH = 4


@attr.frozen
class Network:
    """What the seconds of a pass depend on."""

    model: str
    norm: str
    bias: bool
    image_shape: Tuple[int, int, int]


@attr.frozen
class Estimate:
    """How long a run will take.

    Attributes:
        seconds: from now to its end; None if it cannot be told.
        basis: "measured", "timed" or "unknown".
    """

    seconds: Optional[float]
    basis: str


def network(config: ExperimentConfig) -> Network:
    """The network of a run."""
    shape = DATASETS[config.dataset].image_shape
    return Network(config.model, config.bn_type, config.conv_bias, shape)


def round_passes(config: ExperimentConfig) -> int:
    """Passes of a round, of all its clients."""
    forward, trained = passes(config)
    return config.num_active_client * (forward + FORWARD_AND_BACK * trained)


def training_passes(config: ExperimentConfig) -> int:
    """Passes of all rounds, without evaluation."""
    return config.num_round * round_passes(config)


def evaluations(config: ExperimentConfig, first_round: int = 1) -> int:
    """How many rounds from `first_round` on are evaluated."""
    rounds = range(first_round, config.num_round + 1)
    due = [r for r in rounds if r >= config.eval_from and r % config.eval_every == 0]
    last = bool(rounds) and config.num_round not in due
    return len(due) + last


def round_cost(config: ExperimentConfig) -> int:
    """What a round costs, in passes: those of its images, and the clients' weights."""
    return round_passes(config) + HANDLING * config.num_active_client


def cost_left(config: ExperimentConfig, rounds_done: int = 0) -> int:
    """What a run still costs, in passes, evaluation included."""
    info = DATASETS[config.dataset]
    held_out = info.num_classes * (info.cut.validation + info.cut.test)
    rounds = config.num_round - rounds_done
    evaluated = evaluations(config, rounds_done + 1)
    return rounds * round_cost(config) + evaluated * held_out


def estimate(
    config: ExperimentConfig,
    rounds_done: int,
    measured: Optional[float],
    timed: Mapping[Network, float],
) -> Estimate:
    """How long a run will take that has so many rounds already.

    Args:
        config: its configuration.
        rounds_done: rounds that are done.
        measured: seconds of a pass in runs like it, if there are any.
        timed: seconds of a pass by network, as `calibrate` gives them.
    """
    pace = timed.get(network(config)) if measured is None else measured
    if pace is None:
        return Estimate(None, "unknown")
    basis = "timed" if measured is None else "measured"
    return Estimate(START_SECONDS + pace * cost_left(config, rounds_done), basis)


def measured_pace(
    config: ExperimentConfig, metrics_files: Iterable[Path]
) -> Optional[float]:
    """Seconds of a pass in the rounds that runs of one configuration recorded.

    The first round of a run includes compilation; it is left out where there are more.
    """
    seconds: List[float] = []
    for path in metrics_files:
        try:
            rows = records.read_rows(path, RoundRecord)
        except RecordError:
            continue
        told = [row.seconds for row in rows if row.seconds is not None]
        seconds.extend(told[1:] or told)
    return statistics.median(seconds) / round_cost(config) if seconds else None


def calibrate(networks: Sequence[Network]) -> Mapping[Network, float]:
    """Times some steps of each network in a process of its own; seconds of a pass.

    This process stays without TensorFlow. Where timing fails, nothing is told.
    """
    if not networks:
        return {}
    wanted = json.dumps([attr.astuple(each) for each in networks])
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "experiments.timing", wanted],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALIBRATION_SECONDS,
        )
        paces = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(networks, paces))


def _timed_batch(image_shape: Sequence[int]) -> int:
    """Images a timed step, so that it takes about as long at any size."""
    pixels = image_shape[0] * image_shape[1]
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, TIMED_PIXELS // pixels))


def _time_network(chosen: Network) -> float:
    """Seconds of a pass: the median of some training steps, after a first one."""
    import tensorflow as tf

    from models.builder import build_model

    model = build_model(
        chosen.model, chosen.image_shape, norm=chosen.norm, use_bias=chosen.bias
    )
    batch = _timed_batch(chosen.image_shape)
    images = tf.random.stateless_uniform([batch, *chosen.image_shape], [0, 0])

    @tf.function
    def step() -> List[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        gradients: List[tf.Tensor] = tape.gradient(loss, model.trainable_variables)
        return gradients

    seconds = []
    for _ in range(1 + TIMED_STEPS):
        began = time.monotonic()
        step()[0].numpy()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:]) / (FORWARD_AND_BACK * batch)


def main(argv: Sequence[str]) -> int:
    """Times the networks that `calibrate` asks for; answers on standard output."""
    environment.prepare_tensorflow()
    chosen = [Network(m, n, b, tuple(shape)) for m, n, b, shape in json.loads(argv[0])]
    write_line(json.dumps([_time_network(each) for each in chosen]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
