"""Tests of how flags become a configuration: layers of defaults, checks, warnings."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import pytest

from flags import presets
from flags.config import ExperimentConfig, declarations, fidelity_columns
from flags.errors import UsageError
from flags.parse import parse
from flags.resolve import LARGEST_WHOLE_NUMBER, resolve

CIFAR = "--dataset=cifar10"
NUMBERS = [d for d in declarations() if type(d.default) in (int, float)]


def _config(*argv: str) -> ExperimentConfig:
    return parse(argv).config


def _warnings(*argv: str) -> tuple[str, ...]:
    return parse(argv).warnings


def _refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    return str(caught.value)


def test_cifar10_takes_the_declared_defaults() -> None:
    """Its rows of both preset tables are empty: all is as the authors declare it."""
    expected = ExperimentConfig(dataset="cifar10")
    assert _config(CIFAR) == expected
    assert _warnings(CIFAR) == ()


@pytest.mark.parametrize("fidelity", ["release", "head", "paper"])
def test_fidelity_sets_its_whole_column(fidelity: str) -> None:
    values = _config(CIFAR, f"--fidelity={fidelity}").as_dict()
    column = fidelity_columns()[fidelity]
    assert {name: values[name] for name in column} == column
    others = {k: v for k, v in values.items() if k not in column and k != "fidelity"}
    plain = _config(CIFAR).as_dict()
    assert others == {name: plain[name] for name in others}


@pytest.mark.parametrize("fidelity", ["release", "head", "paper"])
def test_switch_given_beats_the_column_in_either_order(fidelity: str) -> None:
    by_name = {d.name: d for d in declarations()}
    for name, value in fidelity_columns()[fidelity].items():
        other: Any
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, int):
            other = value + 1
        else:
            choices = by_name[name].metadata["choices"]
            other = next(word for word in choices if word != value)
        words = (CIFAR, f"--fidelity={fidelity}", f"--{name}={other}")
        for argv in (words, words[::-1]):
            changed = _config(*argv).as_dict()
            assert changed[name] == other
            rest = {k: v for k, v in changed.items() if k != name}
            same = _config(*words[:2]).as_dict()
            assert rest == {k: same[k] for k in rest}


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("cifar10", {"num_client": 100, "num_label": 5, "num_unlabel": 490}),
        ("svhn", {"num_client": 100, "num_label": 5, "num_unlabel": 490}),
        ("cifar100", {"num_client": 10, "num_label": 5, "num_unlabel": 4900}),
        ("stl10", {"num_client": 100, "num_label": 10, "num_unlabel": 980}),
    ],
)
def test_dataset_brings_its_sizes(dataset: str, expected: dict[str, int]) -> None:
    values = _config(f"--dataset={dataset}").as_dict()
    assert {name: values[name] for name in expected} == expected


def test_digits_are_the_default_and_bring_their_sizes() -> None:
    values = _config().as_dict()
    sizes = presets.DATASET_DEFAULTS["digits"]
    assert values["dataset"] == "digits"
    assert sizes
    assert {name: values[name] for name in sizes} == sizes
    assert _warnings() == ()


@pytest.mark.parametrize("dataset", ["stl10", "cifar100", "digits"])
def test_dataset_default_yields_to_a_flag_in_any_order(dataset: str) -> None:
    """Even where the flag repeats the declared default, which is not "not given"."""
    words = (f"--dataset={dataset}", "--num_unlabel=490", "--num_client=100")
    for argv in itertools.permutations(words):
        config = _config(*argv)
        assert (config.num_unlabel, config.num_client) == (490, 100)
        assert config.num_label == presets.DATASET_DEFAULTS[dataset].get("num_label", 5)


@pytest.mark.parametrize("dataset", list(presets.DATASET_DEFAULTS))
@pytest.mark.parametrize("method", list(presets.METHODS))
@pytest.mark.parametrize("fidelity", ["release", "head", "paper"])
def test_every_default_can_run(dataset: str, method: str, fidelity: str) -> None:
    words = (f"--dataset={dataset}", f"--method={method}", f"--fidelity={fidelity}")
    assert parse(words).warnings == ()


def test_fedavg_brings_its_recipe_and_not_the_dataset_sizes_of_protofssl() -> None:
    for dataset in presets.DATASET_DEFAULTS:
        config = _config(f"--dataset={dataset}", "--method=fedavg")
        assert (config.local_episode, config.num_unlabel) == (2, 0)
    config = _config("--dataset=stl10", "--method=fedavg", "--local_episode=7")
    assert (config.local_episode, config.num_label) == (7, 10)


def test_is_sl_is_fedavg_with_the_flags_own_defaults() -> None:
    config = _config(CIFAR, "--is_sl")
    assert config.method == "fedavg"
    assert (config.local_episode, config.num_unlabel) == (10, 490)
    assert _config(CIFAR, "--is_sl", "--method=fedavg") == config
    assert _config(CIFAR, "--nois_sl").method == "protofssl"


def test_is_sl_wins_over_fixmatch() -> None:
    for words in (("--is_sl", "--fixmatch"), ("--fixmatch", "--is_sl")):
        assert _config(CIFAR, *words).method == "fedavg"


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (("--is_sl", "--method=protofssl"), "--is_sl with --method=protofssl: "),
        (("--fixmatch", "--method=fedavg"), "--fixmatch with --method=fedavg: "),
        (("--method=none",), "--method: found 'none', must be one of protofssl, "),
    ],
)
def test_two_methods_are_refused(argv: tuple[str, ...], start: str) -> None:
    assert _refusal(CIFAR, *argv).startswith(start)


def test_fixmatch_resolves_with_the_flags_own_defaults() -> None:
    """A command of the authors' can at least be looked at."""
    config = _config(CIFAR, "--fixmatch", "--dry_run")
    assert config.method == "fixmatch"
    assert (config.local_episode, config.num_unlabel) == (10, 490)


def test_fixmatch_recipes_bring_their_defaults() -> None:
    """--method means the scripts, --fixmatch the flag; what is given beats both."""
    scripts = _config(CIFAR, "--method=fixmatch")
    assert scripts.fixmatch_recipe == "scripts"
    assert (scripts.local_episode, scripts.optimizer_state) == (2, "client")
    assert (scripts.unlabeled_weight, scripts.mu) == (0.01, 0.1)
    assert _config("--dataset=stl10", "--method=fixmatch").mu == 0.01
    flag = _config(CIFAR, "--fixmatch")
    assert (flag.fixmatch_recipe, flag.local_episode) == ("flag", 10)
    assert (flag.optimizer_state, flag.mu) == ("sequential", 1e-3)
    assert flag.unlabeled_weight == 0.01
    published = _config(CIFAR, "--method=fixmatch", "--fixmatch_recipe=published")
    assert published.unlabeled_weight == 1.0
    assert _config(CIFAR, "--method=fixmatch", "--mu=0.5").mu == 0.5


def test_fixmatch_needs_unlabeled_images() -> None:
    refusal = _refusal(CIFAR, "--method=fixmatch", "--num_unlabel=0")
    assert refusal.startswith("--num_unlabel: found 0")


def test_bn_is_short_for_its_type() -> None:
    assert _config("--bn").bn_type == "bn"
    assert _config("--bn=true", "--bn_type=bn").bn_type == "bn"
    assert _config("--bn=false").bn_type == "none"
    assert _config("--bn=false", "--bn_type=gn").bn_type == "gn"
    for norm in ("none", "gn", "sbn"):
        assert _refusal("--bn", f"--bn_type={norm}").startswith("--bn with --bn_type=")


def test_default_helper_count_shrinks_to_what_the_bank_holds() -> None:
    resolved = parse([CIFAR, "--num_active_client=2"])
    assert resolved.config.helper_cnt == 2
    assert len(resolved.warnings) == 1
    assert resolved.warnings[0].startswith(
        "--helper_cnt: its default 5 is lowered to 2"
    )


def test_helper_count_fits_exactly() -> None:
    """keep_proto_rounds * num_active_client = 3 * 2 = 6: six fit, seven do not."""
    bank = (CIFAR, "--fidelity=head", "--num_active_client=2", "--keep_proto_rounds=3")
    assert _config(*bank).helper_cnt == 5
    assert _config(*bank, "--helper_cnt=6").helper_cnt == 6
    assert _warnings(*bank, "--helper_cnt=6") == ()
    assert _refusal(*bank, "--helper_cnt=7").startswith("--helper_cnt: found 7, ")


def test_helper_count_given_too_large_is_refused_though_it_is_the_default() -> None:
    refusal = _refusal(CIFAR, "--num_active_client=2", "--helper_cnt=5")
    assert refusal.startswith("--helper_cnt: found 5, the bank holds 2")
    assert "--num_active_client=2" in refusal


@pytest.mark.parametrize(
    "argv",
    [
        ("--helper_cnt=50",),
        ("--num_active_client=2",),
        ("--q_unlabel=1000", "--num_unlabel=10"),
        ("--s_label=3", "--q_label=3"),
        ("--num_label=1",),
    ],
)
@pytest.mark.parametrize("method", ["--is_sl", "--method=fedavg"])
def test_supervised_run_ignores_what_it_does_not_read(
    argv: tuple[str, ...], method: str
) -> None:
    """A line for each flag that it has no use for, and no refusal."""
    unread = [a for a in argv if a[2:9] in ("helper_", "q_unlab", "s_label", "q_label")]
    told = _warnings(CIFAR, method, *argv)
    assert len(told) == len(unread)
    assert all("has no effect with --method=fedavg" in line for line in told)


def test_flag_that_repeats_its_default_gets_no_warning() -> None:
    words = ("--use_noise=false", "--q_unlabel=100", "--helper_cnt=5")
    assert _warnings(CIFAR, "--method=fixmatch", *words) == ()


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (("--num_active_client=101",), "--num_active_client: found 101, there are "),
        (("--s_label=4",), "--s_label=4 and --q_label=2: an episode needs 6 "),
        (("--q_label=5",), "--s_label=1 and --q_label=5: an episode needs 6 "),
        (("--num_label=2",), "--s_label=1 and --q_label=2: an episode needs 3 "),
        (("--q_unlabel=491",), "--q_unlabel: found 491, a client has only "),
        (("--num_unlabel=99",), "--q_unlabel: found 100, a client has only "),
        (("--extreme_non_iid",), "--extreme_non_iid: found without --non_iid"),
        (("--dirichlet_alpha=0.5", "--non_iid"), "--dirichlet_alpha=0.5 with --non_"),
        (("--resume", "--overwrite"), "--resume with --overwrite: found both"),
        (("--init=random",), "--init=random is not understood"),
        (("--init=numpy:4294967296",), "--init=numpy:4294967296 is not understood"),
        (("--dataset=mnist",), "--dataset: found 'mnist', must be one of cifar10, "),
        (("--model=res50",), "--model: found 'res50', must be one of res9, "),
        (("--unlabel_loss_type=ce",), "--unlabel_loss_type: found 'ce', must be one "),
        (
            ("--method=fedmatch", "--fl_framework=fedprox"),
            "--fl_framework: found fedprox, with --method=fedmatch it must be fedavg",
        ),
        (("--method=fedmatch", "--optimizer=adam"), "--optimizer: found adam, with "),
        (("--method=fedmatch", "--bn"), "--bn_type: found bn, with --method=fedmatch "),
        (("--method=fedmatch", "--conv_bias"), "--conv_bias: found True, with "),
        (
            ("--method=fedmatch", "--optimizer_state=fresh"),
            "--optimizer_state: found fresh, with --method=fedmatch it must be client",
        ),
        (
            ("--method=fedmatch", "--helper_cnt=100"),
            "--helper_cnt: found 100, a client can have at most 99 ",
        ),
        (
            ("--method=fedrgd", "--optimizer_state=sequential"),
            "--optimizer_state: found sequential, with --method=fedrgd it must be ",
        ),
        (
            ("--method=fedrgd", "--num_group=6"),
            "--num_group: found 6, there are only --num_active_client=5 ",
        ),
    ],
)
def test_impossible_combination_is_refused(argv: tuple[str, ...], start: str) -> None:
    assert _refusal(CIFAR, *argv).startswith(start)


@pytest.mark.parametrize(
    "argv",
    [
        ("--num_active_client=100",),
        ("--s_label=3", "--q_label=2"),
        ("--q_unlabel=490",),
        ("--non_iid", "--extreme_non_iid"),
        ("--dirichlet_alpha=0.5",),
        ("--dirichlet_alpha=0", "--non_iid"),
        ("--init=numpy:4294967295",),
        ("--unlabel_round=-1",),
        ("--opt_momentum=0.999",),
        ("--method=fedmatch", "--helper_cnt=99"),
        ("--method=fedrgd", "--num_group=5"),
        ("--method=fedrgd", "--fl_framework=fedprox", "--optimizer_state=averaged"),
        (f"--seed={LARGEST_WHOLE_NUMBER}",),
    ],
)
def test_limits_themselves_are_allowed(argv: tuple[str, ...]) -> None:
    assert isinstance(_config(CIFAR, *argv), ExperimentConfig)


@pytest.mark.parametrize("declared", NUMBERS, ids=lambda d: d.name)
def test_number_out_of_range_is_refused(declared: Any) -> None:
    """For every number: one below its least, and what no number may be."""
    default, limits = declared.default, declared.metadata
    bad: list[Optional[float]] = [limits["above"], limits["below"]]
    if limits["at_least"] is not None:
        bad.append(limits["at_least"] - 1)
    if isinstance(default, int):
        bad.append(LARGEST_WHOLE_NUMBER + 1)
    else:
        bad.extend([float("nan"), float("inf"), float("-inf")])
    for value in bad:
        if value is not None:
            with pytest.raises(UsageError, match=f"^--{declared.name}: found .*, must"):
                resolve({declared.name: type(default)(value)})


def test_infinity_is_not_told_to_be_larger() -> None:
    assert _refusal("--opt_lr=inf") == "--opt_lr: found inf, must be finite"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "a\nb", "a\0b", "\x1b[31m", "\udcff", "é" * 128],
)
def test_name_that_is_no_folder_is_refused(name: str) -> None:
    refusal = _refusal(f"--exp_name={name}")
    assert refusal.startswith("--exp_name: found '")
    assert refusal.isprintable()


@pytest.mark.parametrize("name", ["a", "..a", "two words", "é" * 127, "a" * 255])
def test_name_that_is_a_folder_is_taken(name: str) -> None:
    """255 bytes are the most that file systems allow; é takes two."""
    assert _config(f"--exp_name={name}").exp_name == name


FEDPROX = "--fl_framework=fedprox"


@pytest.mark.parametrize(
    ("argv", "flag", "switch"),
    [
        (("--mu=0.01",), "--mu", FEDPROX),
        ((FEDPROX,), FEDPROX, "--proximal_gradient=true"),
        (("--l2_factor=0.1",), "--l2_factor", "--l2_in_loss=true"),
        (("--helper_cnt=4",), "--helper_cnt", "--helper_policy=newest"),
        (("--stddev=0.1",), "--stddev", "--use_noise=true"),
        (("--use_noise",), "--use_noise", "--stddev=0.1"),
    ],
)
def test_inert_flag_is_told_with_the_switch_that_makes_it_count(
    argv: tuple[str, ...], flag: str, switch: str
) -> None:
    (warning,) = _warnings(CIFAR, *argv)
    assert warning.startswith(flag)
    assert switch in warning
    assert _warnings(CIFAR, *argv, switch) in ((), _proximal_note(argv))


def _proximal_note(argv: tuple[str, ...]) -> Optional[tuple[str, ...]]:
    """With --mu the switch is itself inert under release, and says so."""
    return _warnings(CIFAR, FEDPROX) if "--mu=0.01" in argv else None


def test_paper_leaves_nothing_inert() -> None:
    flags = ("--mu=0.01", FEDPROX, "--l2_factor=0.1", "--helper_cnt=4")
    assert _warnings(CIFAR, "--fidelity=paper", *flags) == ()


@pytest.mark.parametrize(
    ("word", "reader", "other"),
    [
        ("--num_group=3", "fedrgd", "protofssl"),
        ("--group_mix_every=2", "fedrgd", "fedmatch"),
        ("--helper_handout=refresh", "fedmatch", "protofssl"),
        ("--fixmatch_recipe=published", "fixmatch", "sage"),
        ("--prototype_weight=2", "fedproto", "protofssl"),
        ("--confidence_threshold=0.5", "sage", "protofssl"),
        ("--unlabeled_weight=0.5", "mixmatch", "fedavg"),
        ("--temperature=0.7", "mixmatch", "fixmatch"),
        ("--helper_cnt=3", "fedmatch", "fedavg"),
        ("--q_unlabel=30", "protofssl", "fixmatch"),
        ("--use_noise", "protofssl", "fedavg"),
        ("--sl_batch_size=8", "fedproto", "fixmatch"),
    ],
)
def test_flag_of_another_method_gets_a_warning(
    word: str, reader: str, other: str
) -> None:
    start = f"{word.partition('=')[0]} has no effect with --method="
    told = parse([CIFAR, f"--method={other}", word]).warnings
    assert [line for line in told if line.startswith(start)]
    told = parse([CIFAR, f"--method={reader}", word]).warnings
    assert not [line for line in told if line.startswith(start)]


def test_no_advice_that_the_method_would_refuse() -> None:
    for word in ("--mu=0.1", "--l2_factor=0.1"):
        (line,) = parse([CIFAR, "--method=fedmatch", word]).warnings
        assert line == f"{word.partition('=')[0]} has no effect with --method=fedmatch"
    assert parse([CIFAR, "--method=fedrgd", "--optimizer=adam"]).warnings == ()


def test_fedmatch_and_fedrgd_bring_their_recipes() -> None:
    for fidelity in ("release", "head", "paper"):
        config = _config(CIFAR, "--method=fedmatch", f"--fidelity={fidelity}")
        assert (config.helper_cnt, config.helper_interval) == (2, 10)
        assert (config.optimizer, config.opt_lr) == ("sgd", 1e-3)
        assert (config.confidence_threshold, config.conv_bias) == (0.75, False)
        assert (config.local_episode, config.aggregation) == (1, "uniform")
        config = _config(CIFAR, "--method=fedrgd", f"--fidelity={fidelity}")
        assert (config.weight_decay, config.l2_in_loss) == (1e-4, False)
        assert (config.baseline_lr, config.aggregation) == ("cosine_7_16", "uniform")
    assert _config("--dataset=digits", "--method=fedmatch").helper_cnt == 2
    assert _config("--dataset=digits").helper_cnt == 3
    assert _config(CIFAR, "--method=fedrgd").optimizer_state == "fresh"


def test_out_dir_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve({"out_dir": "~/runs"}).config.out_dir == "/home/me/runs"
    with pytest.raises(UsageError, match="^--out_dir: found ~nobody-of-that-name; "):
        resolve({"out_dir": "~nobody-of-that-name"})
