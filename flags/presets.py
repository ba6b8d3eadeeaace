"""Defaults that depend on the method or the data set; a flag given beats them."""

from __future__ import annotations

from typing import Any, Mapping

# What `--method=NAME` brings with it, from the published recipe of that method.
METHOD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "protofssl": {},
    "fedavg": {"local_episode": 2, "num_unlabel": 0},
    "fixmatch": {},
    "mixmatch": {
        "local_episode": 2,
        "optimizer_state": "client",
        "unlabeled_weight": 75.0,
    },
    "sage": {
        "local_episode": 2,
        "optimizer_state": "client",
        "unlabeled_weight": 1.0,
    },
    "fedproto": {"local_episode": 2, "num_unlabel": 0},
}

# Methods that train on labelled images alone; their clients get no others.
SUPERVISED = ("fedavg", "fedproto")

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
