"""FedRGD: its groups, its steps and its rate."""

from __future__ import annotations

import math
from typing import Any, Callable, List

import attr
import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state, make_batch, tiny_kernels

from data import episodes
from fl import augment, checkpoints, optimizers
from fl.local import LocalModel, Regularization
from fl.methods import classifier, fedrgd, steps
from fl.methods.steps import Message
from flags.resolve import resolve

Make = Callable[..., Any]
FEDRGD = {"method": "fedrgd", "local_episode": 2}


def run_rounds(method: Any, count: int) -> List[Any]:
    state, outcomes = method.initial_state(), []
    for _ in range(count):
        outcomes.append(method.run_round(state))
        state = outcomes[-1].state
    return outcomes


def test_the_threshold_itself_is_enough() -> None:
    probs = tf.constant([[0.5, 0.5], [0.49, 0.51], [0.25, 0.25]])
    np.testing.assert_array_equal(steps.at_least(probs, 0.5), [1, 1, 0])


def test_batches_cycle_through_all_images() -> None:
    """3 batches of 4 of 5 images: two whole passes, and two of a third."""
    batches = episodes.cycled_batches(np.random.RandomState(0), 5, 4, 3)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    order = np.concatenate(batches)
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert len(set(order[10:])) == 2


def test_steps_are_of_64_and_64(make_small: Make) -> None:
    method = make_small(**FEDRGD)
    steps = method.clients(method.initial_state())[1][0].steps
    np.testing.assert_array_equal(steps.labeled_count, [64, 64])
    np.testing.assert_array_equal(steps.unlabeled_count, [64, 64])


def test_rate_falls_by_the_cosine() -> None:
    config = resolve({"method": "fedrgd", "num_round": 100}).config
    assert classifier.learning_rate(config, 0) == 0.0075
    expected = 0.0075 * math.cos(7 * math.pi / 32)
    assert classifier.learning_rate(config, 50) == pytest.approx(expected)


def test_recipe_yields_to_flags() -> None:
    config = resolve({"method": "fedrgd"}).config
    assert (config.bn_type, config.optimizer) == ("gn", "nesterov")
    assert (config.opt_momentum, config.weight_decay) == (0.9, 1e-4)
    assert resolve({"method": "fedrgd", "bn_type": "none"}).config.bn_type == "none"
    assert resolve({"method": "fedrgd", "bn": False}).config.bn_type == "none"
    assert resolve({"method": "fedrgd", "bn": True}).config.bn_type == "bn"


def test_clients_are_dealt_to_groups_in_turn(make_small: Make) -> None:
    method = make_small(**FEDRGD)
    clients = method.clients(method.initial_state())[1]
    groups = fedrgd.in_groups(clients, 2)
    assert [[int(c.slot) for c in group] for group in groups] == [[0, 1], [0]]
    assert groups[0][1].labeled_x is clients[2].labeled_x
    assert groups[1][0].labeled_x is clients[1].labeled_x
    rows = [np.array([[0, 0], [2, 2]]), np.array([[1, 1]])]
    np.testing.assert_array_equal(fedrgd.interleaved(rows), [[0, 0], [1, 1], [2, 2]])


def test_global_model_is_the_mean_over_groups(make_small: Make) -> None:
    """Two groups of 2 and 1 weigh the same; one group is plain FedAvg.

    With three clients a, b, c: groups (a, c) and b. FedAvg's mean is (a + b + c) / 3,
    the other ((a + c) / 2 + b) / 2, so that 4 x grouped - 3 x plain = b.
    """
    grouped = make_small(**FEDRGD, group_mix_every=9)
    plain = make_small(**FEDRGD, num_group=1)
    outcome, reference = run_rounds(grouped, 1)[0], run_rounds(plain, 1)[0]
    first, second = outcome.state.shared
    for mean, a_c, b, fedavg in zip(
        outcome.state.model_weights, first, second, reference.state.model_weights
    ):
        np.testing.assert_allclose(mean, (a_c + b) / 2, atol=1e-6)
        np.testing.assert_allclose(fedavg, (2 * a_c + b) / 3, atol=1e-6)
    assert outcome.clients == reference.clients
    for name, rows in reference.report.items():
        np.testing.assert_allclose(outcome.report[name], rows, rtol=1e-5, err_msg=name)


def test_groups_go_separate_ways_until_mixed(make_small: Make) -> None:
    outcomes = run_rounds(make_small(**FEDRGD, group_mix_every=2), 2)
    first, second = outcomes[0].state.shared
    assert not np.array_equal(first[0], second[0])
    mixed = outcomes[1].state
    for group in mixed.shared:
        assert_same_state(group, mixed.model_weights)


def test_a_client_starts_from_its_groups_model(make_small: Make) -> None:
    """At a rate of almost nothing each group stays where it is."""
    method = make_small(**FEDRGD, group_mix_every=9, opt_lr=1e-12)
    state = method.initial_state()
    weights = state.model_weights
    other = tuple(w + np.float32(1) if w.ndim > 1 else w for w in weights)
    state = attr.evolve(state, shared=(weights, other))
    after = method.run_round(state).state.shared
    np.testing.assert_allclose(after[0][0], weights[0], atol=1e-5)
    np.testing.assert_allclose(after[1][0], other[0], atol=1e-5)


def test_each_client_receives_one_model(make_small: Make) -> None:
    outcome = run_rounds(make_small(**FEDRGD), 1)[0]
    model = sum(w.nbytes for w in outcome.state.model_weights)
    assert outcome.bytes_down == 3 * (model + 8)


def test_groups_survive_a_resume(run_small: Any) -> None:
    given = {
        **FEDRGD,
        "eval_every": 1,
        "group_mix_every": 4,
        "baseline_lr": "constant",
    }
    whole = run_small("whole", num_round=3, **given)
    run_small("parts", num_round=2, **given)
    parts = run_small("parts", num_round=3, resume=True, **given)
    first, second = (
        checkpoints.load(run.checkpoints / "round_000003.npz").arrays
        for run in (whole, parts)
    )
    assert "shared/001/000" in first
    assert not np.array_equal(first["shared/000/000"], first["shared/001/000"])
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


# --- The loss, outside TFF ------------------------------------------------------
def make_step(threshold: float) -> fedrgd.FedRGDStep:
    local = LocalModel(
        tiny_kernels, optimizers.make_optimizer("sgd", 0.0), Regularization()
    )
    rng = np.random.RandomState(0)
    weights = [rng.normal(0, 1, w.shape) for w in local.model.get_weights()]
    local.model.set_weights(weights)
    return fedrgd.FedRGDStep(local, threshold, weight=0.7)


def cross_entropies(logits: np.ndarray, labels: Any) -> np.ndarray:
    tops = logits.max(1, keepdims=True)
    totals = tops[:, 0] + np.log(np.exp(logits - tops).sum(1))
    return np.asarray(totals - logits[np.arange(len(logits)), labels])


@pytest.mark.parametrize("threshold", [0.0, 0.9, 1.1])
def test_loss_is_that_of_the_docstring(threshold: float) -> None:
    """Views made with the step's seeds; softmax and cross entropy in NumPy."""
    step, batch = make_step(threshold), make_batch()
    model = step.local.model
    seeds = tf.unstack(tf.random.experimental.stateless_split(batch.seed, 3))
    labeled = model(augment.weak_crop(batch.labeled_x, seeds[0])).numpy()
    weak = model(augment.weak_crop(batch.unlabeled_x, seeds[1])).numpy()
    strong = model(augment.strong_fedrgd(batch.unlabeled_x, seeds[2])).numpy()
    probs = np.exp(weak) / np.exp(weak).sum(1, keepdims=True)
    sure = probs.max(1) >= threshold
    expected_share = {0.0: 5, 1.1: 0}.get(threshold, int(sure.sum()))
    assert sure.sum() == expected_share
    other = 0.7 * (sure * cross_entropies(strong, weak.argmax(1))).sum() / 5
    loss, figures = step.loss(message=_no_message(), batch=batch)
    total = cross_entropies(labeled, batch.labeled_y.numpy()).mean() + other
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(figures.unlabeled_loss) == pytest.approx(4 * other, rel=1e-5)
    assert float(figures.pseudo_label_used) == sure.sum()


def test_no_gradient_through_the_weak_view() -> None:
    """The gradient is that of the strong views with fixed targets."""
    step, batch = make_step(0.0), make_batch()
    model = step.local.model
    seeds = tf.unstack(tf.random.experimental.stateless_split(batch.seed, 3))
    targets = model(augment.weak_crop(batch.unlabeled_x, seeds[1])).numpy().argmax(1)
    with tf.GradientTape() as tape:
        loss, _ = step.loss(_no_message(), batch)
    found = tape.gradient(loss, model.trainable_variables)
    with tf.GradientTape() as tape:
        labeled = model(augment.weak_crop(batch.labeled_x, seeds[0]))
        strong = model(augment.strong_fedrgd(batch.unlabeled_x, seeds[2]))
        terms = tf.nn.sparse_softmax_cross_entropy_with_logits
        plain = tf.reduce_mean(terms(batch.labeled_y, labeled))
        plain += 0.7 * tf.reduce_mean(terms(targets, strong))
    for a, b in zip(found, tape.gradient(plain, model.trainable_variables)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _no_message() -> Message:
    return Message(
        model_weights=(),
        optimizer_state=(),
        learning_rate=np.float32(0),
        progress=np.float32(0),
    )
