"""How fast a round of ProtoFSSL is, against its convolutions alone and a plain loop.

    python -m benchmarks.round [--repeats=5] [--episodes=10] [flags of main.py]

Measures in one run, all in turn, for ResNet8 on 32x32 images, 130 of them an episode,
without and with batch norm (or with the --bn_type that is given):

* ours: the TFF round of 5 clients, seconds per episode; making the prototypes that
  clients share, broadcasting, averaging and all messages are part of it, so that fewer
  episodes than the paper's 10 make each one dearer;
* sequential: the same with the optimizer handed from client to client;
* eager: a client's episodes and prototypes as a plain eager Keras loop, as the authors'
  program has it, with TensorFlow as it comes (without anything sent or averaged);
* tuned: the same loop with the settings that ours gives TensorFlow (oneDNN, which
  TensorFlow leaves off on processors without AVX-512);
* floor: the network's convolutions alone, as TensorFlow computes them
  (`benchmarks.floor`); ours may be below it by `models.winograd`;
* peak: a large matrix product. A floor that reaches less than 75 % of its speed is not
  the least there could be, and is said not to be trusted.

Seconds are medians, ratios the medians of the ratios turn by turn. On a virtual machine
others on the same host take time from it; how much is said too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import attr
from absl import logging

from benchmarks import program, timing
from benchmarks.eager import EagerLoop
from fl import wiring
from flags.config import ExperimentConfig
from flags.errors import UsageError

SETTING = ("--dataset=cifar10", "--num_client=5", "--num_active_client=5")
FLOOR_RUNS = 5
PEAK_RUNS = 20
TRUSTED_SHARE = 0.75
PEAK = "peak"
# The plain loop has the maths of these flags' defaults and no other.
FIXED = (
    *("model", "distance", "prototype_source", "refine_at_begin", "min_share_samples"),
    *("optimizer", "opt_momentum", "weight_decay", "conv_bias", "fl_framework"),
    *("l2_in_loss", "unlabel_loss_type", "unlabeled_weight", "temperature"),
    *("pseudo_label_gradient", "use_noise", "warmup_episode", "unlabel_round"),
)
NORMS = ("none", "bn", "gn")


@attr.frozen
class Measured:
    """A kind of task: its seconds per episode are its seconds over its episodes."""

    run: Callable[[], Any]
    episodes: int

    def times(self, count: int) -> Measured:
        """The same so many times over: the short ones would be at a moment's mercy."""
        return Measured(lambda: [self.run() for _ in range(count)], count)


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    return program.run("round", argv, {"repeats": 5, "episodes": 10}, _measure)


def _measure(numbers: Mapping[str, int], words: Sequence[str]) -> Iterator[str]:
    config = program.protofssl([*SETTING, *words])
    check_plain(config)
    asked = any(word.startswith("--bn") for word in words)
    with program.workers(config):
        for norm in [config.bn_type] if asked else ["none", "bn"]:
            logging.info("normalisation %s: compiling", norm)
            forced = [f"--bn_type={norm}", f"--local_episode={numbers['episodes']}"]
            own = [*SETTING, *words, *forced]
            with (
                contextlib.closing(EagerLoop(own, True)) as plain,
                contextlib.closing(EagerLoop(own, False)) as tuned,
            ):
                tasks, flops = _tasks(own, numbers["episodes"], plain, tuned)
                runs = {name: task.run for name, task in tasks.items()}
                stolen = timing.Stolen()
                seconds = timing.interleaved(runs, numbers["repeats"], warm_up=0)
            each = {
                name: [total / task.episodes for total in seconds[name]]
                for name, task in tasks.items()
            }
            yield from report_lines(norm, each, flops, stolen.share())


def check_plain(config: ExperimentConfig) -> None:
    """Refuses what the plain loop does not do: ratios would compare different things.

    Raises:
        UsageError: for the first such flag.
    """
    choices = {name: (getattr(ExperimentConfig(), name),) for name in FIXED}
    for name, allowed in {**choices, "bn_type": NORMS}.items():
        found = getattr(config, name)
        if found not in allowed:
            raise UsageError(
                f"--{name}: found {found}, must be {' or '.join(map(str, allowed))} "
                "here; the plain loop has no other"
            )


def _tasks(
    words: Sequence[str], episodes: int, plain: EagerLoop, tuned: EagerLoop
) -> Tuple[Dict[str, Measured], Tuple[float, float]]:
    """What is measured, and the FLOPs of the floor and of the matrix product."""
    from benchmarks import floor

    tasks = {}
    for name, treatment in (("ours", "fresh"), ("sequential", "sequential")):
        config = program.protofssl([*words, f"--optimizer_state={treatment}"])
        method: Any = wiring.make_method(config, wiring.load_data(config))
        state = program.second_round(method)
        _train_an_episode(method, state)
        run = functools.partial(method.run_round, state)
        tasks[name] = Measured(run, episodes * config.num_active_client)
    for name, loop in (("eager", plain), ("tuned", tuned)):
        loop.train(1)
        tasks[name] = Measured(functools.partial(loop.train, episodes), episodes)
    shapes = floor.conv_shapes(method.model)
    batch = _images_an_episode(config, method.setup.data.num_classes)
    tasks["floor"] = Measured(floor.convolutions(shapes, batch), 1).times(FLOOR_RUNS)
    product, product_flops = floor.matrix_product()
    tasks[PEAK] = Measured(product, 1).times(PEAK_RUNS)
    for name in ("floor", PEAK):
        tasks[name].run()
    return tasks, (floor.training_flops(shapes, batch), product_flops)


def _train_an_episode(method: Any, state: Any) -> None:
    """A short round, so that the long ones find everything compiled."""
    message = method.message(method.with_helpers(state))
    clients = [program.first_episodes(c, 1) for c in method.clients(state)[1]]
    method.train(message, clients)


def _images_an_episode(config: Any, num_classes: int) -> int:
    return int(num_classes * (config.s_label + config.q_label) + config.q_unlabel)


def report_lines(
    norm: str,
    seconds: Mapping[str, Sequence[float]],
    flops: Tuple[float, float],
    stolen: float,
) -> List[str]:
    """Seconds per episode and their ratios.

    Args:
        norm: the normalisation.
        seconds: per episode, by task, turn by turn; of one matrix product.
        flops: of the floor and of the matrix product.
        stolen: the share of the machine's time that others took.
    """
    medians = timing.medians(seconds)
    floor, peak = flops[0] / medians["floor"], flops[1] / medians[PEAK]
    share = floor / peak
    lines = [f"normalisation {norm}: seconds per episode"]
    for name in ("ours", "sequential", "eager", "tuned", "floor"):
        ratio = timing.ratio(seconds[name], seconds["floor"])
        lines.append(f"  {name:10} {medians[name]:7.3f}   {ratio:5.2f} x floor")
    eager, tuned, sequential = (
        timing.ratio(seconds[name], seconds["ours"])
        for name in ("eager", "tuned", "sequential")
    )
    lines.append(
        f"  ours is {eager:.2f} x as fast as eager, {tuned:.2f} x as fast as tuned; "
        f"sequential takes {sequential:.2f} x ours"
    )
    lines.append(
        f"  floor: {floor / 1e9:.0f} GFLOP/s, {100 * share:.0f} % of the matrix "
        f"product's {peak / 1e9:.0f}; {100 * stolen:.1f} % of the time taken by others"
    )
    if share < TRUSTED_SHARE:
        lines.append(
            f"  under {100 * TRUSTED_SHARE:.0f} % of the peak: this floor is not to be "
            "trusted"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
