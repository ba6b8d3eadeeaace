"""ProtoFSSL's rounds in TFF's real runtime, on a tiny network over real digits."""

from __future__ import annotations

from typing import Any, Callable

import attr
import numpy as np
import pytest
from conftest import assert_same_state

Make = Callable[..., Any]


def run_rounds(method: Any, count: int) -> list[Any]:
    """The outcomes of so many rounds from the start."""
    outcomes, state = [], method.initial_state()
    for _ in range(count):
        outcomes.append(method.run_round(state))
        state = outcomes[-1].state
    return outcomes


def test_type_of_the_round(make_small: Make) -> None:
    """Weights, helpers with their mask and the rate at the server; images as bytes."""
    method = make_small(optimizer_state="fresh")
    signature = method.train.computation.type_signature
    message, clients = signature.parameter
    assert str(message.placement) == "SERVER"
    assert str(clients.placement) == "CLIENTS"
    helpers = message.member.helpers.compact_representation()
    assert helpers == "<values=float32[3,10,36],present=bool[3,10]>"
    assert message.member.learning_rate.compact_representation() == "float32"
    assert clients.member.labeled_x.compact_representation() == "uint8[?,8,8,1]"
    assert clients.member.query.compact_representation() == "int32[?,?]"
    mean, slots, _ = signature.result
    assert len(mean.member.model_weights) == len(method.setup.initial_weights)
    prototypes = slots.member.own.prototypes
    assert prototypes.values.compact_representation() == "float32[3,10,36]"


@pytest.mark.parametrize("treatment", ["sequential", "fresh", "averaged"])
def test_same_seed_same_weights(make_small: Make, treatment: str) -> None:
    """Two rounds twice, bit for bit; another seed gives others."""
    method = make_small(optimizer_state=treatment)
    first, second = (run_rounds(method, 2)[-1].state for _ in range(2))
    assert_same_state(first, second)
    other = run_rounds(make_small(optimizer_state=treatment, seed=6), 1)[0].state
    assert not np.array_equal(first.model_weights[0], other.model_weights[0])


def test_a_round_is_a_function_of_state_and_round(make_small: Make) -> None:
    """Running round 2 again from the state after round 1 gives the same."""
    method = make_small()
    one, two = run_rounds(method, 2)
    assert_same_state(method.run_round(one.state).state, two.state)


def test_all_weights_are_averaged(make_small: Make) -> None:
    """Every tensor moves, batch norm's moving statistics (the last two) included."""
    method = make_small()
    after = run_rounds(method, 1)[0].state.model_weights
    for number, (before, now) in enumerate(zip(method.setup.initial_weights, after)):
        assert not np.array_equal(before, now), number


def test_one_client_is_its_own_mean(make_small: Make) -> None:
    """With m = 1, sequential and averaged both carry that client's optimizer on."""
    shared = {"num_active_client": 1, "helper_cnt": 1}
    first = run_rounds(make_small(optimizer_state="sequential", **shared), 2)[-1].state
    second = run_rounds(make_small(optimizer_state="averaged", **shared), 2)[-1].state
    assert_same_state(first, second)


def test_sequential_hands_the_optimizer_on(make_small: Make) -> None:
    """The first client of round 1 trains as with a fresh optimizer; the next do not."""
    handed = run_rounds(make_small(optimizer_state="sequential"), 1)[0].report["loss"]
    fresh = run_rounds(make_small(optimizer_state="fresh"), 1)[0].report["loss"]
    assert handed[0] == fresh[0]
    assert np.all(handed[1:] != fresh[1:])


def test_optimizer_state_lives_on_only_where_it_should(make_small: Make) -> None:
    def state(treatment: str) -> Any:
        outcome = run_rounds(make_small(optimizer_state=treatment), 1)[0]
        return outcome.state.optimizer_state

    assert state("fresh") == ()
    for treatment in ("sequential", "averaged"):
        accumulators = state(treatment)
        assert len(accumulators) == 4  # kernel, bias, gamma, beta
        assert all(np.any(a > 0) for a in (accumulators[0], accumulators[2]))


def test_first_round_is_supervised_and_has_no_helpers(make_small: Make) -> None:
    one, two = run_rounds(make_small(), 2)
    assert not one.state.helpers.present.any()
    assert np.all(one.report["unlabeled_loss"] == 0)
    assert np.all(one.report["pseudo_label_count"] == 0)
    assert two.state.helpers.present.all()
    assert np.all(two.report["unlabeled_loss"] > 0)
    assert np.all(two.report["pseudo_label_count"] == 2 * 20)


def test_idle_unlabeled_images_shape_batch_statistics(make_small: Make) -> None:
    """In round 1 `pass` and `skip` differ in the moving statistics only by that."""
    passed = run_rounds(make_small(idle_unlabeled="pass"), 1)[0].state.model_weights
    skipped = run_rounds(make_small(idle_unlabeled="skip"), 1)[0].state.model_weights
    assert not np.allclose(passed[-2], skipped[-2])


def test_helpers_are_what_the_last_clients_returned(make_small: Make) -> None:
    """all_kept hands out the m sets of the round before; `newest` 2 the last two."""
    one, two = run_rounds(make_small(), 2)
    np.testing.assert_array_equal(two.state.helpers.values, one.state.bank.values)
    method = make_small(helper_policy="newest", helper_cnt=2)
    one, two = run_rounds(method, 2)
    np.testing.assert_array_equal(two.state.helpers.values, one.state.bank.values[1:])


def test_helper_interval_keeps_helpers(make_small: Make) -> None:
    """R_H = 2: chosen in round 2, kept in round 3, chosen anew in round 4."""
    outcomes = run_rounds(make_small(helper_interval=2), 4)
    helpers = [o.state.helpers.values for o in outcomes]
    np.testing.assert_array_equal(helpers[1], helpers[2])
    assert not np.array_equal(helpers[2], helpers[3])


def test_bank_keeps_rounds(make_small: Make) -> None:
    """Two rounds of three clients are kept for training; evaluation sees the third."""
    method = make_small(keep_proto_rounds=2)
    outcomes = run_rounds(method, 4)
    assert [len(o.state.bank.present) for o in outcomes] == [3, 6, 9, 9]
    assert outcomes[-1].state.helpers.present.sum() == 60


def test_weight_by_examples(make_small: Make) -> None:
    """All clients have 100 images here, so the weighted mean is the plain one."""
    by_examples = run_rounds(
        make_small(optimizer_state="fresh", aggregation="examples"), 1
    )[0].state.model_weights
    uniform = run_rounds(make_small(optimizer_state="fresh"), 1)[0].state.model_weights
    for first, second in zip(by_examples, uniform):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-7)


def test_absent_classes_are_masks(make_small: Make) -> None:
    """Extreme non-i.i.d.: each client lacks classes; nothing turns to NaN."""
    given = {"non_iid": True, "extreme_non_iid": True, "num_client": 4, "seed": 1}
    for absent in ("mask", "fill"):
        outcomes = run_rounds(make_small(absent_class=absent, **given), 3)
        assert not outcomes[0].state.bank.present.all()
        state = outcomes[-1].state
        assert np.isfinite(outcomes[-1].report["loss"]).all()
        assert all(np.isfinite(w).all() for w in state.model_weights)
        filled = outcomes[0].state.bank.present.any(axis=0)
        helpers = outcomes[1].state.helpers.present
        assert helpers.all(axis=0)[filled].all() == (absent == "fill")


def test_min_share_samples_withholds(make_small: Make) -> None:
    """Everybody has 5 images a class: a threshold of 6 leaves no prototype."""
    assert run_rounds(make_small(min_share_samples=5), 1)[0].state.bank.present.all()
    outcomes = run_rounds(make_small(min_share_samples=6), 2)
    assert not outcomes[0].state.bank.present.any()
    assert np.all(outcomes[1].report["unlabeled_loss"] == 0)


def test_min_share_samples_holds_before_training_too(make_small: Make) -> None:
    method = make_small(refine_at_begin=True, min_share_samples=6)
    assert not run_rounds(method, 1)[0].state.bank.present.any()


def test_noise_is_seeded_by_round_and_client(make_small: Make) -> None:
    """Same weights without unlabelled data: the banks differ by the noise alone."""
    shared = {"unlabeled_weight": 0.0, "idle_unlabeled": "skip"}
    plain = run_rounds(make_small(**shared), 1)[0].state.bank.values
    noisy = [
        run_rounds(make_small(use_noise=True, stddev=2.0, **shared), 1)[0].state.bank
        for _ in range(2)
    ]
    np.testing.assert_array_equal(noisy[0].values, noisy[1].values)
    noise = noisy[0].values - plain
    assert noise.std() == pytest.approx(2.0, rel=0.1)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.2


def test_refine_at_begin_keeps_the_last_clients_set(make_small: Make) -> None:
    """One set a round, made with the weights before training; none after it."""
    method = make_small(refine_at_begin=True)
    one, two = run_rounds(method, 2)
    assert [len(o.state.bank.present) for o in (one, two)] == [1, 2]
    _, clients = method.clients(method.initial_state())
    made = method._refine(method.setup.initial_weights, clients).own
    np.testing.assert_array_equal(one.state.bank.values[0], made.values[2])


def test_global_prototypes(make_small: Make) -> None:
    """Algorithm 2: from round 2 on all labelled images are queries."""
    method = make_small(prototype_source="global")
    second = attr.evolve(method.initial_state(), round_num=1)
    _, clients = method.clients(second)
    assert clients[0].support.shape == (2, 0)
    np.testing.assert_array_equal(clients[0].query[0], np.arange(50))
    outcomes = run_rounds(method, 2)
    assert np.isfinite(outcomes[1].report["loss"]).all()


def test_bytes_counted_from_the_values(make_small: Make) -> None:
    """m = 3 clients; D = 36, K = 10; weights: 40 + 16 + 0 = 56 floats.

    Weights: kernel 3*3*1*4 = 36, bias 4, gamma, beta, mean, variance 4 each: 56.
    Down: 56 floats, 3 helpers of 360 floats and 10 mask bytes, one rate.
    Up: 56 floats, 360 floats and 10 mask integers, 9 figures of 4 bytes.
    """
    outcome = run_rounds(make_small(optimizer_state="fresh"), 1)[0]
    assert outcome.bytes_down == 3 * (56 * 4 + 3 * (360 * 4 + 10) + 4)
    assert outcome.bytes_up == 3 * (56 * 4 + 360 * 4 + 10 * 4 + 9 * 4)


def test_evaluation_uses_the_mean_over_sets(make_small: Make) -> None:
    """Prediction and loss against NumPy: mean over sets of softmax(-mean square)."""
    method = make_small()
    state = run_rounds(method, 1)[0].state
    data = method.setup.data
    images, labels = data.images[:7], data.labels[:7].astype(np.int32)
    predictions, loss = method.score_fn(state)(images, labels)
    z = method.model(images / np.float32(255), training=False).numpy()
    d = ((z[None, :, None] - state.bank.values[:, None]) ** 2).mean(-1)
    p = np.exp(-d) / np.exp(-d).sum(-1, keepdims=True)
    mean = p.mean(0)
    np.testing.assert_array_equal(predictions, mean.argmax(-1))
    expected = -np.log(mean[np.arange(7), labels])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_distance_between_clients_is_logged(
    make_small: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run_rounds(make_small(comp_dist=True), 2)
    lines = [r.message for r in caplog.records if "mean distance" in r.message]
    assert len(lines) == 1
    assert lines[0].startswith("round 1:")
