"""How much of a cell's training is done: all of it, or a share of it.

`quick` keeps what makes the methods comparable and cuts what costs:

* 30 rounds instead of 300, evaluated every 10;
* two active clients of five (0.4 of m), the same ones in the same rounds for all;
* 0.3 of the unlabelled images, at a client and in an episode: 50 labelled to 150
  unlabelled instead of 490.

Labelled images, local epochs, the number of steps an epoch, networks, optimizers and
all else stay. So each method keeps its own recipe and trains the same clients on the
same labelled images for the same number of rounds. What is scaled is scaled by the same
share in all cells of all suites: a cell that two suites show is still one training, and
whatever a suite varies it still varies. ProtoFSSL with a given number of helpers keeps
its m, as there can be no more helpers than that.

What it cannot show: accuracies anywhere near the printed ones, nor which method is
ahead after 300 rounds; methods that start slowly (plain SGD in FedMatch) look worse
than they are. Half the point of many helpers and of much unlabelled data is cut away.
Counted in images, ProtoFSSL, FixMatch and FedMatch do 1 to 2 % of their training,
FedAvg and FedRGD 4 %.

It is sized so that ProtoFSSL, ProtoFSSL(BN), FedAvg, FixMatch and FedMatch on CIFAR-10
i.i.d. fit about an hour together on two cores. A run's share of the full training,
`factor`, and the flags that make it stand in
`<results>/<cell>/seed_<s>.budget.json`.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import attr

from experiments import timing
from experiments.suites import Cell
from flags.config import ExperimentConfig
from flags.parse import parse

BUDGETS = ("full", "quick")
QUICK_ROUNDS = 30
QUICK_EVAL_EVERY = 10
ACTIVE_SHARE = 0.4
UNLABELED_SHARE = 0.3
# Fewer than this could not be dealt unevenly over ten classes.
FEWEST_UNLABELED = 40


@attr.frozen
class Budget:
    """What a budget makes of a cell.

    Attributes:
        name: one of `BUDGETS`.
        factor: the share of the cell's training, in images passed; 1 for all of it.
        flags: the flags that it sets, by name.
        full: the cell's own values of the same flags.
    """

    name: str
    factor: float
    flags: Mapping[str, Any]
    full: Mapping[str, Any]

    @property
    def words(self) -> Tuple[str, ...]:
        """The flags for a command line."""
        return tuple(f"--{name}={value}" for name, value in self.flags.items())


def budget_for(cell: Cell, name: str, rounds: Optional[int] = None) -> Budget:
    """What a budget makes of a cell.

    Args:
        cell: what is trained.
        name: one of `BUDGETS`.
        rounds: rounds of the quick budget, if not its own.
    """
    full = parse(cell.flags).config
    flags = quick_flags(full, rounds or QUICK_ROUNDS) if name == "quick" else {}
    scaled = attr.evolve(full, **flags)
    return Budget(
        name=name,
        factor=timing.training_passes(scaled) / timing.training_passes(full),
        flags=flags,
        full={flag: getattr(full, flag) for flag in flags},
    )


def quick_flags(config: ExperimentConfig, rounds: int) -> Mapping[str, Any]:
    """The flags that cut a configuration down."""
    wanted: Dict[str, int] = {
        "num_round": min(rounds, config.num_round),
        "eval_every": QUICK_EVAL_EVERY,
    }
    if config.num_unlabel:
        tens = round(UNLABELED_SHARE * config.num_unlabel / 10)
        wanted["num_unlabel"] = max(10 * tens, FEWEST_UNLABELED)
    if config.method == "protofssl":
        wanted["q_unlabel"] = _share(UNLABELED_SHARE, config.q_unlabel)
    if not (config.method == "protofssl" and config.helper_policy == "newest"):
        wanted["num_active_client"] = _share(ACTIVE_SHARE, config.num_active_client)
    return {k: v for k, v in wanted.items() if v != getattr(config, k)}


def _share(share: float, count: int) -> int:
    return max(1, round(share * count))
