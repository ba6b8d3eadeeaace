"""The loop and its records: a run that is cut off ends as one that is not."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any, Callable

import attr
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.partition import FederatedData
from fl import checkpoints, experiment, plots, records, signals
from fl.methods.protofssl import ProtoFSSL
from fl.progress import Progress
from fl.records import ClientRecord, RoundRecord
from fl.run_folder import RunFiles
from flags.config import ExperimentConfig
from flags.errors import UsageError

Run = Callable[..., RunFiles]


def rows_without_seconds(run: RunFiles) -> list[RoundRecord]:
    rows = records.read_rows(run.metrics_file, RoundRecord)
    return [attr.evolve(row, seconds=None) for row in rows]


def summary_without_seconds(run: RunFiles) -> Any:
    summary = json.loads(run.summary_file.read_text())
    return {k: v for k, v in summary.items() if k != "total_seconds"}


def assert_same_run(first: RunFiles, second: RunFiles) -> None:
    """Rows and summary but for seconds, weights bit for bit, each point once."""
    assert rows_without_seconds(first) == rows_without_seconds(second)
    assert first.clients_file.read_text() == second.clients_file.read_text()
    assert summary_without_seconds(first) == summary_without_seconds(second)
    assert points(first) == points(second)
    with np.load(first.weights_file) as left, np.load(second.weights_file) as right:
        assert left.files == right.files
        for name in left.files:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert checkpoints.rounds(first.checkpoints) == checkpoints.rounds(
        second.checkpoints
    )


def points(run: RunFiles) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run.tensorboard)).Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag != "cost/seconds"
    }


class Cut(Exception):
    """Stands for a kill."""


def cut_after(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, calls: int
) -> None:
    """Lets a function work so often, and cuts the run off at the next call."""
    original, done = getattr(target, name), []

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(done) == calls:
            raise Cut
        done.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, wrapper)


def test_pictures_of_earlier_rounds_take_no_memory(
    run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[weakref.ref[Any]] = []
    alive: list[int] = []
    save, tell = plots._save, Progress.tell

    def remembering(figure: Any, path: Any) -> None:
        drawn.append(weakref.ref(figure))
        save(figure, path)

    def counting(self: Progress, *args: Any) -> None:
        alive.append(sum(figure() is not None for figure in drawn))
        tell(self, *args)

    monkeypatch.setattr(plots, "_save", remembering)
    monkeypatch.setattr(Progress, "tell", counting)
    gc.disable()
    try:
        run_small("plain", eval_every=1)
    finally:
        gc.enable()
    assert len(drawn) > len(alive) > 1
    assert alive == [0] * len(alive)


def test_records_of_a_run(run_small: Run) -> None:
    run = run_small("plain", eval_every=2)
    rows = records.read_rows(run.metrics_file, RoundRecord)
    assert [row.round for row in rows] == [1, 2, 3]
    assert [row.val_acc is not None for row in rows] == [False, True, True]
    assert rows[0].pseudo_label_acc is None
    assert rows[0].unlabeled_loss == 0
    assert 0 <= rows[1].pseudo_label_acc <= 1
    assert 0.1 <= rows[1].pseudo_label_confidence <= 1
    clients = records.read_rows(run.clients_file, ClientRecord)
    assert [c.round for c in clients] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert rows[1].train_loss == pytest.approx(
        np.mean([c.train_loss for c in clients if c.round == 2])
    )
    description = json.loads(run.config_file.read_text())
    assert set(description["config"]) == {f.name for f in attr.fields(ExperimentConfig)}
    assert description["packages"]["tensorflow-federated"] == "0.87.0"
    assert run.curves_file.read_bytes()[:4] == b"\x89PNG"
    assert checkpoints.rounds(run.checkpoints) == [2, 3]
    assert points(run)["validation/accuracy"] == [
        (row.round, pytest.approx(row.val_acc)) for row in rows[1:]
    ]


def test_exports_classify_as_the_run_did(run_small: Run) -> None:
    """The Keras model holds the weights of the .npz."""
    run = run_small("export", num_round=1)
    model = tf.keras.models.load_model(run.keras_file, compile=False)
    with np.load(run.weights_file) as arrays:
        for number, weight in enumerate(model.get_weights()):
            np.testing.assert_array_equal(weight, arrays[f"weights/{number:03d}"])
        assert arrays["prototypes"].shape == (3, 10, 36)
        assert arrays["prototypes_present"].all()


@pytest.mark.parametrize(
    ("target", "name", "calls"),
    [
        (ProtoFSSL, "run_round", 0),
        (ProtoFSSL, "run_round", 2),
        (records, "write_rows", 2),  # after clients.csv of round 2
        (records, "write_rows", 3),  # before its clients.csv was followed by metrics
        (checkpoints, "save", 1),
        (checkpoints, "prune", 1),
        (experiment, "_finish", 0),
        (experiment, "_export", 0),
    ],
)
def test_interrupted_equals_uninterrupted(
    run_small: Run, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, calls: int
) -> None:
    whole = run_small("whole")
    with monkeypatch.context() as patch:
        cut_after(patch, target, name, calls)
        with pytest.raises(Cut):
            run_small("cut")
    resumed = run_small("cut", resume=True)
    assert_same_run(whole, resumed)


def test_resuming_a_finished_run_changes_nothing(run_small: Run) -> None:
    run = run_small("done")
    before = run.metrics_file.read_text(), points(run)
    again = run_small("done", resume=True)
    assert (again.metrics_file.read_text(), points(again)) == before


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    run_small: Run, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run_small("whole")
    run = run_small("damaged")
    newest = run.checkpoints / "round_000003.npz"
    newest.write_bytes(newest.read_bytes()[:1000])
    resumed = run_small("damaged", resume=True)
    assert "round_000003.npz" in caplog.text
    assert_same_run(whole, resumed)


def test_no_whole_checkpoint_is_an_error_that_names_them(run_small: Run) -> None:
    run = run_small("lost")
    for path in run.checkpoints.iterdir():
        path.write_bytes(b"PK")
    with pytest.raises(UsageError, match="--resume.*round_00000"):
        run_small("lost", resume=True)


def test_rows_without_any_checkpoint_are_not_written_over(run_small: Run) -> None:
    run = run_small("gone")
    shutil.rmtree(run.checkpoints)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="--resume: .*metrics.csv has rows of 3 round"):
        run_small("gone", resume=True)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_what_cannot_go_on_stays_as_it_was(run_small: Run) -> None:
    """A finished run is to grow, but its rows are damaged: the result stays."""
    run = run_small("result")
    run.metrics_file.write_text("round\n")
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="--resume: .*metrics.csv"):
        run_small("result", num_round=4, resume=True)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_other_data_is_another_run(
    run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small("data", num_round=1)
    monkeypatch.setattr(FederatedData, "digest", lambda self: "other")
    with pytest.raises(UsageError, match="--resume: .*other data.*--data_dir"):
        run_small("data", num_round=1, resume=True)


def test_more_rounds_equal_a_longer_run(run_small: Run) -> None:
    """The evaluation of the old last round is dropped where it is off schedule."""
    longer = run_small("longer", num_round=4, eval_every=4)
    run_small("grown", num_round=2, eval_every=4)
    grown = run_small("grown", num_round=4, eval_every=4, resume=True)
    assert_same_run(longer, grown)


def test_a_signal_that_was_swallowed_ends_the_run_after_its_round(
    run_small: Run, tmp_path: Path, own_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ProtoFSSL.run_round

    def swallow(method: Any, state: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return original(method, state)

    signals.remember()
    monkeypatch.setattr(ProtoFSSL, "run_round", swallow)
    with pytest.raises(KeyboardInterrupt):
        run_small("cut", num_round=3)
    assert checkpoints.rounds(tmp_path / "cut" / "checkpoints") == [1]


def test_supervised_run_leaves_cells_empty(run_small: Run) -> None:
    run = run_small("sl", method="fedavg", num_unlabel=0, num_round=1)
    row = records.read_rows(run.metrics_file, RoundRecord)[0]
    assert row.unlabeled_loss is None
    assert row.pseudo_label_acc is None
    assert row.val_acc is not None
    client = records.read_rows(run.clients_file, ClientRecord)[0]
    assert client.prototype_norm is None


def test_no_leftovers(run_small: Run) -> None:
    run = run_small("clean", num_round=1)
    hidden = [p.name for p in Path(run.path).rglob(".*") if p.name != ".lock"]
    assert hidden == []
