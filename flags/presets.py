"""Defaults that depend on the method or the data set; a flag given beats them."""

from __future__ import annotations

from typing import Any, Mapping

import attr


@attr.frozen
class MethodEntry:
    """A line of the registry.

    Attributes:
        made_by: module and class, imported when a run is made of it.
        defaults: flags of its published recipe.
        supervised: whether it trains on labelled images alone; clients get no others.
    """

    made_by: str
    defaults: Mapping[str, Any] = attr.field(factory=dict)
    supervised: bool = False


# The registry of methods: what `--method=NAME` runs and brings with it.
METHODS: Mapping[str, MethodEntry] = {
    "protofssl": MethodEntry("fl.methods.protofssl:ProtoFSSL"),
    "fedavg": MethodEntry(
        "fl.methods.fedavg:FedAvg",
        {"local_episode": 2, "num_unlabel": 0},
        supervised=True,
    ),
    "fixmatch": MethodEntry("fl.methods.fixmatch:FixMatch"),
    "mixmatch": MethodEntry(
        "fl.methods.mixmatch:MixMatch",
        {"local_episode": 2, "optimizer_state": "client", "unlabeled_weight": 75.0},
    ),
    "fedmatch": MethodEntry(
        "fl.methods.fedmatch:FedMatch",
        {
            "local_episode": 1,
            "optimizer": "sgd",
            "opt_lr": 1e-3,
            "optimizer_state": "client",
            "aggregation": "uniform",
            "conv_bias": False,
            "l2_in_loss": False,
            "baseline_lr": "constant",
            "unlabeled_weight": 0.01,
            "confidence_threshold": 0.75,
            "helper_cnt": 2,
            "helper_interval": 10,
        },
    ),
    "fedrgd": MethodEntry(
        "fl.methods.fedrgd:FedRGD",
        {
            "local_episode": 5,
            "optimizer": "nesterov",
            "opt_lr": 0.0075,
            "opt_momentum": 0.9,
            "weight_decay": 1e-4,
            "optimizer_state": "fresh",
            "aggregation": "uniform",
            "l2_in_loss": False,
            "baseline_lr": "cosine_7_16",
            "bn_type": "gn",
            "unlabeled_weight": 1.0,
        },
    ),
    "sage": MethodEntry(
        "fl.methods.sage:Sage",
        {"local_episode": 2, "optimizer_state": "client", "unlabeled_weight": 1.0},
    ),
    "fedproto": MethodEntry(
        "fl.methods.fedproto:FedProto",
        {"local_episode": 2, "num_unlabel": 0},
        supervised=True,
    ),
}

# What a recipe of FixMatch brings, whether --method or the authors' flag asks for it.
FIXMATCH_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "scripts": {
        "local_episode": 2,
        "optimizer_state": "client",
        "unlabeled_weight": 0.01,
        "mu": 0.1,
    },
    "flag": {"unlabeled_weight": 0.01},
    "published": {
        "local_episode": 2,
        "optimizer_state": "client",
        "unlabeled_weight": 1.0,
        "mu": 0.1,
    },
}
FIXMATCH_MU_ON_STL10 = 0.01

DATASET_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {},
    "cifar100": {"num_client": 10, "num_unlabel": 4900},
    "svhn": {},
    "stl10": {"num_label": 10, "num_unlabel": 980},
    # 1,797 images make ten clients; a run of this size takes minutes on two cores.
    "digits": {
        "num_client": 10,
        "num_label": 5,
        "num_unlabel": 60,
        "q_unlabel": 30,
        "num_active_client": 3,
        "helper_cnt": 3,
        "num_round": 20,
        "eval_every": 1,
    },
}
