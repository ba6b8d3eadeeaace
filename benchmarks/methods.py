"""What a step of each method costs, as a multiple of plain FedAvg's.

    python -m benchmarks.methods [--repeats=5] [flags of main.py]

Each method runs its second round, of three clients on --dataset (default cifar10) with
one local epoch or episode, again and again, all methods in turn. A round's seconds over
its steps are the cost of a step; over the images that its steps take, labelled and
unlabelled, that of an image. Broadcasting and averaging are part of it, FedMatch's two
helpers a client too. Early in training few pseudo-labels count; FedMatch, which leaves
images out of which it is not sure, grows dearer later.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, List, Mapping, Sequence

import attr
from absl import logging

from benchmarks import program, timing
from fl import wiring
from flags.parse import parse
from flags.presets import METHODS

YARDSTICK = "fedavg"
SETTING = (
    "--dataset=cifar10",
    "--num_client=3",
    "--num_active_client=3",
    "--helper_cnt=2",
    "--helper_interval=1",
    "--local_episode=1",
)


@attr.frozen
class Work:
    """What a round does, over all its clients."""

    steps: int
    images: int


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    return program.run("methods", argv, {"repeats": 5}, _measure)


def _measure(numbers: Mapping[str, int], words: Sequence[str]) -> List[str]:
    configs = {
        name: parse([*SETTING, *words, f"--method={name}"]).config for name in METHODS
    }
    tasks, works = {}, {}
    with program.workers(configs[YARDSTICK]):
        for name, config in configs.items():
            logging.info("making %s", name)
            method = wiring.make_method(config, wiring.load_data(config))
            state = after_one_round(method)
            tasks[name] = functools.partial(method.run_round, state)
            works[name] = work_of(method, state)
        seconds = timing.medians(timing.interleaved(tasks, numbers["repeats"]))
    return table_lines(seconds, works)


def after_one_round(method: Any) -> Any:
    """The state in which helpers and pseudo-labels have begun to count."""
    outcome = method.run_round(method.initial_state())
    for client, arrays in outcome.kept.items():
        method.client_states.put(client, outcome.state.round_num, arrays)
    return outcome.state


def work_of(method: Any, state: Any) -> Work:
    """The steps of a round, over all clients, and the images they take."""
    config = method.setup.config
    if config.method == "protofssl":
        labeled = method.setup.data.num_classes * (config.s_label + config.q_label)
        steps = config.local_episode * config.num_active_client
        return Work(steps=steps, images=steps * (labeled + config.q_unlabel))
    plans = [client.steps for client in method.clients(state)[1]]
    images = sum(p.labeled_count.sum() + p.unlabeled_count.sum() for p in plans)
    return Work(steps=sum(len(p.labeled_count) for p in plans), images=int(images))


def table_lines(seconds: Mapping[str, float], works: Mapping[str, Work]) -> List[str]:
    """A line a method: seconds and ratios."""
    steps = {name: seconds[name] / works[name].steps for name in seconds}
    images = {name: seconds[name] / works[name].images for name in seconds}
    lines = [
        f"{'method':10} {'steps':>5} {'images':>7} {'s/step':>8} {'of fedavg':>9} "
        f"{'ms/image':>9} {'of fedavg':>9}"
    ]
    for name, work in works.items():
        lines.append(
            f"{name:10} {work.steps:5d} {work.images:7d} {steps[name]:8.3f} "
            f"{steps[name] / steps[YARDSTICK]:9.2f} {1000 * images[name]:9.2f} "
            f"{images[name] / images[YARDSTICK]:9.2f}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
