"""How fast a round of ProtoFSSL is, against the least it could take and a plain loop.

    python -m benchmarks.round [--repeats=5] [--episodes=4] [flags of main.py]

Measures in one run, all in turn, for ResNet8 on 32x32 images, 130 of them an episode,
without and with batch norm:

* ours: the TFF round of 5 clients, seconds per episode; making the prototypes that
  clients share, broadcasting, averaging and all messages are part of it;
* sequential: the same with the optimizer handed from client to client;
* eager: the same maths as a plain eager Keras loop, as the authors' program has it;
* floor: the network's convolutions alone (`benchmarks.floor`);
* peak: a large matrix product. A floor that reaches less than 75 % of its speed is not
  the least there could be, and is said not to be trusted.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import attr
from absl import logging

from benchmarks import timing
from fl import environment, wiring
from fl.progress import write_line
from flags.errors import UsageError
from flags.parse import HelpWanted, parse

SETTING = ("--dataset=cifar10", "--num_client=5", "--num_active_client=5")
TRUSTED_SHARE = 0.75
PEAK = "peak"


@attr.frozen
class Measured:
    """A kind of task: its seconds per episode are its seconds over its episodes."""

    run: Callable[[], Any]
    episodes: int


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    try:
        options, words = timing.split_numbers(argv, {"repeats": 5, "episodes": 4})
        _measure(options["repeats"], options["episodes"], words)
    except HelpWanted as wanted:
        write_line(str(wanted))
    except UsageError as error:
        sys.stderr.write(f"benchmarks.round: error: {error}\n")
        return 2
    return 0


def _measure(repeats: int, episodes: int, words: Sequence[str]) -> None:
    common = [*SETTING, f"--local_episode={episodes}", *words]
    environment.prepare_tensorflow(parse(common).config.threads)
    from fl.runtime import Runtime
    from fl.workers import LocalWorker

    with (
        tempfile.TemporaryDirectory() as folder,
        Runtime([LocalWorker(Path(folder) / "worker.log")]),
    ):
        for norm in ("none", "bn"):
            logging.info("normalisation %s: compiling", norm)
            tasks, flops = _tasks([*common, f"--bn_type={norm}"])
            seconds = timing.medians(
                timing.interleaved({k: t.run for k, t in tasks.items()}, repeats)
            )
            each = {k: seconds[k] / task.episodes for k, task in tasks.items()}
            for line in report_lines(norm, each, flops):
                write_line(line)


def _tasks(words: Sequence[str]) -> Tuple[Dict[str, Measured], Tuple[float, float]]:
    """What is measured, and the FLOPs of the floor and of the matrix product."""
    from benchmarks import floor
    from benchmarks.plain import PlainClient, resnet8
    from models.specs import pool_sizes

    tasks = {}
    for name, treatment in (("ours", "fresh"), ("sequential", "sequential")):
        config = parse([*words, f"--optimizer_state={treatment}"]).config
        method: Any = wiring.make_method(config, wiring.load_data(config))
        state = method.run_round(method.initial_state()).state
        episodes = config.local_episode * config.num_active_client
        tasks[name] = Measured(functools.partial(method.run_round, state), episodes)
    helpers, clients = method.with_helpers(state).helpers, method.clients(state)[1]
    shape = method.setup.data.images.shape[1:]
    network = resnet8(shape, pool_sizes(config.model, shape), config.bn_type)
    network.set_weights(list(state.model_weights))
    plain = PlainClient(network, config.opt_lr)
    tasks["eager"] = Measured(
        functools.partial(plain.train, clients[0], helpers),
        config.local_episode,
    )
    shapes = floor.conv_shapes(method.model)
    batch = _images_an_episode(config, method.setup.data.num_classes)
    tasks["floor"] = Measured(floor.convolutions(shapes, batch), 1)
    run, product_flops = floor.matrix_product()
    tasks[PEAK] = Measured(run, 1)
    return tasks, (floor.training_flops(shapes, batch), product_flops)


def _images_an_episode(config: Any, num_classes: int) -> int:
    return int(num_classes * (config.s_label + config.q_label) + config.q_unlabel)


def report_lines(
    norm: str, seconds: Mapping[str, float], flops: Tuple[float, float]
) -> List[str]:
    """Seconds per episode and their ratios.

    Args:
        norm: the normalisation.
        seconds: per episode, by task; of the matrix product in all.
        flops: of the floor and of the matrix product.
    """
    floor, peak = flops[0] / seconds["floor"], flops[1] / seconds[PEAK]
    share = floor / peak
    lines = [f"normalisation {norm}: seconds per episode"]
    for name in ("ours", "sequential", "eager", "floor"):
        ratio = seconds[name] / seconds["floor"]
        lines.append(f"  {name:10} {seconds[name]:7.3f}   {ratio:5.2f} x floor")
    lines.append(
        f"  ours is {seconds['eager'] / seconds['ours']:.2f} x as fast as eager; "
        f"sequential takes {seconds['sequential'] / seconds['ours']:.2f} x ours"
    )
    lines.append(
        f"  floor: {floor / 1e9:.0f} GFLOP/s, {100 * share:.0f} % of the matrix "
        f"product's {peak / 1e9:.0f}"
    )
    if share < TRUSTED_SHARE:
        lines.append(
            f"  under {100 * TRUSTED_SHARE:.0f} % of the peak: this floor is not to be "
            "trusted"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
