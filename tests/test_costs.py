"""The cost tables: the paper's figures, what our methods do, what a run sent."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

import attr
import numpy as np
import pytest

from data.sources import DATASETS
from experiments import client_work, cost_formulas, costs
from fl.records import RoundRecord, write_rows
from flags.errors import UsageError
from flags.presets import METHODS
from flags.resolve import resolve

# The paper's Table 2, as printed.
PAPER_GFLOP = {
    "mixmatch": "782.0",
    "fixmatch": "782.0",
    "fedrgd": "782.0",
    "fedmatch": "1526.0",
    "protofssl": "447.9",
}
PAPER_MEGABYTE = {
    "mixmatch": "52.6",
    "fixmatch": "52.6",
    "fedrgd": "52.6",
    "fedmatch": "115.6",
    "protofssl": "52.6",
}


def tables(*argv: str) -> Dict[str, Dict[str, Any]]:
    """The rows of the first two tables, by method."""
    own, rest = costs._own_arguments(argv)
    report = costs.make_report(own, costs.given_flags(rest))
    return {row["method"]: row for row in costs._method_rows(report)}


# --- The paper's tables ---------------------------------------------------------------


def test_the_paper_s_figures_to_the_digit() -> None:
    rows = tables()
    for method, gflop in PAPER_GFLOP.items():
        assert f"{rows[method]['gflop']:.1f}" == gflop
        assert f"{rows[method]['megabyte']:.1f}" == PAPER_MEGABYTE[method]
    assert {m for m, row in rows.items() if row["in_paper"]} == set(PAPER_GFLOP)


def test_rows_are_of_methods_that_there_are() -> None:
    assert set(cost_formulas.FORMULAS) == set(client_work._PASSES) <= set(METHODS)


LETTERS = cost_formulas.Letters(
    flops=1000,
    theta=10**6,
    embedding=3,
    labeled=7,
    unlabeled=11,
    classes=5,
    epochs=2,
    helpers=4,
    interval=8,
    views=3,
)


@pytest.mark.parametrize(
    ("method", "flops", "num_bytes"),
    [
        ("mixmatch", 1000 * (7 + 3 * 11) * 2, 2e6),
        ("fixmatch", 1000 * (7 + 2 * 11) * 2, 2e6),
        ("fedrgd", 1000 * (7 + 2 * 11) * 2, 2e6),
        ("fedmatch", 1000 * (7 + (2 + 4) * 11) * 2, (4 + 2 * 4 / 8) * 1e6),
        (
            "protofssl",
            1000 * (7 + 11) * 2 + 3 * 4 * 5 * 11 * 2 + 1000 * 7,
            2e6 + 4 * 3 * (1 + 4) * 5,
        ),
        ("fedavg", 1000 * 7 * 2, 2e6),
        ("sage", 1000 * (7 + 3 * 11) * 2, 2e6),
        ("fedproto", 1000 * 7 * 2 + 3 * 7 * 2 + 1000 * 7, 2e6 + 2 * 4 * 3 * 5),
    ],
)
def test_formulas(method: str, flops: float, num_bytes: float) -> None:
    """Each letter has another value, so that none can stand for another."""
    formula = cost_formulas.FORMULAS[method]
    assert formula.flops(LETTERS) == flops
    assert formula.num_bytes(LETTERS) == num_bytes


def test_protofssl_goes_without_the_dense_layer() -> None:
    """6,565,760 weights with biases; ResNet9 has 5,130 more."""
    setting = cost_formulas.paper_setting({})
    headed, headless = (cost_formulas.letters(setting, head, 2) for head in (1, 0))
    assert headless.theta == 4 * 6_565_760
    assert headed.theta - headless.theta == 4 * 5_130
    assert not cost_formulas.FORMULAS["protofssl"].has_head


def test_flags_change_the_letters() -> None:
    """CIFAR-100: 100 classes of 5 labelled images; the rest as given."""
    setting = cost_formulas.paper_setting(
        {
            "dataset": "cifar100",
            "model": "res18",
            "local_episode": 3,
            "helper_cnt": 30,
            "helper_interval": 4,
        }
    )
    found = cost_formulas.letters(setting, True, setting.helper_cnt, views=7)
    assert attr.asdict(found) == {
        "flops": cost_formulas.network("res18", (32, 32, 3), "none", True, 100).flops,
        # ResNet17's and a dense layer.
        "theta": 4 * (9 * 1_220_800 + 3_904 + 513 * 100),
        "embedding": 512,
        "labeled": 500,
        "unlabeled": 4900,
        "classes": 100,
        "epochs": 3,
        "helpers": 30,
        "interval": 4,
        "views": 7,
    }


def test_network_follows_norm_bias_and_image_size() -> None:
    plain = cost_formulas.letters(cost_formulas.paper_setting({}), True, 2)
    for flag, value in (("bn", True), ("conv_bias", False), ("dataset", "stl10")):
        other = cost_formulas.letters(
            cost_formulas.paper_setting({flag: value}), True, 2
        )
        assert other.flops != plain.flops, flag
        assert (other.theta != plain.theta) == (flag != "dataset"), flag


def test_num_view_counts_for_mixmatch_alone() -> None:
    before, after = tables(), tables("--num_view=5")
    changed = {m for m in before if before[m]["gflop"] != after[m]["gflop"]}
    assert changed == {"mixmatch"}
    assert after["mixmatch"]["gflop"] == pytest.approx(
        (50 + 5 * 490) * 759_179_274 / 1e9
    )


# --- What our methods do --------------------------------------------------------------


def test_protofssl_s_defaults() -> None:
    """10 episodes of 3 * 10 labelled and 100 unlabelled images; 50 for prototypes.

    Weights, RMSprop's state and, with all of m = 5 kept, 1 + 5 sets of prototypes.
    """
    config = resolve({"dataset": "cifar10"}).config
    done = client_work.work(config)
    assert (done.forward, done.trained) == (50, 1300)
    assert done.flops == 759_169_024 * (50 + 3 * 1300)
    assert done.num_bytes == 4 * 6_565_760 * 4 + 2048 * 6 * 10


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        ({"optimizer_state": "fresh"}, 2 * 26_263_040 + 2048 * 6 * 10),
        (
            {"optimizer_state": "averaged", "optimizer": "adam"},
            2 * (3 * 26_263_040 + 4) + 2048 * 6 * 10,
        ),
        (
            {"fidelity": "paper", "helper_cnt": 2, "keep_proto_rounds": 3},
            2 * 26_263_040 + 2048 * 3 * 10,
        ),
        (
            {"optimizer_state": "fresh", "refine_at_begin": True},
            3 * 26_263_040 + 2048 * 7 * 10,
        ),
    ],
)
def test_what_protofssl_sends(given: Mapping[str, Any], num_bytes: int) -> None:
    config = resolve({"dataset": "cifar10", **given}).config
    assert client_work.expected_bytes(config) == num_bytes


def test_moving_statistics_are_sent_but_not_optimized() -> None:
    """Batch norm: 2,240 channels with two trainable values and two statistics."""
    config = resolve({"dataset": "cifar10", "bn": True, "method": "fedavg"}).config
    weights, trainable = 6_570_890 + 4 * 2_240, 6_570_890 + 2 * 2_240
    assert client_work.expected_bytes(config) == 2 * 4 * (weights + trainable)


def test_a_method_named_is_the_only_one() -> None:
    configs, refused = client_work.own_configs({"is_sl": True})
    assert [config.method for config in configs] == ["fedavg"]
    assert not refused
    with pytest.raises(UsageError, match="--s_label"):
        client_work.own_configs({"method": "protofssl", "num_label": 1})


def test_methods_that_the_flags_do_not_suit_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert costs.main(["--dataset=digits", "--bn=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "not with these flags" in line]
    assert line.startswith("FedMatch: ")
    assert "--bn_type" in line
    assert all("\n" not in text for text in lines)


def test_batches_are_those_of_the_methods() -> None:
    from fl.methods import classifier, fedmatch, fedrgd, fixmatch, mixmatch

    assert (client_work.LABELED_BATCH, client_work.UNLABELED_BATCH) == (
        classifier.LABELED_BATCH,
        classifier.UNLABELED_BATCH,
    )
    published = fixmatch.batch_sizes("published", (50, 490))
    assert published == (10, client_work.FIXMATCH_PUBLISHED_BATCH)
    assert client_work.FEDMATCH_BATCHES == (
        fedmatch.LABELED_BATCH,
        fedmatch.UNLABELED_BATCH,
    )
    assert client_work.FEDRGD_BATCH == fedrgd.BATCH
    assert client_work.MIXMATCH_VIEWS == mixmatch.VIEWS


class Passes:
    """Counts the images that pass a network's first layer, forward and back."""

    def __init__(self) -> None:
        self.forward = self.back = 0

    def model(self, has_head: bool) -> Any:
        """A small network that counts; images of 8x8."""
        import tensorflow as tf

        watch = self._watch

        class Counting(tf.keras.layers.Layer):
            def call(self, inputs: Any) -> Any:
                return watch(inputs) if tf.executing_eagerly() else inputs

        image = tf.keras.Input([8, 8, 1])
        x = tf.keras.layers.Conv2D(2, 3, strides=2, use_bias=False)(image)
        x = tf.keras.layers.Flatten()(Counting()(x))
        if has_head:
            x = tf.keras.layers.Dense(10, use_bias=False)(x)
        return tf.keras.Model(image, x)

    def _watch(self, values: Any) -> Any:
        import tensorflow as tf

        @tf.custom_gradient
        def identity(x: Any) -> Tuple[Any, Callable[[Any], Any]]:
            count = int(x.shape[0])
            self.forward += count

            def gradient(upstream: Any) -> Any:
                self.back += count
                return upstream

            return tf.identity(x), gradient

        return identity(values)


def untraced(passes: Passes, **given: Any) -> Any:
    """A method on a counting network, without its federated computations."""
    from fl import wiring
    from fl.methods import base, method_class

    config = resolve({"dataset": "digits", "num_client": 6, **given}).config
    kind = method_class(config.method)

    def model_fn() -> Any:
        return passes.model(kind.has_head)

    method = kind.__new__(kind)
    weights = tuple(0.1 * np.ones_like(w) for w in model_fn().get_weights())
    base.Method.__init__(
        method, base.Setup(config, wiring.load_data(config), model_fn, weights)
    )
    return method


def train_protofssl(method: Any) -> None:
    from fl import client
    from fl.local import LocalModel
    from fl.methods import base, protofssl

    setup = method.setup
    method._helpers = protofssl.helper_options(setup.config)
    local = LocalModel(
        setup.model_fn, method.optimizer, base.regularization(setup.config)
    )
    state = attr.evolve(method.initial_state(), round_num=1)
    _, clients = method.clients(state)
    settings = protofssl.client_settings(setup.config, 10)
    client.client_update(local, settings, method.message(state), clients[0])


def train_classifier(method: Any) -> None:
    from fl.local import LocalModel
    from fl.methods import base, steps

    setup = method.setup
    local = LocalModel(
        setup.model_fn, method.optimizer, base.regularization(setup.config)
    )
    state = method.initial_state()
    client = with_helpers(method, method.clients(state)[1][0])
    settings = steps.Settings(
        weight_by_examples=False,
        optimizer_state=setup.config.optimizer_state,
        semi_supervised=method.semi_supervised,
    )
    step = method.make_step(local)
    steps.client_update(local, step, settings, method.message(state), client)


def with_helpers(method: Any, client: Any) -> Any:
    """FedMatch's client as it is after a refresh: with all its helpers."""
    if method.setup.config.method != "fedmatch":
        return client
    kernels = method.setup.initial_weights
    count = method.setup.config.helper_cnt
    helpers = tuple(np.stack([0.2 * kernel] * count) for kernel in kernels)
    return attr.evolve(client, personal=attr.evolve(client.personal, helpers=helpers))


@pytest.mark.parametrize(
    "given",
    [
        {"method": "protofssl"},
        {"method": "protofssl", "warmup_episode": 3, "idle_unlabeled": "skip"},
        {"method": "protofssl", "prototype_source": "global", "num_label": 4},
        {"method": "fedavg"},
        {"method": "fedproto"},
        {"method": "fixmatch"},
        {"method": "fixmatch", "fixmatch_recipe": "flag", "local_episode": 3},
        {"method": "fixmatch", "fixmatch_recipe": "published", "num_unlabel": 100},
        {"method": "mixmatch", "num_label": 3},
        {"method": "sage"},
        {"method": "fedrgd"},
        {"method": "fedmatch", "confidence_threshold": 0.0, "num_label": 4},
    ],
    ids=lambda given: "-".join(str(value) for value in given.values()),
)
def test_images_that_pass_the_network(given: Mapping[str, Any]) -> None:
    """A client's training itself, run eagerly, takes the images that are told."""
    passes = Passes()
    method = untraced(passes, **given)
    is_proto = given["method"] == "protofssl"
    (train_protofssl if is_proto else train_classifier)(method)
    told = client_work.work(method.setup.config)
    assert (passes.forward - passes.back, passes.back) == (told.forward, told.trained)


# --- What a run sent ------------------------------------------------------------------


def record_run(folder: Path, rows: List[RoundRecord], **given: Any) -> Path:
    """A run's folder with nothing but its configuration and its rounds."""
    config = resolve({"dataset": "cifar10", **given}).config
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"config": config.as_dict()}))
    write_rows(folder / "metrics.csv", rows, RoundRecord)
    return folder


def sent(*pairs: Tuple[int, int]) -> List[RoundRecord]:
    return [
        RoundRecord(round=number, bytes_down=down, bytes_up=up)
        for number, (down, up) in enumerate(pairs, start=1)
    ]


def test_a_recorded_run_agrees_with_the_formula(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes as two rounds of two clients on CIFAR-10 had them, with a fresh optimizer.

    The formula: 2 * 26,263,040 + 2048 * (1 + 2) * 10 = 52,587,520 for a client; masks,
    learning rate and reports make the 100 bytes above it.
    """
    rows = sent((52_608_048, 52_567_192), (52_608_048, 52_567_192))
    given = {"optimizer_state": "fresh", "num_active_client": 2, "helper_cnt": 2}
    folder = record_run(tmp_path / "run", rows, **given)
    row = costs.run_row("run", *costs.read_run(folder))
    assert row["megabyte"] == 52.587620
    assert row["megabyte_down"] == 26.304024
    assert row["formula_megabyte"] == row["expected_megabyte"] == 52.587520
    assert costs.main([f"--run={folder}"]) == 0
    table = capsys.readouterr().out.splitlines()[-1]
    figures = " ".join(table.split()[1:])
    assert figures == (
        "protofssl 2 26.304 26.284 52.588 52.588 +0.00 % 52.588 +0.00 % fresh"
    )


def test_a_run_of_ours_agrees_with_the_formula(
    run_small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 % without the optimizer's state; a third more with RMSprop's.

    The small network has 3 * 3 * 4 + 4 + 4 * 4 weights and embeddings of 36 values;
    the state goes along with all of these but the 8 moving statistics.
    """
    small = cost_formulas.Network(flops=1, num_weights=56, num_trainable=48, layers=())
    monkeypatch.setattr(cost_formulas, "network_of", lambda *_: small)
    monkeypatch.setattr(client_work, "network_of", lambda *_: small)
    monkeypatch.setattr(cost_formulas, "embedding_size", lambda _: 36)
    for treatment, state in (("fresh", 0), ("sequential", 2 * 4 * 48)):
        folder = run_small(treatment, optimizer_state=treatment, num_round=2).path
        row = costs.run_row("run", *costs.read_run(folder))
        formula = 2 * 4 * 56 + 4 * 36 * (1 + 3) * 10
        assert row["formula_megabyte"] == pytest.approx(formula / 1e6)
        assert row["expected_megabyte"] == pytest.approx((formula + state) / 1e6)
        assert row["megabyte"] == pytest.approx(row["expected_megabyte"], rel=0.02)
        assert row["rounds"] == 2


def test_a_method_without_formulas(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its runs are shown as they are; asked for by name, it is refused."""
    monkeypatch.delitem(cost_formulas.FORMULAS, "sage")  # type: ignore[arg-type]
    folder = record_run(tmp_path / "run", sent((10**7, 10**7)), method="sage")
    assert costs.main([f"--run={folder}"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[1:] == ["sage", "1", "2.000", "2.000", "4.000", *["-"] * 4, "client"]
    assert costs.main(["--method=sage"]) == 2
    assert "--method: found sage" in capsys.readouterr().err


def test_several_runs(tmp_path: Path) -> None:
    """Separated by commas, or with the flag repeated; in that order."""
    folders = [str(record_run(tmp_path / n, sent((10, 5)))) for n in "abc"]
    own, rest = costs._own_arguments(
        [f"--run={folders[0]},{folders[1]}", "--run", folders[2]]
    )
    report = costs.make_report(own, costs.given_flags(rest))
    assert [row["run"] for row in report.runs] == folders
    assert {row["megabyte"] for row in report.runs} == {15 / 5 / 1e6}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: (run / "config.json").unlink(), "config.json"),
        (lambda run: (run / "config.json").write_text("{"), "config.json"),
        (
            lambda run: (run / "config.json").write_text(
                '{"config": {"model": "res1"}}'
            ),
            "--model",
        ),
        (
            lambda run: (run / "config.json").write_text('{"config": {"q_label": []}}'),
            "--q_label",
        ),
        (lambda run: (run / "metrics.csv").unlink(), "metrics.csv"),
        (lambda run: write_rows(run / "metrics.csv", [], RoundRecord), "metrics.csv"),
        (
            lambda run: write_rows(run / "metrics.csv", [RoundRecord(round=1)]),
            "metrics.csv",
        ),
        (
            lambda run: (run / "metrics.csv").write_text("round\n1"),
            "metrics.csv",
        ),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line(
    damage: Callable[[Path], Any],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = record_run(tmp_path / "run", sent((1, 1)))
    damage(folder)
    assert costs.main([f"--run={folder}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("costs: error: ")
    assert errors.count("\n") == 1
    assert told in errors


# --- The program ----------------------------------------------------------------------


def test_prints_the_tables_without_tensorflow_federated() -> None:
    code = (
        "import sys; from experiments import costs; code = costs.main(['--layers']);"
        "assert 'tensorflow_federated' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert "F = 0.7592 GFLOP an image, Theta = 26.28 MB (6,570,890 weights)" in lines[1]
    assert [line for line in lines if line.startswith("FedMatch")][0].split() == (
        ["FedMatch", "F(|DL|+(2+H)|DU|)E", "1526.0", "(4+2H/R_H)Theta", "115.6"]
    )
    assert lines[-1].split() == ["all", "6,570,890", "759,179,274"]


def test_writes_csv_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, everything = tmp_path / "new" / "costs.csv", tmp_path / "costs.json"
    argv = ["--dataset=digits", "--layers", f"--csv={table}", f"--json={everything}"]
    assert costs.main(argv) == 0
    with table.open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(cost_formulas.FORMULAS)
    told = json.loads(everything.read_text())
    for row in told["methods"]:
        assert float(rows[row["method"]]["gflop"]) == row["gflop"]
        assert int(rows[row["method"]]["images_forward"]) == row["images_forward"]
    flops = sum(layer["flops"] for layer in told["layers"])
    assert flops == told["with_dense_layer"]["flops"]
    assert told["without_dense_layer"]["classes"] == DATASETS["digits"].num_classes


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--num_view=0", "--num_view"),
        ("--num_view=many", "--num_view"),
        ("--csv", "--csv"),
        ("--no_such=1", "--no_such"),
        ("--dataset=mnist", "--dataset"),
        ("--local_episode=0", "--local_episode"),
        ("--csv=/dev/null/costs.csv", "--csv"),
    ],
)
def test_a_mistake_is_one_line(
    argument: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert costs.main([argument]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("costs: error: ")
    assert errors.count("\n") == 1
    assert told in errors


def test_help_tells_the_letters_and_the_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert costs.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "R_H" in text
    assert "--num_view" in text
    assert "--helper_interval" in text
