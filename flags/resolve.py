"""From the flags given to the configuration of a run, checked."""

from __future__ import annotations

import math
import os
from typing import Any, Iterator, List, Mapping, Tuple

import attr

from flags import paths, presets
from flags.config import ExperimentConfig, declarations, fidelity_columns
from flags.errors import UsageError
from flags.workers import parse_workers
from models.init import parse_init

# NumPy seeds have 32 bits, and a round's is --seed plus its number.
LARGEST_WHOLE_NUMBER = 2**31 - 1
LONGEST_FOLDER_NAME = 255
# Below, all of a client's images are of one class, and NumPy's draws do not end.
SMALLEST_DIRICHLET_ALPHA = 1e-3


_EPISODES = ("protofssl",)
_PAIRED = ("fixmatch", "mixmatch", "fedmatch", "fedrgd", "sage")
# Flags that only some methods read.
_READERS = {
    "fixmatch_recipe": ("fixmatch",),
    "helper_handout": ("fedmatch",),
    "num_group": ("fedrgd",),
    "group_mix_every": ("fedrgd",),
    "prototype_weight": ("fedproto",),
    "confidence_threshold": ("fixmatch", "fedmatch", "fedrgd", "sage"),
    "unlabeled_weight": (*_EPISODES, *_PAIRED),
    "temperature": (*_EPISODES, "mixmatch"),
    "helper_cnt": (*_EPISODES, "fedmatch"),
    "helper_interval": (*_EPISODES, "fedmatch"),
    "sl_batch_size": ("fedavg", "fedproto"),
    **dict.fromkeys(
        (
            "s_label",
            "q_label",
            "q_unlabel",
            "unlabel_loss_type",
            "unlabel_round",
            "warmup_episode",
            "prototype_source",
            "keep_proto_rounds",
            "refine_at_begin",
            "use_noise",
            "stddev",
            "min_share_samples",
            "distance",
            "pseudo_label_gradient",
            "absent_class",
            "helper_policy",
            "eval_prototypes",
            "idle_unlabeled",
        ),
        _EPISODES,
    ),
}


@attr.frozen
class Resolved:
    """A configuration and the warnings a user should see about it."""

    config: ExperimentConfig
    warnings: Tuple[str, ...]


def resolve(given: Mapping[str, Any]) -> Resolved:
    """Fills in what was not given and checks the whole.

    Later layers win: the declared defaults, the column of --fidelity, the defaults of
    the method, those of the data set, and what was given.

    Args:
        given: the flags on the command line, by name.

    Raises:
        UsageError: for a value or combination that cannot run.
    """
    _check_values(given)
    values = {f.name: f.default for f in declarations()}
    values.update(fidelity_columns()[given.get("fidelity", values["fidelity"])])
    values["method"] = method = _method(given)
    if not given.get("is_sl"):
        values.update(presets.METHODS[method].defaults)
    if method == "fixmatch":
        values.update(_fixmatch_defaults(given))
    dataset = presets.DATASET_DEFAULTS[given.get("dataset", values["dataset"])]
    values.update({k: v for k, v in dataset.items() if _applies(k, method)})
    values.update({k: v for k, v in given.items() if k != "method"})
    values["bn_type"] = _norm(given, values["bn_type"])
    values["out_dir"] = str(paths.expand("out_dir", values["out_dir"]))
    warnings: List[str] = []
    if method == "protofssl":
        values["helper_cnt"] = _helper_count(values, "helper_cnt" in given, warnings)
    config = ExperimentConfig(**values)
    _check_combination(config)
    warnings.extend(_inert_flags(config, given))
    return Resolved(config=config, warnings=tuple(warnings))


def _check_values(given: Mapping[str, Any]) -> None:
    for declared in declarations():
        if declared.name in given:
            check_value(declared, given[declared.name])


def check_value(declared: Any, value: Any) -> None:
    """Holds one value against the choices or the range of its declaration."""
    limits = declared.metadata
    if limits["choices"] and value not in limits["choices"]:
        options = ", ".join(limits["choices"])
        raise UsageError(
            f"--{declared.name}: found '{value}', must be one of {options}"
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    unmet = [text for met, text in _limits(limits, value) if not met]
    if unmet:
        text = " and ".join(unmet)
        raise UsageError(f"--{declared.name}: found {value}, must be {text}")


def _limits(limits: Mapping[str, Any], value: Any) -> Iterator[Tuple[bool, str]]:
    """For each limit that a number has: whether it is met, and its wording."""
    if isinstance(value, int):
        most = LARGEST_WHOLE_NUMBER
        yield value <= most, f"at most {most}"
    else:
        yield math.isfinite(value), "finite"
    if limits["at_least"] is not None:
        yield value >= limits["at_least"], f"at least {limits['at_least']}"
    if limits["above"] is not None:
        yield value > limits["above"], f"above {limits['above']}"
    if limits["below"] is not None:
        yield value < limits["below"], f"below {limits['below']}"


def _method(given: Mapping[str, Any]) -> str:
    """The method, from --method or the authors' flags; is_sl wins over fixmatch."""
    theirs = None
    if given.get("fixmatch"):
        theirs = ("fixmatch", "fixmatch")
    if given.get("is_sl"):
        theirs = ("is_sl", "fedavg")
    named = given.get("method")
    if theirs and named and named != theirs[1]:
        raise UsageError(
            f"--{theirs[0]} with --method={named}: found two methods, give one of them"
        )
    if theirs:
        return theirs[1]
    return str(named or "protofssl")


def _fixmatch_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe's; the authors' --fixmatch stands for the recipe of that flag."""
    asked = "flag" if given.get("fixmatch") else "scripts"
    recipe = given.get("fixmatch_recipe", asked)
    defaults = {"fixmatch_recipe": recipe, **presets.FIXMATCH_RECIPES[recipe]}
    if given.get("dataset") == "stl10" and "mu" in defaults:
        defaults["mu"] = presets.FIXMATCH_MU_ON_STL10
    return defaults


def _applies(name: str, method: str) -> bool:
    """Whether a data set's default is meant for the method.

    Its number of unlabelled images is not for methods that take none, and its number
    of helpers is ProtoFSSL's.
    """
    entry = presets.METHODS[method]
    if name == "num_unlabel":
        return not entry.supervised
    return name not in entry.defaults


def _norm(given: Mapping[str, Any], default: str) -> str:
    norm = given.get("bn_type")
    if given.get("bn") and norm not in (None, "bn"):
        raise UsageError(
            f"--bn with --bn_type={norm}: --bn is short for --bn_type=bn, give one"
        )
    if "bn" in given and norm is None:
        return "bn" if given["bn"] else "none"
    return str(norm or default)


def _helper_count(values: Mapping[str, Any], given: bool, warnings: List[str]) -> int:
    """What was asked for, if the bank can hold it; the default shrinks to fit."""
    count = int(values["helper_cnt"])
    capacity = values["keep_proto_rounds"] * values["num_active_client"]
    if count <= capacity:
        return count
    holds = (
        f"the bank holds {capacity} (--keep_proto_rounds={values['keep_proto_rounds']}"
        f" times --num_active_client={values['num_active_client']})"
    )
    if given:
        raise UsageError(f"--helper_cnt: found {count}, {holds}; at most that many")
    warnings.append(
        f"--helper_cnt: its default {count} is lowered to {capacity}: {holds}"
    )
    return int(capacity)


def _check_combination(config: ExperimentConfig) -> None:
    _check_run(config)
    _check_clients(config)
    _check_workers(config)
    if config.method == "protofssl":
        _check_episodes(config)
    if config.method == "fedmatch":
        _check_fedmatch(config)
    if config.method == "fedrgd":
        _check_fedrgd(config)
    supervised = presets.METHODS[config.method].supervised
    if not supervised and config.num_unlabel == 0:
        raise UsageError(
            f"--num_unlabel: found 0, --method={config.method} needs unlabelled images"
        )


def _check_run(config: ExperimentConfig) -> None:
    if not _names_a_folder(config.exp_name):
        raise UsageError(
            f"--exp_name: found '{config.exp_name}', must be the name of a folder"
        )
    if config.resume and config.overwrite:
        raise UsageError("--resume with --overwrite: found both, give one of them")
    try:
        parse_init(config.init)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _names_a_folder(name: str) -> bool:
    if not name.isprintable():
        return False
    fits = 0 < len(os.fsencode(name)) <= LONGEST_FOLDER_NAME
    return fits and "/" not in name and name not in (".", "..")


def _check_clients(config: ExperimentConfig) -> None:
    if config.num_active_client > config.num_client:
        raise UsageError(
            f"--num_active_client: found {config.num_active_client}, there are only "
            f"--num_client={config.num_client}"
        )
    if config.extreme_non_iid and not config.non_iid:
        raise UsageError("--extreme_non_iid: found without --non_iid, give both")
    if 0 < config.dirichlet_alpha < SMALLEST_DIRICHLET_ALPHA:
        raise UsageError(
            f"--dirichlet_alpha: found {config.dirichlet_alpha}, must be 0 (off) or at "
            f"least {SMALLEST_DIRICHLET_ALPHA}"
        )
    if config.dirichlet_alpha > 0 and config.non_iid:
        raise UsageError(
            f"--dirichlet_alpha={config.dirichlet_alpha} with --non_iid: found two "
            "ways to deal the data, give one of them"
        )


def _check_workers(config: ExperimentConfig) -> None:
    workers = parse_workers(config.workers)
    if workers.number > config.num_active_client:
        raise UsageError(
            f"--workers: found {workers.number}, only "
            f"--num_active_client={config.num_active_client} clients train in a round; "
            "at most that many"
        )
    if workers.number > 1 and config.optimizer_state == "sequential":
        raise UsageError(
            f"--workers: found {workers.number}, with --optimizer_state=sequential a "
            "client waits for the one before; give --optimizer_state=fresh or averaged"
        )
    _check_certificates(config, bool(workers.addresses))


def _check_certificates(config: ExperimentConfig, elsewhere: bool) -> None:
    """All three are for workers elsewhere; the last two need each other."""
    if config.worker_ca and not elsewhere:
        raise UsageError(
            f"--worker_ca: found with --workers={config.workers}, is for workers "
            "elsewhere; give their addresses"
        )
    for name, needed in (
        ("worker_cert", "worker_ca"),
        ("worker_cert", "worker_key"),
        ("worker_key", "worker_cert"),
    ):
        if getattr(config, name) and not getattr(config, needed):
            raise UsageError(f"--{name}: found without --{needed}, give both")


def _check_episodes(config: ExperimentConfig) -> None:
    if config.optimizer_state == "client":
        raise UsageError(
            "--optimizer_state: found client, with --method=protofssl it must be "
            "sequential, fresh or averaged"
        )
    if config.s_label + config.q_label > config.num_label:
        raise UsageError(
            f"--s_label={config.s_label} and --q_label={config.q_label}: an episode "
            f"needs {config.s_label + config.q_label} labelled images per class, found "
            f"--num_label={config.num_label}"
        )
    if config.q_unlabel > config.num_unlabel:
        raise UsageError(
            f"--q_unlabel: found {config.q_unlabel}, a client has only "
            f"--num_unlabel={config.num_unlabel}"
        )


def _check_fedmatch(config: ExperimentConfig) -> None:
    """Its kernels are sums of two that plain SGD trains apart; there is no more."""
    needed = {
        "optimizer": "sgd",
        "opt_momentum": 0.0,
        "weight_decay": 0.0,
        "l2_in_loss": False,
        "optimizer_state": "client",
        "bn_type": "none",
        "conv_bias": False,
        "baseline_lr": "constant",
        "fl_framework": "fedavg",
    }
    _check_needed(config, needed)
    if config.helper_cnt >= config.num_client:
        raise UsageError(
            f"--helper_cnt: found {config.helper_cnt}, a client can have at most "
            f"{config.num_client - 1} of --num_client={config.num_client}"
        )


def _check_fedrgd(config: ExperimentConfig) -> None:
    """Its groups train at once: no state passes from client to client."""
    if config.optimizer_state != "averaged":
        _check_needed(config, {"optimizer_state": "fresh"})
    if config.num_group > config.num_active_client:
        raise UsageError(
            f"--num_group: found {config.num_group}, there are only "
            f"--num_active_client={config.num_active_client} clients to form them"
        )


def _check_needed(config: ExperimentConfig, needed: Mapping[str, Any]) -> None:
    for name, value in needed.items():
        found = getattr(config, name)
        if found != value:
            raise UsageError(
                f"--{name}: found {found}, with --method={config.method} it must be "
                f"{value}"
            )


def _inert_flags(config: ExperimentConfig, given: Mapping[str, Any]) -> List[str]:
    """A line for each flag given that the chosen switches keep from counting."""
    proto = config.method == "protofssl"
    fedmatch = config.method == "fedmatch"
    policies = {config.helper_policy, config.eval_prototypes}
    cases = [
        (
            config.fl_framework == "fedprox" and not config.proximal_gradient,
            "--fl_framework=fedprox: its term (--mu) only shows in the reported loss; "
            "--proximal_gradient=true makes it count in the training",
        ),
        (
            "mu" in given and config.fl_framework == "fedavg" and not fedmatch,
            "--mu has no effect; --fl_framework=fedprox makes it count",
        ),
        (
            "mu" in given and fedmatch,
            "--mu has no effect with --method=fedmatch",
        ),
        (
            "l2_factor" in given and fedmatch,
            "--l2_factor has no effect with --method=fedmatch",
        ),
        (
            "l2_factor" in given and not config.l2_in_loss and not fedmatch,
            "--l2_factor has no effect; --l2_in_loss=true makes it count",
        ),
        (
            proto and "helper_cnt" in given and policies == {"all_kept"},
            "--helper_cnt has no effect; --helper_policy=newest makes it count",
        ),
        (
            proto and config.stddev > 0 and not config.use_noise,
            "--stddev has no effect; --use_noise=true makes it count",
        ),
        (
            proto and config.use_noise and config.stddev == 0,
            "--use_noise has no effect; --stddev=0.1, say, makes it count",
        ),
        (
            proto and config.use_noise and config.refine_at_begin,
            "--use_noise has no effect; --refine_at_begin=false makes it count",
        ),
        (
            given.get("opt_momentum", 0) > 0 and config.optimizer == "adam",
            "--opt_momentum has no effect; --optimizer=rmsprop or sgd makes it count",
        ),
    ]
    lines = [text for applies, text in cases if applies]
    defaults = {f.name: f.default for f in declarations()}
    for name, value in given.items():
        readers = _READERS.get(name, (config.method,))
        if config.method not in readers and value != defaults[name]:
            lines.append(
                f"--{name} has no effect with --method={config.method}; it belongs to "
                f"{', '.join(readers)}"
            )
    return lines
