"""The loop: round after round, each recorded before the next begins.

The order of writing makes a kill harmless: first the rows, then the checkpoint. A
resumed run starts from the last whole checkpoint and drops the rows after it, so that
it goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import attr
import numpy as np
from absl import logging

from fl import checkpoints, evaluation, files, plots, records, signals, states
from fl.client_states import Arrays, StatesInFolder
from fl.garbage import Sweep
from fl.methods.base import Method, RoundOutcome
from fl.progress import Progress, write_line
from fl.records import ClientRecord, RoundRecord
from fl.run_folder import RunFolder
from fl.tensorboard import TensorBoardLog
from flags.config import ExperimentConfig
from flags.errors import UsageError


class Diverged(Exception):
    """Training has come to nothing; the text is for the user."""


@attr.frozen(eq=False)
class History:
    """The server's state, all rows so far, and what clients kept of the last round."""

    state: Any
    rounds: Tuple[RoundRecord, ...]
    clients: Tuple[ClientRecord, ...]
    kept: Mapping[int, Arrays] = attr.field(factory=dict)


def run(config: ExperimentConfig, method: Method, folder: RunFolder) -> Any:
    """Trains until `num_round` rounds are done, and leaves the records in the folder.

    Args:
        config: the run's configuration.
        method: what to train.
        folder: where the records go; may hold the beginning of the same run. Nothing
            in it changes before it is known that the run can go on.

    Returns:
        The server's state at the end.

    Raises:
        UsageError: if what an earlier process left cannot be used.
    """
    client_states = StatesInFolder(folder.client_states)
    method.client_states = client_states
    history = _resume(config, method, folder) if config.resume else None
    folder.begin(method.setup.data.digest())
    if history is None:
        history = History(state=method.initial_state(), rounds=(), clients=())
    checkpoints.discard_after(folder.checkpoints, history.state.round_num)
    with (
        TensorBoardLog(folder.tensorboard) as board,
        Progress(config.num_round, history.rounds) as progress,
        Sweep() as sweep,
    ):
        for row in history.rounds:
            board.write(row)
        while history.state.round_num < config.num_round:
            began = time.monotonic()
            history = _next_round(config, method, history)
            record(config, method, folder, client_states, history)
            row = history.rounds[-1]
            board.write(row)
            if row.val_acc is not None:
                folder.check_held()
                plots.draw_curves(history.rounds, folder.curves_file, config.exp_name)
            sweep()
            progress.tell(row, time.monotonic() - began)
            signals.check()
    _finish(config, method, folder, history)
    return history.state


def is_evaluated(config: ExperimentConfig, round_num: int) -> bool:
    """Whether a round, counted from 1, is followed by an evaluation."""
    due = round_num >= config.eval_from and round_num % config.eval_every == 0
    return due or round_num == config.num_round


def _next_round(config: ExperimentConfig, method: Method, history: History) -> History:
    began = time.monotonic()
    try:
        outcome = method.run_round(history.state)
    except (checkpoints.CheckpointError, states.StateError) as error:
        # Something that a client kept, and that somebody has touched since.
        raise UsageError(f"{error}; the run cannot go on") from None
    seconds = time.monotonic() - began
    _warn_of_left_out(config, outcome)
    row = round_record(outcome, seconds)
    if is_evaluated(config, row.round):
        row = with_evaluation(row, method, outcome.state)
    clients = client_records(outcome)
    if config.print_log:
        for client in clients:
            logging.info("%s", client)
    return History(
        state=outcome.state,
        rounds=(*history.rounds, row),
        clients=(*history.clients, *clients),
        kept=outcome.kept,
    )


def _warn_of_left_out(config: ExperimentConfig, outcome: RoundOutcome) -> None:
    round_num = outcome.state.round_num
    for client in outcome.not_finite:
        logging.warning(
            "round %d: client %d is left out of the mean; its loss or weights are not "
            "finite",
            round_num,
            client,
        )
    if {*outcome.dropped, *outcome.not_finite} >= set(outcome.clients):
        raise Diverged(
            f"round {round_num}: the losses or weights of all clients are not finite; "
            f"the run has diverged; try a smaller --opt_lr than {config.opt_lr:g}, or "
            "--bn"
        )


def round_record(outcome: RoundOutcome, seconds: float) -> RoundRecord:
    """The means over the clients; pseudo-labels are weighed by their number."""
    left_out = {*outcome.dropped, *outcome.not_finite}
    counted = [s for s, n in enumerate(outcome.clients) if n not in left_out]
    report = {name: rows[counted] for name, rows in outcome.report.items()}
    return RoundRecord(
        round=outcome.state.round_num,
        train_acc=_mean(report.get("accuracy")),
        train_loss=_mean(report.get("loss")),
        unlabeled_loss=_mean(report.get("unlabeled_loss")),
        pseudo_label_acc=_ratio(report, "pseudo_label_correct", "pseudo_label_known"),
        pseudo_label_confidence=_ratio(
            report, "pseudo_label_confidence", "pseudo_label_count"
        ),
        pseudo_label_share=_ratio(report, "pseudo_label_used", "pseudo_label_count"),
        seconds=seconds,
        bytes_down=outcome.bytes_down,
        bytes_up=outcome.bytes_up,
    )


def client_records(outcome: RoundOutcome) -> List[ClientRecord]:
    """A row for each client; nothing in that of one who dropped out."""
    columns = {
        "train_acc": "accuracy",
        "train_loss": "loss",
        "unlabeled_loss": "unlabeled_loss",
        "prototype_norm": "prototype_norm",
        "num_examples": "num_examples",
    }
    return [
        ClientRecord(
            round=outcome.state.round_num,
            client=number,
            **{
                column: outcome.report[name][slot]
                for column, name in columns.items()
                if name in outcome.report and number not in outcome.dropped
            },
        )
        for slot, number in enumerate(outcome.clients)
    ]


def _mean(values: Optional[np.ndarray]) -> Optional[float]:
    return None if values is None else float(np.mean(values, dtype=np.float64))


def _ratio(report: Any, part: str, whole: str) -> Optional[float]:
    total = float(np.sum(report.get(whole, 0.0)))
    return float(np.sum(report[part])) / total if total else None


def with_evaluation(row: RoundRecord, method: Method, state: Any) -> RoundRecord:
    """The row with accuracy and loss on the held-out images."""
    data = method.setup.data
    score = method.score_fn(state)
    validation = evaluation.evaluate(score, data.images, data.validation)
    test = evaluation.evaluate(score, data.images, data.test)
    return attr.evolve(
        row,
        val_acc=validation.accuracy,
        val_loss=validation.loss,
        test_acc=test.accuracy,
        test_loss=test.loss,
    )


def record(
    config: ExperimentConfig,
    method: Method,
    folder: RunFolder,
    client_states: StatesInFolder,
    history: History,
) -> None:
    """Writes a round, rows before the checkpoint, and removes what nobody needs."""
    folder.check_held()
    records.write_rows(folder.clients_file, history.clients)
    records.write_rows(folder.metrics_file, history.rounds)
    round_num = history.state.round_num
    for client, arrays in history.kept.items():
        client_states.put(client, round_num, arrays)
    checkpoints.save(folder.checkpoints, round_num, states.to_arrays(history.state))
    best = records.best_round(history.rounds)
    checkpoints.prune(
        folder.checkpoints, config.keep_checkpoints, best.round if best else None
    )
    newest = checkpoints.rounds(folder.checkpoints)[-config.keep_checkpoints :]
    client_states.forget(method.rounds_read(newest[0]))


def _resume(
    config: ExperimentConfig, method: Method, folder: RunFolder
) -> Optional[History]:
    """What an earlier process left, up to its last whole checkpoint."""
    try:
        found = checkpoints.latest(folder.checkpoints)
    except checkpoints.CheckpointError as error:
        raise UsageError(f"--resume: {error}") from None
    if found is None:
        _check_nothing_done(folder)
        logging.info("no complete round in %s; starting from the first", folder.path)
        return None
    try:
        rounds = records.read_rows(folder.metrics_file, RoundRecord)
        clients = records.read_rows(folder.clients_file, ClientRecord)
        state = states.from_arrays(method.initial_state(), found.arrays)
    except records.RecordError as error:
        raise UsageError(f"--resume: {error}") from None
    except states.StateError as error:
        raise UsageError(f"--resume: {found.path} is of no such run: {error}") from None
    if state.round_num < config.num_round:
        try:
            method.check_kept(state)
        except (checkpoints.CheckpointError, states.StateError) as error:
            raise UsageError(f"--resume: {error}; the run cannot go on") from None
    rounds = records.truncate(rounds, found.round_num)
    clients = records.truncate(clients, found.round_num)
    _check_complete(folder, found.path, state.round_num, rounds, clients)
    logging.info("resuming %s after round %d", folder.path, found.round_num)
    return History(
        state=state,
        rounds=tuple(_as_scheduled(config, rounds)),
        clients=tuple(clients),
    )


def _check_nothing_done(folder: RunFolder) -> None:
    """Rows are written before their checkpoint, so those of one round may be there."""
    if not folder.metrics_file.exists():
        return
    try:
        rounds = records.read_rows(folder.metrics_file, RoundRecord)
    except records.RecordError as error:
        raise UsageError(f"--resume: {error}") from None
    if len(rounds) > 1:
        raise UsageError(
            f"--resume: {folder.metrics_file} has rows of {len(rounds)} rounds, but "
            f"there is no checkpoint in {folder.checkpoints}; put one there, or start "
            "anew with --overwrite"
        )


def _check_complete(
    folder: RunFolder,
    checkpoint: Path,
    round_num: int,
    rounds: Sequence[RoundRecord],
    clients: Sequence[ClientRecord],
) -> None:
    """A checkpoint and the rows of all rounds up to it, or none of it is believed."""
    if checkpoint.name != checkpoints.path_of(folder.checkpoints, round_num).name:
        raise UsageError(
            f"--resume: {checkpoint} is of round {round_num}; its name says another"
        )
    expected = list(range(1, round_num + 1))
    for path, found in (
        (folder.metrics_file, [row.round for row in rounds]),
        (folder.clients_file, sorted({row.round for row in clients})),
    ):
        if found != expected:
            raise UsageError(
                f"--resume: {path} lacks rows of rounds up to {round_num}, of which "
                f"there is a checkpoint ({checkpoint})"
            )


def _as_scheduled(
    config: ExperimentConfig, rows: Sequence[RoundRecord]
) -> List[RoundRecord]:
    """Drops the evaluation of a last round that is no longer the last."""
    return [
        row
        if is_evaluated(config, row.round)
        else attr.evolve(
            row, val_acc=None, val_loss=None, test_acc=None, test_loss=None
        )
        for row in rows
    ]


def _finish(
    config: ExperimentConfig, method: Method, folder: RunFolder, history: History
) -> None:
    folder.check_held()
    records.write_rows(folder.clients_file, history.clients)
    records.write_rows(folder.metrics_file, history.rounds)
    plots.draw_curves(history.rounds, folder.curves_file, config.exp_name)
    _export(method, folder, history.state)
    summary = records.summarize(history.rounds)
    files.write_json(folder.summary_file, summary)
    write_line(
        f"done: {folder.path}  best round {summary['best_round']}  "
        f"val acc {summary['best_val_acc']:.4f}  "
        f"test acc there {summary['test_acc_at_best']:.4f}"
    )


def _export(method: Method, folder: RunFolder, state: Any) -> None:
    """The finished model as one .npz, and as a Keras model."""
    weights = method.classifier_weights(state)
    arrays = {f"weights/{i:03d}": w for i, w in enumerate(weights)}
    arrays.update(method.exports(state))
    with files.atomic_path(folder.weights_file) as path, open(path, "wb") as file:
        np.savez(file, **arrays)
    method.load_weights(weights)
    with files.atomic_path(folder.keras_file) as path:
        method.model.save(path, save_format="keras")
