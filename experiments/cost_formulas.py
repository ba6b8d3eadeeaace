"""The formulas of Tables 1 and 2 of Kim et al. 2022, and ours in their manner.

The cost of a client in a round. The letters:

    F      operations to run the network on one image, counted by `models.flops`;
           without the dense layer for ProtoFSSL, which has none
    Theta  bytes of all weights of that network, biases and norms included, 4 each
    C      size of a prototype: D values in a computation, 4 D bytes when sent
    |DL|   labelled images of a client: --num_label times K
    |DU|   unlabelled images of a client: --num_unlabel
    K      classes of --dataset
    E      local epochs: --local_episode, 1 if not given
    H      helpers: --helper_cnt, 2 if not given
    R_H    rounds between FedMatch's new helpers: --helper_interval, 10 if not given
    A      augmented views in MixMatch: --num_view, 2 if not given

Three rows are not in the paper and are counted in its manner, forward passes alone:

    FedAvg    F|DL|E: labelled images, once an epoch. 2Theta: weights both ways.
    SAGE      F(|DL|+3|DU|)E: the weak view by the local and by the received network,
              the strong view by the local one. 2Theta: as FedAvg.
    FedProto  F|DL|E + C|DL|E + F|DL|: as FedAvg, the distance of each embedding to the
              prototype of its class, the prototypes of all labelled images at the end.
              2Theta + 2CK: the global prototypes come, its own go.

FedProx costs as much as FedAvg: its term is a few operations a weight and step.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, Tuple

import attr
import numpy as np

from data.sources import DATASETS
from flags.config import ExperimentConfig
from flags.presets import DATASET_DEFAULTS
from flags.resolve import resolve
from models.specs import embedding_size

BYTES_A_VALUE = 4
PAPER_EPOCHS, PAPER_HELPERS, PAPER_INTERVAL, PAPER_VIEWS = 1, 2, 10, 2
# The flags that name a method.
METHOD_FLAGS = ("method", "is_sl", "fixmatch")


@attr.frozen
class Network:
    """A network's size.

    Attributes:
        flops: operations for one image, forward.
        num_weights: all weights, moving statistics too.
        num_trainable: those that an optimizer changes.
        layers: the rows of `models.flops.layer_costs`.
    """

    flops: int
    num_weights: int
    num_trainable: int
    layers: Tuple[Any, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return BYTES_A_VALUE * self.num_weights


@attr.frozen
class Letters:
    """The letters of the formulas; see the module's docstring."""

    flops: int
    theta: int
    embedding: int
    labeled: int
    unlabeled: int
    classes: int
    epochs: int
    helpers: int
    interval: int
    views: int

    @property
    def prototype_bytes(self) -> int:
        """C, in bytes."""
        return BYTES_A_VALUE * self.embedding


@attr.frozen
class Formula:
    """A row of the paper's Tables 1 and 2.

    Attributes:
        label: the method's name there.
        computation: the formula, in words.
        flops: the same, to be called.
        communication: the formula, in words.
        num_bytes: the same, to be called.
        in_paper: whether the paper has the row.
        has_head: whether the network has its dense layer.
    """

    label: str
    computation: str
    flops: Callable[[Letters], float]
    communication: str
    num_bytes: Callable[[Letters], float]
    in_paper: bool = True
    has_head: bool = True


FORMULAS: Mapping[str, Formula] = {
    "mixmatch": Formula(
        "MixMatch-FedAvg",
        "F(|DL|+A|DU|)E",
        lambda c: c.flops * (c.labeled + c.views * c.unlabeled) * c.epochs,
        "2Theta",
        lambda c: 2 * c.theta,
    ),
    "fixmatch": Formula(
        "FixMatch-FedAvg",
        "F(|DL|+2|DU|)E",
        lambda c: c.flops * (c.labeled + 2 * c.unlabeled) * c.epochs,
        "2Theta",
        lambda c: 2 * c.theta,
    ),
    "fedrgd": Formula(
        "FedRGD",
        "F(|DL|+2|DU|)E",
        lambda c: c.flops * (c.labeled + 2 * c.unlabeled) * c.epochs,
        "2Theta",
        lambda c: 2 * c.theta,
    ),
    "fedmatch": Formula(
        "FedMatch",
        "F(|DL|+(2+H)|DU|)E",
        lambda c: c.flops * (c.labeled + (2 + c.helpers) * c.unlabeled) * c.epochs,
        "(4+2H/R_H)Theta",
        lambda c: (4 + 2 * c.helpers / c.interval) * c.theta,
    ),
    "protofssl": Formula(
        "ProtoFSSL",
        "F(|DL|+|DU|)E + C*H*K*|DU|*E + F|DL|",
        lambda c: (
            c.flops * (c.labeled + c.unlabeled) * c.epochs
            + c.embedding * c.helpers * c.classes * c.unlabeled * c.epochs
            + c.flops * c.labeled
        ),
        "2Theta + C(1+H)K",
        lambda c: 2 * c.theta + c.prototype_bytes * (1 + c.helpers) * c.classes,
        has_head=False,
    ),
    "fedavg": Formula(
        "FedAvg",
        "F|DL|E",
        lambda c: c.flops * c.labeled * c.epochs,
        "2Theta",
        lambda c: 2 * c.theta,
        in_paper=False,
    ),
    "sage": Formula(
        "SAGE",
        "F(|DL|+3|DU|)E",
        lambda c: c.flops * (c.labeled + 3 * c.unlabeled) * c.epochs,
        "2Theta",
        lambda c: 2 * c.theta,
        in_paper=False,
    ),
    "fedproto": Formula(
        "FedProto",
        "F|DL|E + C|DL|E + F|DL|",
        lambda c: (c.flops + c.embedding) * c.labeled * c.epochs + c.flops * c.labeled,
        "2Theta + 2CK",
        lambda c: 2 * c.theta + 2 * c.prototype_bytes * c.classes,
        in_paper=False,
    ),
}


@functools.cache
def network(
    name: str, image_shape: Tuple[int, int, int], norm: str, bias: bool, head: int
) -> Network:
    """Builds a network and counts it; `head` is its number of classes, 0 for none."""
    from models.builder import build_model
    from models.flops import layer_costs

    model = build_model(
        name, image_shape, norm=norm, num_classes=head or None, use_bias=bias
    )
    layers = tuple(layer_costs(model))
    return Network(
        flops=sum(layer.flops for layer in layers),
        num_weights=model.count_params(),
        num_trainable=sum(int(np.prod(w.shape)) for w in model.trainable_weights),
        layers=layers,
    )


def network_of(config: ExperimentConfig, has_head: bool) -> Network:
    """The network that a configuration names."""
    info = DATASETS[config.dataset]
    head = info.num_classes if has_head else 0
    return network(
        config.model, info.image_shape, config.bn_type, config.conv_bias, head
    )


def paper_setting(given: Mapping[str, Any]) -> ExperimentConfig:
    """The flags given, over the paper's example.

    Raises:
        UsageError: for a value that is wrong for any method.
    """
    dataset = {"dataset": "cifar10", **given}["dataset"]
    images = attr.fields_dict(ExperimentConfig)["num_unlabel"].default
    example = {
        "dataset": dataset,
        "num_unlabel": DATASET_DEFAULTS.get(dataset, {}).get("num_unlabel", images),
        "local_episode": PAPER_EPOCHS,
        "helper_cnt": PAPER_HELPERS,
        "helper_interval": PAPER_INTERVAL,
    }
    plain = {k: v for k, v in given.items() if k not in METHOD_FLAGS}
    # FedAvg has no demands of its own on the flags.
    return resolve({**example, **plain, "method": "fedavg"}).config


def letters(
    config: ExperimentConfig,
    has_head: bool,
    helpers: int,
    views: int = PAPER_VIEWS,
) -> Letters:
    """What the letters of the formulas stand for in a configuration."""
    counted = network_of(config, has_head)
    classes = DATASETS[config.dataset].num_classes
    return Letters(
        flops=counted.flops,
        theta=counted.num_bytes,
        embedding=embedding_size(config.model),
        labeled=config.num_label * classes,
        unlabeled=config.num_unlabel,
        classes=classes,
        epochs=config.local_episode,
        helpers=helpers,
        interval=config.helper_interval,
        views=views,
    )
