"""FixMatch: its loss against NumPy, its steps, and what its clients keep."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state

from data import episodes
from fl import checkpoints
from fl.methods import fixmatch

Make = Callable[..., Any]
LOGITS = np.array([[2.0, 0.0, -1.0], [0.1, 0.2, 0.3], [-1.0, 4.0, 0.0]], np.float32)
PROBS = np.array([[0.97, 0.02, 0.01], [0.5, 0.3, 0.2], [0.01, 0.96, 0.03]], np.float32)


def cross_entropy(logits: np.ndarray, target: int) -> float:
    return float(np.log(np.exp(logits).sum()) - logits[target])


def test_only_confident_images_count() -> None:
    """Strictly above 0.95: the first and the third; 0.95 itself is not enough."""
    used = fixmatch.confident(tf.constant(PROBS), 0.95)
    np.testing.assert_array_equal(used, [1, 0, 1])
    edge = fixmatch.confident(tf.constant([[0.5, 0.5]]), 0.5)
    np.testing.assert_array_equal(edge, [0])


def test_mean_over_the_confident_or_over_all() -> None:
    """The targets are classes 0 and 1 of rows 0 and 2: their sum over 2, or over 3."""
    total = cross_entropy(LOGITS[0], 0) + cross_entropy(LOGITS[2], 1)
    used = tf.constant([1.0, 0.0, 1.0])
    over_used = fixmatch.pseudo_label_loss(PROBS, LOGITS, used, mean_over_all=False)
    over_all = fixmatch.pseudo_label_loss(PROBS, LOGITS, used, mean_over_all=True)
    assert float(over_used) == pytest.approx(total / 2, rel=1e-5)
    assert float(over_all) == pytest.approx(total / 3, rel=1e-5)


def test_no_confident_image_no_loss() -> None:
    used = tf.zeros(3)
    for mean_over_all in (False, True):
        loss = fixmatch.pseudo_label_loss(PROBS, LOGITS, used, mean_over_all)
        assert float(loss) == 0.0


def test_gradient_reaches_the_strong_view_of_used_images_only() -> None:
    """d/dlogits of the mean: (softmax - one-hot) / 2 in the rows used, 0 elsewhere."""
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = fixmatch.pseudo_label_loss(
            PROBS, logits, tf.constant([1.0, 0.0, 1.0]), mean_over_all=False
        )
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    expected = (softmax - np.eye(3)[[0, 0, 1]]) / 2
    expected[1] = 0
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, atol=1e-6)


def test_steps_of_the_scripts() -> None:
    """50 and 490 images: five steps an epoch, the last with the 90 left."""
    stream = np.random.RandomState(0)
    batches = fixmatch.batch_sizes("scripts", (50, 490))
    labeled, unlabeled = episodes.paired_epoch(stream, (50, 490), batches)
    assert [len(b) for b in labeled] == [10] * 5
    assert [len(b) for b in unlabeled] == [100, 100, 100, 100, 90]
    assert sorted(np.concatenate(labeled)) == list(range(50))
    assert sorted(np.concatenate(unlabeled)) == list(range(490))


def test_steps_of_the_other_recipes() -> None:
    """All images in one step; or 10 and 70: seven steps, labelled images cycled."""
    stream = np.random.RandomState(0)
    whole = episodes.paired_epoch(
        stream, (50, 490), fixmatch.batch_sizes("flag", (50, 490))
    )
    assert [len(b) for part in whole for b in part] == [50, 490]
    labeled, unlabeled = episodes.paired_epoch(
        stream, (50, 490), fixmatch.batch_sizes("published", (50, 490))
    )
    assert [len(b) for b in labeled] == [10] * 7
    assert [len(b) for b in unlabeled] == [70] * 7
    np.testing.assert_array_equal(labeled[5], labeled[0])


def test_few_unlabeled_images_are_spread_over_the_steps() -> None:
    """60 images over the five steps that 50 labelled ones take: 12 each."""
    stream = np.random.RandomState(0)
    _, unlabeled = episodes.paired_epoch(stream, (50, 60), (10, 100))
    assert [len(b) for b in unlabeled] == [12] * 5
    _, unlabeled = episodes.paired_epoch(stream, (50, 2), (10, 100))
    assert [len(b) for b in unlabeled] == [1] * 5


@pytest.mark.parametrize("recipe", ["scripts", "flag", "published"])
def test_rounds_repeat_and_report(make_small: Make, recipe: str) -> None:
    """Augmentations are seeded: the same round twice is the same, bit for bit."""
    method = make_small(method="fixmatch", fixmatch_recipe=recipe, local_episode=1)
    state = method.initial_state()
    first, second = method.run_round(state), method.run_round(state)
    assert_same_state(first.state, second.state)
    steps = 1 if recipe == "flag" else 5
    np.testing.assert_array_equal(first.report["pseudo_label_count"], [50] * 3)
    assert np.all(first.report["pseudo_label_used"] <= 50)
    assert method.clients(state)[1][0].steps.labeled.shape[0] == steps
    other = make_small(
        method="fixmatch", fixmatch_recipe=recipe, local_episode=1, seed=6
    )
    assert not np.array_equal(
        first.state.model_weights[0],
        other.run_round(other.initial_state()).state.model_weights[0],
    )


def test_threshold_one_of_the_supervised_part_alone(make_small: Make) -> None:
    """Above any confidence nothing counts: no unlabelled loss, share 0."""
    method = make_small(method="fixmatch", confidence_threshold=0.999999)
    report = method.run_round(method.initial_state()).report
    assert np.all(report["pseudo_label_used"] == 0)
    assert np.all(report["unlabeled_loss"] == 0)
    assert np.all(np.isfinite(report["loss"]))


def test_low_threshold_uses_all(make_small: Make) -> None:
    method = make_small(method="fixmatch", confidence_threshold=0.0)
    report = method.run_round(method.initial_state()).report
    np.testing.assert_array_equal(
        report["pseudo_label_used"], report["pseudo_label_count"]
    )
    assert np.all(report["unlabeled_loss"] > 0)


def test_each_client_keeps_its_optimizer(make_small: Make) -> None:
    """With all three clients active each round, every accumulator lives on."""
    method = make_small(method="fixmatch", num_client=3)
    state = method.initial_state()
    outcome = method.run_round(state)
    assert set(outcome.kept) == {0, 1, 2}
    np.testing.assert_array_equal(outcome.state.client_versions, [1, 1, 1])
    for client, arrays in outcome.kept.items():
        method.client_states.put(client, 1, arrays)
    _, clients = method.clients(outcome.state)
    number = outcome.clients.index(method.clients(outcome.state)[0][0])
    kept = outcome.kept[outcome.clients[number]]["optimizer_state/000"]
    np.testing.assert_array_equal(clients[0].optimizer_state[0], kept)
    assert np.any(kept > 0)
    assert outcome.state.optimizer_state == ()


def test_kept_optimizers_survive_a_resume(run_small: Any) -> None:
    """Two rounds and then two more equal four; old versions are removed."""
    given = {"method": "fixmatch", "eval_every": 1}
    whole = run_small("whole", num_round=4, **given)
    run_small("parts", num_round=2, **given)
    parts = run_small("parts", num_round=4, resume=True, **given)
    for run in (whole, parts):
        newest = checkpoints.load(run.checkpoints / "round_000004.npz").arrays
        versions = newest["client_versions"]
        for client, version in enumerate(versions):
            found = checkpoints.rounds(run.client_states / f"client_{client:06d}")
            assert (version == 0 and not found) or version in found
            assert len([v for v in found if v <= 3]) <= 1
    with np.load(whole.weights_file) as left, np.load(parts.weights_file) as right:
        for name in left.files:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
