"""Holds runs of ours against numbers recorded from the authors' program.

    pytest -m reference --reference-dir=DIR

Every JSON file of the folder is one run: `flags` as given to their program, `split`,
`val_sum`, `test_sum`, and for each of its `rounds` what the clients reported and how
far each weight had moved. The same flags go through our main with the initial weights
of the recording (--init=numpy:7), and everything is compared. Files without `rounds`
hold a split alone.

RMSprop's first steps have nearly the same norm whatever the gradient, so that the
norm of a change proves little; its projection on a fixed wave is compared too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
import pytest

from fl import checkpoints, records, wiring
from fl.records import ClientRecord, RoundRecord
from fl.run_folder import RunFiles
from flags.config import ExperimentConfig
from flags.parse import parse
from models.init import initial_weights

ROOT = Path(__file__).parents[1]
INIT = "numpy:7"
SPLIT_TOLERANCE = 1e-6
# Of 3,000 held-out images one or two lie so near between two classes that the rounding
# of another processor decides.
ACCURACY_TOLERANCE = 2.5 / 3000
LOSS_TOLERANCE = 1e-4
PROTOTYPE_TOLERANCE = 1e-3
KERNEL_TOLERANCE = 1e-2
PROJECTION_TOLERANCE = 0.2
STATISTICS_TOLERANCE = 1e-3

pytestmark = pytest.mark.reference


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--reference-dir")
    if "recorded" not in metafunc.fixturenames:
        return
    if folder is None:
        skip = pytest.mark.skip(reason="needs --reference-dir")
        metafunc.parametrize("recorded", [pytest.param({}, marks=skip)])
        return
    paths = sorted(Path(folder).glob("*.json"))
    assert paths, f"--reference-dir={folder}: found no .json file"
    metafunc.parametrize(
        "recorded",
        [json.loads(p.read_text()) for p in paths],
        ids=[p.stem for p in paths],
    )


def our_flags(recorded: Mapping[str, Any]) -> List[str]:
    """The recorded flags and what makes ours start and evaluate alike."""
    evaluated = [r["round"] for r in recorded.get("rounds", ()) if r.get("val")]
    return [
        "--dataset=cifar10",  # Their default; where the flags name one, that counts.
        *recorded["flags"],
        f"--fidelity={recorded.get('fidelity', 'head')}",
        f"--init={INIT}",
        "--eval_every=1",
        f"--eval_from={min(evaluated, default=1)}",
        "--keep_checkpoints=1000",
    ]


def test_split(recorded: Mapping[str, Any]) -> None:
    """Counts exactly; the sums of pixels tell which images they are."""
    data = wiring.load_data(parse(our_flags(recorded)).config)

    def pixel_sum(images: np.ndarray, indices: np.ndarray) -> float:
        return float(images[indices].sum(dtype=np.int64)) / 255

    for client, wanted in zip(data.clients, recorded["split"]):
        counts = np.bincount(data.labels[client.labeled], minlength=data.num_classes)
        assert counts.tolist() == wanted["labeled_counts"]
        assert len(client.unlabeled) == wanted["unlabeled_count"]
        found = pixel_sum(data.images, client.labeled)
        assert found == pytest.approx(wanted["labeled_sum"], rel=SPLIT_TOLERANCE)
        if wanted["unlabeled_sum"] is not None:
            found = pixel_sum(data.unlabeled_images, client.unlabeled)
            assert found == pytest.approx(wanted["unlabeled_sum"], rel=SPLIT_TOLERANCE)
    assert len(data.clients) == len(recorded["split"])
    for rows, sums in ((data.validation, "val_sum"), (data.test, "test_sum")):
        found = [pixel_sum(data.images, row) for row in rows]
        assert found == pytest.approx(recorded[sums], rel=SPLIT_TOLERANCE)


def test_run(recorded: Mapping[str, Any], tmp_path: Path) -> None:
    """Every round of the recording, through main."""
    flags = our_flags(recorded)
    if "rounds" not in recorded:
        assert parse(flags).config.num_client == len(recorded["split"])
        return
    command = [sys.executable, "main.py", *flags, f"--out_dir={tmp_path}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    config = parse(flags).config
    run = RunFiles(tmp_path / config.exp_name)
    for wanted in recorded["rounds"]:
        check_clients(run, wanted)
        check_evaluation(run, wanted)
        check_weights(run, config, wanted)


def check_clients(run: RunFiles, wanted: Mapping[str, Any]) -> None:
    rows = records.read_rows(run.clients_file, ClientRecord)
    ours = [row for row in rows if row.round == wanted["round"]]
    assert [row.client for row in ours] == [c["client"] for c in wanted["clients"]]
    for row, theirs in zip(ours, wanted["clients"]):
        assert row.train_acc == pytest.approx(theirs["acc"], abs=1e-6)
        assert row.train_loss == pytest.approx(theirs["loss"], rel=LOSS_TOLERANCE)
        if theirs.get("loss_unlabel") is not None:
            assert row.unlabeled_loss == pytest.approx(
                theirs["loss_unlabel"], rel=LOSS_TOLERANCE
            )
        if theirs.get("proto_norm") is not None:
            assert row.prototype_norm == pytest.approx(
                theirs["proto_norm"], rel=PROTOTYPE_TOLERANCE
            )


def check_evaluation(run: RunFiles, wanted: Mapping[str, Any]) -> None:
    row = records.read_rows(run.metrics_file, RoundRecord)[wanted["round"] - 1]
    ours = {"val": (row.val_acc, row.val_loss), "test": (row.test_acc, row.test_loss)}
    for part, (accuracy, loss) in ours.items():
        if wanted.get(part):
            assert accuracy == pytest.approx(
                wanted[part]["acc"], abs=ACCURACY_TOLERANCE
            )
            assert loss == pytest.approx(wanted[part]["loss"], rel=LOSS_TOLERANCE)


def check_weights(
    run: RunFiles, config: ExperimentConfig, wanted: Mapping[str, Any]
) -> None:
    path = run.checkpoints / f"round_{wanted['round']:06d}.npz"
    arrays = checkpoints.load(path).arrays
    for number, (name, start) in enumerate(named_initial_weights(config).items()):
        change = arrays[f"model_weights/{number:03d}"].astype(np.float64) - start
        change = change.ravel()
        norm = wanted["delta_norm"][number]
        if "kernel" in name:
            wave = np.cos(0.37 * np.arange(change.size))
            off = float(change @ wave) - wanted["delta_proj"][number]
            assert np.linalg.norm(change) == pytest.approx(
                norm, rel=KERNEL_TOLERANCE
            ), name
            assert abs(off) <= PROJECTION_TOLERANCE * norm, name
        elif "moving" in name:
            assert np.linalg.norm(change) == pytest.approx(
                norm, rel=STATISTICS_TOLERANCE
            ), name


def named_initial_weights(config: ExperimentConfig) -> Dict[str, np.ndarray]:
    """By name, in the order of the recording: that of `model.get_weights()`."""
    from models.builder import build_model

    classes = {"cifar10": 10, "cifar100": 100}[config.dataset]
    model = build_model(
        config.model,
        (32, 32, 3),
        norm=config.bn_type,
        num_classes=None if config.method == "protofssl" else classes,
    )
    weights = initial_weights(model, INIT, config.seed)
    return {variable.name: value for variable, value in zip(model.weights, weights)}
