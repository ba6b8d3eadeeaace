"""The paper's cells: their flagfiles, what they resolve to, and the printed values."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from data.partition import FederatedData, PartitionSpec, partition
from data.sources import DATASETS, RawDataset
from experiments import cells, suites
from experiments.budgets import budget_for
from experiments.suites import SUITES, Cell, all_cells
from fl import wiring
from flags.config import ExperimentConfig, declarations
from flags.parse import parse

ROOT = Path(__file__).parents[1]
STL10_UNLABELED = 100_000


def path_of(cell: Cell) -> str:
    return cell.path


@functools.cache
def config_of(cell: Cell, budget: str = "full") -> ExperimentConfig:
    return parse([*cell.flags, *budget_for(cell, budget).words]).config


def trained(config: ExperimentConfig) -> Dict[str, Any]:
    """What a training depends on: flags that do not count are left out.

    Images that have no weight in the loss matter to batch statistics alone.
    """
    values = {
        field.name: getattr(config, field.name)
        for field in declarations()
        if field.metadata["describes_run"]
    }
    left_out = {"exp_name", "seed", "fidelity"}
    if config.fl_framework == "fedavg" or not config.proximal_gradient:
        left_out |= {"fl_framework", "mu", "proximal_gradient"}
    if config.method == "protofssl":
        if {config.helper_policy, config.eval_prototypes} == {"all_kept"}:
            left_out.add("helper_cnt")
        if not config.use_noise or not config.stddev:
            left_out |= {"use_noise", "stddev"}
        if not config.unlabeled_weight and config.bn_type in ("none", "gn"):
            left_out |= {"non_iid", "q_unlabel", "helper_policy", "helper_interval"}
    else:
        left_out |= {"q_unlabel", "s_label", "q_label", "helper_policy"}
    return {name: values[name] for name in values if name not in left_out}


def same_trainings(budget: str) -> List[List[str]]:
    """Groups of cells that train the same."""
    found: Dict[str, List[str]] = {}
    for cell in all_cells():
        key = json.dumps(trained(config_of(cell, budget)), sort_keys=True)
        found.setdefault(key, []).append(cell.path)
    return [paths for paths in found.values() if len(paths) > 1]


def test_flagfiles_agree_with_the_table() -> None:
    """`python -m experiments.suites` was run after the last change."""
    assert suites.differing() == []


def test_every_kind_of_difference_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cells, "FOLDER", tmp_path / "experiments")
    assert len(suites.write_all()) == len(all_cells())
    assert suites.main(["--check"]) == 0
    edited, missing = all_cells()[0].flagfile, all_cells()[1].flagfile
    stray = edited.with_name("stray.flags")
    edited.write_text(edited.read_text() + "--seed=1\n")
    missing.unlink()
    stray.write_text("--seed=1\n")
    assert suites.differing() == sorted([edited, missing, stray])
    assert suites.main(["--check"]) == 1
    assert "differs: experiments/main/" in capsys.readouterr().out
    assert suites.main([]) == 0
    assert suites.differing() == []
    assert not stray.exists()


@pytest.mark.parametrize("cell", all_cells(), ids=path_of)
def test_flagfile_resolves_to_the_cell_without_a_warning(cell: Cell) -> None:
    """A warning would mean that something varied does not count."""
    resolved = parse([f"--flagfile={cell.flagfile}", "--dry_run"])
    assert resolved.warnings == ()
    assert resolved.config.fidelity == "release"
    assert resolved.config.num_round == 300
    assert trained(resolved.config) == trained(config_of(cell))


@pytest.mark.parametrize(
    "path", ["main/svhn_iid/protofssl_bn_fedavg", "noise/stl10/protofssl_bn_stddev_5.0"]
)
def test_main_takes_the_flagfile(path: str) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "main.py",
            f"--flagfile=experiments/{path}.flags",
            "--dry_run",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    (cell,) = [cell for cell in all_cells() if cell.path == path]
    wanted = {**config_of(cell).as_dict(), "dry_run": True}
    assert json.loads(result.stdout) == wanted


@pytest.mark.parametrize("budget", ["full", "quick"])
def test_no_two_cells_train_the_same(budget: str) -> None:
    assert same_trainings(budget) == []


def test_the_same_training_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of FedProx's term that does not count makes no other training."""
    first = all_cells()[0]
    twin = Cell("main", "twin", "twin", "", (*first.flags, "--mu=0.5"))
    made = (*all_cells(), twin)
    monkeypatch.setattr(sys.modules[__name__], "all_cells", lambda: made)
    assert same_trainings("full") == [[first.path, twin.path]]


def test_a_path_names_one_cell_and_an_address_one_entry() -> None:
    paths = [cell.path for cell in all_cells()]
    assert len(paths) == len(set(paths))
    for suite in SUITES.values():
        addresses = [entry.address for entry in suite.entries]
        assert len(addresses) == len(set(addresses))


def test_main_table_is_whole() -> None:
    """12 rows of 5 columns; STL-10 has no -SL rows, FedRGD is on CIFAR-10 alone."""
    main = SUITES["main"]
    assert (len(main.rows), len(main.columns)) == (12, 5)
    absent = {(row, c) for row in main.rows for c in main.columns} - {
        (entry.row, entry.column) for entry in main.entries
    }
    others = ("SVHN i.i.d.", "SVHN non-i.i.d.", "STL-10")
    assert absent == {
        ("FedAvg-SL", "STL-10"),
        ("FedProx-SL", "STL-10"),
        *(("FedRGD", column) for column in others),
    }
    assert all(entry.paper is not None for entry in main.entries)


def test_main_table_shares_a_training_only_where_there_is_no_unlabelled_data() -> None:
    main = SUITES["main"]
    shown = Counter(entry.cell.path for entry in main.entries)
    assert {path for path, times in shown.items() if times > 1} == {
        f"main/{data}_iid/{name}"
        for data in ("cifar10", "svhn")
        for name in ("fedavg", "fedprox")
    }
    twice = [entry for entry in main.entries if shown[entry.cell.path] > 1]
    values = {(entry.cell.path, entry.paper) for entry in twice}
    assert len(values) == 4


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("normalisation", 10, 2),
        ("unlabeled_per_episode", 6, 2),
        ("local_epochs", 2, 4),
        ("noise", 7, 5),
    ],
)
def test_other_tables_are_whole(name: str, rows: int, columns: int) -> None:
    suite = SUITES[name]
    assert (len(suite.rows), len(suite.columns)) == (rows, columns)
    assert len(suite.entries) == rows * columns
    assert all(entry.paper is not None for entry in suite.entries)


def test_each_table_has_its_own_value_of_a_shared_setting() -> None:
    """The paper prints four values for ProtoFSSL on CIFAR-10 i.i.d."""
    shown = {
        suite.name: entry.paper
        for suite in SUITES.values()
        for entry in suite.entries
        if entry.cell.path == "main/cifar10_iid/protofssl_fedavg"
        and entry.paper is not None
    }
    assert shown == {
        "main": 67.8,
        "normalisation": 66.1,
        "unlabeled_per_episode": 66.6,
        "local_epochs": 66.1,
    }


def test_figures_have_numbers_on_their_axis_and_nothing_printed() -> None:
    figures = [suite for suite in SUITES.values() if suite.kind == "figure"]
    assert {suite.name for suite in figures} == {
        "label_ratio",
        "helper_count",
        "helper_interval",
    }
    for suite in figures:
        numbers = [float(column) for column in suite.columns]
        assert numbers == sorted(numbers)
        assert suite.x_label
        assert all(entry.paper is None for entry in suite.entries)


@pytest.mark.parametrize(
    ("name", "flag", "values"),
    [
        ("unlabeled_per_episode", "q_unlabel", {10, 20, 30, 50, 100, 200}),
        ("noise", "stddev", {0.0, 0.01, 0.05, 0.1, 0.5, 5.0, 10.0}),
        ("local_epochs", "local_episode", {1, 2, 5, 10}),
        ("label_ratio", "num_label", {5, 10, 20, 30, 40, 50, 54}),
        ("helper_interval", "helper_interval", {1, 2, 5, 10, 20}),
        ("lambda_zero", "unlabeled_weight", {0.0, 0.3}),
    ],
)
def test_what_a_suite_varies(name: str, flag: str, values: set[float]) -> None:
    found = {getattr(config_of(cell), flag) for cell in SUITES[name].cells}
    assert found == values


def test_labelled_and_unlabelled_images_make_up_a_client() -> None:
    for entry in SUITES["label_ratio"].entries:
        config = config_of(entry.cell)
        assert config.num_label == int(entry.column)
        if config.method != "fedavg":
            assert 10 * config.num_label + config.num_unlabel == 540


def test_helper_cells_have_the_helpers_they_are_named_for() -> None:
    for entry in SUITES["helper_count"].entries:
        assert config_of(entry.cell).helper_cnt == int(entry.column)
    for entry in SUITES["helper_interval"].entries:
        assert config_of(entry.cell).helper_interval == int(entry.column)


def comments(cell: Cell) -> str:
    lines = suites.flagfile_text(cell).splitlines()
    texts = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return " ".join(texts)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_header_tells_table_row_column_and_value(suite: Any) -> None:
    for entry in suite.entries:
        value = "no value is printed" if entry.paper is None else f"{entry.paper} %"
        told = f"{entry.row}; {suite.x_label} {entry.column}: {value}."
        told = told.replace(";  ", "; ")
        assert f"{suite.title}: {told}" in comments(entry.cell)


def test_header_explains_every_switch_that_departs_from_release() -> None:
    switches = {f.name for f in declarations() if f.metadata["columns"]}
    departing = 0
    for cell in all_cells():
        for word in cell.flags:
            name = word.lstrip("-").partition("=")[0]
            if name in switches:
                departing += 1
                assert f"{word.partition('=')[0]}=" in comments(cell), cell.path
    assert departing


def test_fedrgd_says_that_its_value_is_of_another_setting() -> None:
    entries = [e for e in SUITES["main"].entries if e.row == "FedRGD"]
    assert [entry.paper for entry in entries] == [69.7, 63.4]
    for entry in entries:
        assert "not of this setting" in entry.note
        assert "not of this setting" in comments(entry.cell)


@functools.cache
def fake_raw(name: str) -> RawDataset:
    """As many images as the data set has per class in its cut, of one pixel."""
    info = DATASETS[name]
    labels = np.repeat(np.arange(info.num_classes, dtype=np.int32), info.cut.total)
    images = np.zeros([len(labels), 1, 1, 3], np.uint8)
    return RawDataset(
        name=name,
        num_classes=info.num_classes,
        x_train=images,
        y_train=labels,
        x_test=images[:0],
        y_test=labels[:0],
        x_unlabeled=np.zeros([STL10_UNLABELED, 1, 1, 3], np.uint8)
        if info.has_unlabeled
        else None,
    )


@functools.cache
def dealt(spec: PartitionSpec) -> FederatedData:
    return partition(fake_raw(spec.dataset), spec)


@pytest.mark.parametrize("budget", ["full", "quick"])
def test_every_cell_has_images_enough(budget: str) -> None:
    """On the whole data sets: nothing is cut down, and episodes can be drawn."""
    short: List[Tuple[str, int]] = []
    for cell in all_cells():
        config = config_of(cell, budget)
        data = dealt(wiring.partition_spec(config))
        cut = DATASETS[config.dataset].cut
        sizes = data.validation.shape[1], data.test.shape[1]
        assert sizes == (cut.validation, cut.test), cell.path
        fewest = min(len(client.unlabeled) for client in data.clients)
        if config.method == "protofssl" and config.q_unlabel > fewest:
            short.append((cell.path, fewest))
    assert short == []


def test_nothing_of_this_needs_tensorflow() -> None:
    modules = "suites", "budgets", "timing", "jobs", "run"
    imports = "; ".join(f"import experiments.{name}" for name in modules)
    code = f"import sys; {imports}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
