"""Tests of the declarations: the authors' flags, and the three columns of switches."""

from __future__ import annotations

from typing import Any

import attr
import pytest

from flags import presets
from flags.config import (
    FIDELITIES,
    ExperimentConfig,
    declarations,
    fidelity_columns,
)

# Every flag of the authors' program with its default there. Their bn_type is unset
# by default, which is our word "none"; their dataset has no default.
AUTHORS_FLAGS = {
    "exp_name": "protofssl",
    "seed": 1000,
    "model": "res9",
    "bn_type": "none",
    "non_iid": False,
    "extreme_non_iid": False,
    "num_round": 300,
    "num_label": 5,
    "num_unlabel": 490,
    "local_episode": 10,
    "unlabel_round": 0,
    "optimizer": "rmsprop",
    "opt_lr": 1e-3,
    "opt_momentum": 0.0,
    "num_client": 100,
    "num_active_client": 5,
    "unlabel_loss_type": "CE",
    "refine_at_begin": False,
    "keep_proto_rounds": 1,
    "helper_cnt": 5,
    "warmup_episode": 0,
    "l2_factor": 1e-4,
    "is_sl": False,
    "fixmatch": False,
    "fl_framework": "fedavg",
    "mu": 1e-3,
    "s_label": 1,
    "q_label": 2,
    "q_unlabel": 100,
    "use_noise": False,
    "stddev": 0.0,
    "print_log": False,
    "comp_dist": False,
}

AUTHORS_WORDS = {
    "dataset": ("cifar10", "cifar100", "svhn", "stl10"),
    "model": ("res9", "res18", "wres28x2", "res9_256d"),
    "bn_type": ("bn", "sbn", "gn"),
    "optimizer": ("rmsprop", "sgd", "adam"),
    "unlabel_loss_type": ("CE", "MSE"),
    "fl_framework": ("fedavg", "fedprox"),
}

# Switch: release, head, paper.
COLUMNS = {
    "split_seed": (1001, 101, 1001),
    "unlabeled_overlap": (False, True, False),
    "deal_order": ("client", "shuffled", "client"),
    "class_counts": ("release", "head", "release"),
    "distance": ("mean_squared", "mean_squared", "euclidean"),
    "pseudo_label_gradient": (True, True, False),
    "l2_in_loss": (False, False, True),
    "proximal_gradient": (False, False, True),
    "optimizer_state": ("sequential", "sequential", "fresh"),
    "aggregation": ("uniform", "uniform", "examples"),
    "absent_class": ("mask", "fill", "mask"),
    "helper_policy": ("all_kept", "newest", "newest"),
    "eval_prototypes": ("all_kept", "newest", "newest"),
    "idle_unlabeled": ("pass", "skip", "skip"),
    "sl_batch_size": (32, 0, 32),
    "baseline_lr": ("constant", "cosine", "constant"),
}

BY_NAME = {declared.name: declared for declared in declarations()}


def test_marks_exactly_the_authors_flags_as_theirs() -> None:
    theirs = {name for name, d in BY_NAME.items() if d.metadata["theirs"]}
    assert theirs == {*AUTHORS_FLAGS, "dataset"}


@pytest.mark.parametrize(("name", "default"), AUTHORS_FLAGS.items())
def test_authors_flag_keeps_its_default_and_type(name: str, default: Any) -> None:
    declared = BY_NAME[name].default
    assert declared == default
    assert type(declared) is type(default)


@pytest.mark.parametrize(("name", "words"), AUTHORS_WORDS.items())
def test_authors_words_are_all_taken(name: str, words: tuple[str, ...]) -> None:
    assert set(words) <= set(BY_NAME[name].metadata["choices"])


def test_columns_are_those_of_the_table() -> None:
    expected = {
        fidelity: {name: row[i] for name, row in COLUMNS.items()}
        for i, fidelity in enumerate(("release", "head", "paper"))
    }
    assert fidelity_columns() == expected


def test_literals_of_the_authors_have_their_values() -> None:
    assert ExperimentConfig().unlabeled_weight == 0.3
    assert ExperimentConfig().temperature == 0.5


def test_declared_defaults_are_the_release() -> None:
    config = ExperimentConfig().as_dict()
    assert {name: config[name] for name in COLUMNS} == fidelity_columns()["release"]
    assert config["fidelity"] == FIDELITIES[0] == "release"


@pytest.mark.parametrize("declared", declarations(), ids=lambda d: d.name)
def test_declaration_is_consistent(declared: Any) -> None:
    """A default outside its own choices or range could never be written out."""
    limits = declared.metadata
    values = [declared.default, *(limits["columns"] or {}).values()]
    for value in values:
        assert type(value) is type(declared.default)
        assert limits["choices"] is None or value in limits["choices"]
        assert limits["at_least"] is None or value >= limits["at_least"]
        assert limits["above"] is None or value > limits["above"]
        assert limits["below"] is None or value < limits["below"]
    assert limits["help"].endswith((".", ".)"))


def test_every_number_has_a_lower_limit() -> None:
    """None of the numbers has a meaning below -1, so each must say where it ends."""
    unlimited = [
        name
        for name, d in BY_NAME.items()
        if isinstance(d.default, (int, float))
        and not isinstance(d.default, bool)
        and d.metadata["at_least"] is None
        and d.metadata["above"] is None
    ]
    assert unlimited == []


def test_configuration_is_frozen_and_lists_every_field() -> None:
    config = ExperimentConfig()
    with pytest.raises(attr.exceptions.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert list(config.as_dict()) == list(BY_NAME)


def test_presets_name_only_flags_and_every_dataset_and_method() -> None:
    rows = [entry.defaults for entry in presets.METHODS.values()]
    rows += [*presets.DATASET_DEFAULTS.values(), *presets.FIXMATCH_RECIPES.values()]
    assert {name for row in rows for name in row} <= set(BY_NAME)
    assert set(presets.METHODS) == set(BY_NAME["method"].metadata["choices"])
    assert set(presets.DATASET_DEFAULTS) == set(BY_NAME["dataset"].metadata["choices"])


def test_words_for_the_same_method_or_norm_describe_no_other_run() -> None:
    """`--bn` is `--bn_type=bn` and `--is_sl` a method: those fields tell them apart."""
    for name in ("bn", "is_sl", "fixmatch", "out_dir", "resume", "overwrite"):
        assert not BY_NAME[name].metadata["describes_run"]
    for name in ("bn_type", "method", "seed", "dataset", "opt_lr", "num_round"):
        assert BY_NAME[name].metadata["describes_run"]
