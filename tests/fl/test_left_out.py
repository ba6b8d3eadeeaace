"""Clients that drop out or whose values are not finite, in whole rounds and runs."""

from __future__ import annotations

from typing import Any, Callable

import attr
import numpy as np
import pytest

from fl import checkpoints, experiment, records, states
from fl.methods import base
from fl.methods.protofssl import ProtoFSSL
from fl.records import ClientRecord, RoundRecord
from flags.config import ExperimentConfig
from flags.resolve import resolve

Make = Callable[..., Any]
HALF = {"client_dropout": 0.5}


def with_dropout(share: float, clients: int = 5, seed: int = 1) -> ExperimentConfig:
    flags = {"num_active_client": clients, "num_client": clients, "seed": seed}
    return resolve({**flags, "client_dropout": share}).config


def test_nobody_drops_out_by_default() -> None:
    assert all(base.returning(with_dropout(0.0), r).all() for r in range(50))


def test_as_many_drop_out_as_asked_for() -> None:
    """0.3 of 2,000; the standard deviation of their number is 20."""
    config = with_dropout(0.3, clients=100)
    staying = sum(base.returning(config, r).sum() for r in range(20))
    assert abs(2000 - staying - 600) < 80


def test_who_drops_out_is_a_function_of_seed_and_round() -> None:
    draws = {
        (seed, r): tuple(base.returning(with_dropout(0.5, 20, seed), r))
        for seed in (1, 2)
        for r in (0, 1)
    }
    assert len(set(draws.values())) == 4
    assert tuple(base.returning(with_dropout(0.5, 20, 1), 0)) == draws[1, 0]


def test_at_least_one_stays() -> None:
    config = with_dropout(0.99)
    assert {base.returning(config, r).sum() for r in range(50)} == {1}


def round_with_dropout(method: Any) -> Any:
    """The first round in which somebody drops out and somebody stays."""
    state = method.initial_state()
    while base.returning(method.setup.config, state.round_num).all():
        outcome = method.run_round(state)
        state = outcome.state
        for number, arrays in outcome.kept.items():
            method.client_states.put(number, state.round_num, arrays)
    return state, method.run_round(state)


def test_prototypes_of_one_who_dropped_out_do_not_enter(make_small: Make) -> None:
    state, outcome = round_with_dropout(make_small(optimizer_state="fresh", **HALF))
    staying = len(outcome.clients) - len(outcome.dropped)
    assert 0 < staying < len(outcome.clients)
    kept = min(len(state.bank.present), len(outcome.clients))
    assert len(outcome.state.bank.present) == kept + staying
    assert outcome.not_finite == ()


def test_refine_at_begin_keeps_the_last_set_that_came_back(make_small: Make) -> None:
    """The last active client drops out; a set of one who stays joins the bank."""
    method = make_small(refine_at_begin=True, client_dropout=0.6)
    state = method.initial_state()
    while base.returning(method.setup.config, state.round_num)[-1]:
        state = attr.evolve(state, round_num=state.round_num + 1)
    returns = base.returning(method.setup.config, state.round_num)
    made = method._refine(state.model_weights, method.clients(state)[1]).own
    last = int(np.flatnonzero(returns)[-1])
    [kept] = method.run_round(state).state.bank.values
    np.testing.assert_array_equal(kept, made.values[last])


def test_one_who_stays_alone_is_the_mean(make_small: Make) -> None:
    """Two of three drop out: the result is that of the third, trained alone."""
    method = make_small(optimizer_state="fresh", client_dropout=0.9)
    state = method.initial_state()
    outcome = method.run_round(state)
    returns = base.returning(method.setup.config, 0)
    assert returns.sum() == 1
    _, clients = method.clients(state)
    alone = attr.evolve(clients[int(np.argmax(returns))], returns=np.bool_(True))
    others = [attr.evolve(c, returns=np.bool_(False)) for c in clients[:2]]
    message = method.message(state)
    slots = [attr.evolve(c, slot=np.int32(i)) for i, c in enumerate([alone, *others])]
    for mine, its in zip(
        outcome.state.model_weights, method.train(message, slots).mean.model_weights
    ):
        np.testing.assert_array_equal(mine, its)


def test_one_who_dropped_out_keeps_what_it_had(make_small: Make) -> None:
    flags = {"method": "fedavg", "num_unlabel": 0, "optimizer_state": "client"}
    state, outcome = round_with_dropout(make_small(**flags, **HALF))
    counted = set(outcome.clients) - set(outcome.dropped)
    assert set(outcome.kept) == counted
    changed = np.nonzero(outcome.state.client_versions != state.client_versions)[0]
    assert set(changed) == counted


def test_one_that_is_not_finite_is_left_out(make_small: Make) -> None:
    """Its own optimizer has gone bad; it is not overwritten by worse."""
    flags = {"method": "fedavg", "num_unlabel": 0, "optimizer_state": "client"}
    method = make_small(**flags)
    state = method.initial_state()
    first = method.active(state)[0]
    bad = tuple(np.full_like(x, np.nan) for x in method._own_optimizer_state())
    arrays = {f"optimizer_state/{i:03d}": x for i, x in enumerate(bad)}
    method.client_states.put(first, 1, arrays)
    state.client_versions[first] = 1
    outcome = method.run_round(state)
    assert outcome.not_finite == (first,)
    assert first not in outcome.kept
    flat = states.to_arrays(outcome.state)
    assert all(np.isfinite(array).all() for array in flat.values())


@pytest.mark.parametrize("method", ["fedproto", "fedmatch", "fedrgd"])
def test_rounds_go_on_without_those_who_dropped_out(
    make_small: Make, method: str
) -> None:
    """Groups of two with most clients gone: some group has none left."""
    flags = {"method": method, "client_dropout": 0.6, "num_active_client": 4}
    made = make_small(**flags, helper_cnt=2)
    state = made.initial_state()
    for _ in range(3):
        outcome = made.run_round(state)
        state = outcome.state
        for number, arrays in outcome.kept.items():
            made.client_states.put(number, state.round_num, arrays)
        flat = states.to_arrays(state)
        assert all(np.isfinite(array).all() for array in flat.values())


def test_fedmatch_counts_no_bytes_of_those_who_dropped_out(make_small: Make) -> None:
    """In the first round everything is sent: all clients send alike."""
    all_stay = make_small(method="fedmatch", helper_cnt=2)
    some_go = make_small(method="fedmatch", helper_cnt=2, client_dropout=0.9)
    everyone = all_stay.run_round(all_stay.initial_state())
    outcome = some_go.run_round(some_go.initial_state())
    staying = set(outcome.clients) - set(outcome.dropped)
    assert len(staying) == 1
    assert 0 < outcome.bytes_up < 0.5 * everyone.bytes_up


def test_records_of_a_run_with_dropout(run_small: Callable[..., Any]) -> None:
    """No figures of one who dropped out; the round's are those of the others."""
    run = run_small("drop", optimizer_state="fresh", **HALF)
    rows = records.read_rows(run.clients_file, ClientRecord)
    gone = [row for row in rows if row.train_loss is None]
    assert gone
    assert all(row.train_acc is None and row.num_examples is None for row in gone)
    for row in records.read_rows(run.metrics_file, RoundRecord):
        losses = [r.train_loss for r in rows if r.round == row.round and r.train_loss]
        assert row.train_loss == pytest.approx(np.mean(losses))


def test_a_warning_names_client_and_round(
    run_small: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One client's loss is not finite; its row says so, the round's figures do not."""
    original = ProtoFSSL.run_round

    def spoil(method: Any, state: Any) -> Any:
        outcome = original(method, state)
        if state.round_num != 1:
            return outcome
        report = {**outcome.report, "loss": outcome.report["loss"].copy()}
        report["loss"][0] = np.nan
        client = outcome.clients[0]
        return attr.evolve(outcome, report=report, not_finite=(client,))

    monkeypatch.setattr(ProtoFSSL, "run_round", spoil)
    run = run_small("spoilt", optimizer_state="fresh")
    rows = records.read_rows(run.clients_file, ClientRecord)
    [bad] = [row for row in rows if row.train_loss != row.train_loss]
    assert bad.round == 2
    assert f"round 2: client {bad.client} is left out of the mean" in caplog.text
    metrics = records.read_rows(run.metrics_file, RoundRecord)
    assert all(np.isfinite(row.train_loss) for row in metrics)


def test_a_run_that_diverges_stops_with_advice(
    run_small: Callable[..., Any], tmp_path: Any
) -> None:
    """The weights overflow in the first round: nothing is recorded of it."""
    with pytest.raises(experiment.Diverged, match=r"round 1: .*all clients.*--opt_lr"):
        run_small("bad", optimizer_state="fresh", optimizer="sgd", opt_lr=1e30)
    assert checkpoints.rounds(tmp_path / "bad" / "checkpoints") == []
