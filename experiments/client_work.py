"""What a client of ours computes and sends in a round, by its configuration.

Images either go forward through the network alone, or forward and back; the backward
pass is counted as two forward ones, for it finds the gradients of inputs and those of
weights. This is for a round in which unlabelled data counts and a client that has all
classes; distances, losses and reports are left out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import attr
import numpy as np

from data import episodes
from data.sources import DATASETS
from experiments.cost_formulas import (
    BYTES_A_VALUE,
    FORMULAS,
    METHOD_FLAGS,
    letters,
    network_of,
)
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.resolve import resolve

FORWARD_AND_BACK = 3

# As in fl.methods, which TensorFlow Federated comes with; a test holds them equal.
LABELED_BATCH, UNLABELED_BATCH = 10, 100
FIXMATCH_PUBLISHED_BATCH = 70
FEDMATCH_BATCHES = (10, 98)
FEDRGD_BATCH = 64
MIXMATCH_VIEWS = 2

NOTES = {"fedmatch": "at most: only images it is sure of go back"}


@attr.frozen
class Work:
    """What a configuration of ours makes a client do in a round.

    Attributes:
        forward: images that only go forward.
        trained: images that go forward and back.
        flops: operations of the network for both.
        num_bytes: sent, both ways; None where the values decide.
    """

    forward: int
    trained: int
    flops: int
    num_bytes: Optional[int]


def own_configs(
    given: Mapping[str, Any],
) -> Tuple[List[ExperimentConfig], Dict[str, str]]:
    """The configuration of each method, and why the others cannot have one.

    A method that is named is the only one; its mistakes are the user's.

    Raises:
        UsageError: if the method named cannot run with these flags, or has no row.
    """
    if any(name in given for name in METHOD_FLAGS):
        config = resolve(given).config
        if config.method not in FORMULAS:
            known = ", ".join(FORMULAS)
            raise UsageError(
                f"--method: found {config.method}, whose costs nobody has counted; one "
                f"of {known} is right"
            )
        return [config], {}
    configs, refused = [], {}
    for method in FORMULAS:
        try:
            configs.append(resolve({**given, "method": method}).config)
        except UsageError as error:
            refused[method] = str(error)
    return configs, refused


def work(config: ExperimentConfig) -> Work:
    """The second table's row of a configuration."""
    counted = network_of(config, FORMULAS[config.method].has_head)
    forward, trained = passes(config)
    return Work(
        forward=forward,
        trained=trained,
        flops=counted.flops * (forward + FORWARD_AND_BACK * trained),
        num_bytes=expected_bytes(config),
    )


def passes(config: ExperimentConfig) -> Tuple[int, int]:
    """Images of a client in a round that only go forward, and that go back too."""
    classes = DATASETS[config.dataset].num_classes
    return _PASSES[config.method](config, config.num_label * classes)


def expected_bytes(config: ExperimentConfig) -> Optional[int]:
    """What a client receives and returns in a round; None where nobody can tell.

    Weights both ways; the optimizer's state too, where it travels; prototypes where
    the method has them. FedMatch sends what changed, which is seen in a run alone; a
    method without formulas may send anything.
    """
    if config.method == "fedmatch" or config.method not in FORMULAS:
        return None
    values = letters(config, FORMULAS[config.method].has_head, num_helpers(config))
    sets = {"protofssl": 1 + values.helpers, "fedproto": 2}.get(config.method, 0)
    prototypes = values.prototype_bytes * values.classes * sets
    if config.method == "protofssl" and config.refine_at_begin:
        prototypes += values.theta + values.prototype_bytes * values.classes
    return 2 * (values.theta + optimizer_bytes(config)) + prototypes


def optimizer_bytes(config: ExperimentConfig) -> int:
    """The optimizer's state that is sent one way."""
    if config.optimizer_state not in ("sequential", "averaged"):
        return 0
    from fl.optimizers import make_optimizer

    optimizer = make_optimizer(config.optimizer, config.opt_momentum)
    counted = network_of(config, FORMULAS[config.method].has_head)
    values = optimizer.num_slots * counted.num_trainable + optimizer.counts_steps
    return BYTES_A_VALUE * values


def num_helpers(config: ExperimentConfig) -> int:
    """H of a configuration: ProtoFSSL may take all that the server keeps."""
    if config.method == "protofssl" and config.helper_policy == "all_kept":
        return config.keep_proto_rounds * config.num_active_client
    return config.helper_cnt


def _protofssl_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """An episode is one batch; prototypes of all labelled images at the end."""
    per_class = config.s_label + config.q_label
    is_global = config.prototype_source == "global"
    queried = labeled if is_global else per_class * labeled // config.num_label
    idle = config.warmup_episode if config.idle_unlabeled == "skip" else 0
    drawn = config.q_unlabel * max(config.local_episode - idle, 0)
    made = 2 if config.refine_at_begin else 1
    return made * labeled, queried * config.local_episode + drawn


def _fedavg_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    return 0, labeled * config.local_episode


def _fedproto_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """As FedAvg, and prototypes of all labelled images at the end."""
    return labeled, labeled * config.local_episode


def _fixmatch_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """The weak view forward; labelled images and the strong view back too."""
    sizes = (labeled, config.num_unlabel)
    batches = {
        "scripts": (LABELED_BATCH, UNLABELED_BATCH),
        "published": (LABELED_BATCH, FIXMATCH_PUBLISHED_BATCH),
        "flag": sizes,
    }[config.fixmatch_recipe]
    first, second = _paired(config, labeled, batches)
    return second, first + second


def _mixmatch_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """All views forward for the guess; mixed with labelled images, back too."""
    first, second = _paired(config, labeled)
    return MIXMATCH_VIEWS * second, first + MIXMATCH_VIEWS * second


def _sage_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """The weak view forward through two networks; the rest as in FixMatch."""
    first, second = _paired(config, labeled)
    return 2 * second, first + second


def _fedrgd_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """E steps of equal batches; views as in FixMatch."""
    seen = FEDRGD_BATCH * config.local_episode
    return seen, 2 * seen


def _fedmatch_passes(config: ExperimentConfig, labeled: int) -> Tuple[int, int]:
    """Where it is sure of all images: itself and its helpers look at them first.

    Then the plain and the strong view back too. At the end the labelled images, which
    validate, and the image by which clients are compared.
    """
    first, second = _paired(config, labeled, FEDMATCH_BATCHES)
    forward = (1 + config.helper_cnt) * second + labeled + 1
    return forward, first + 2 * second


def _paired(
    config: ExperimentConfig,
    labeled: int,
    batches: Tuple[int, int] = (LABELED_BATCH, UNLABELED_BATCH),
) -> Tuple[int, int]:
    """Labelled and unlabelled images that the steps of a round take."""
    steps = episodes.paired_epochs(
        np.random.RandomState(0),
        (labeled, config.num_unlabel),
        batches,
        config.local_episode,
    )
    return int(steps.labeled_count.sum()), int(steps.unlabeled_count.sum())


_PASSES: Mapping[str, Callable[[ExperimentConfig, int], Tuple[int, int]]] = {
    "mixmatch": _mixmatch_passes,
    "fixmatch": _fixmatch_passes,
    "fedrgd": _fedrgd_passes,
    "fedmatch": _fedmatch_passes,
    "protofssl": _protofssl_passes,
    "fedavg": _fedavg_passes,
    "sage": _sage_passes,
    "fedproto": _fedproto_passes,
}
