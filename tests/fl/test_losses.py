"""Tests of the terms of the loss: closed forms, limits, and where gradients flow."""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np
import pytest
import tensorflow as tf

from fl import losses

UNIT_COST = -np.log(1e-7)  # 16.1


def random_probs(seed: int, rows: int = 6, classes: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), rows).astype(np.float32)


def gradient(loss_fn: Callable[[tf.Tensor], tf.Tensor], at: np.ndarray) -> np.ndarray:
    variable = tf.Variable(at, dtype=tf.float32)
    with tf.GradientTape() as tape:
        loss = loss_fn(variable)
    return tape.gradient(loss, variable).numpy()


# --- Eq. (3) -----------------------------------------------------------------
def test_labeled_loss_is_minus_log_softmax_at_the_true_class() -> None:
    """Logits (0, -log 3): p = (3/4, 1/4). Mean of log(4/3) and log 4."""
    logits = tf.constant([[0.0, -np.log(3.0)]] * 2, tf.float32)
    found = losses.labeled_loss(logits, tf.constant([0, 1]))
    np.testing.assert_allclose(found, np.log(16 / 3) / 2, rtol=1e-6)


def test_labeled_loss_is_one_over_the_classes_present() -> None:
    """An absent class's logit is the lowest float: the others keep log 2, not log 3."""
    logits = tf.constant([[0.0, tf.float32.min, 0.0]])
    found = losses.labeled_loss(logits, tf.constant([2]))
    np.testing.assert_allclose(found, np.log(2.0), rtol=1e-6)


def test_labeled_loss_gradient_is_probability_minus_truth() -> None:
    """d/dl of -log softmax(l)_y is p - onehot(y), over B rows divided by B."""
    logits = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    labels = np.array([0, 3, 3])
    powers = np.exp(logits)
    expected = (powers / powers.sum(1, keepdims=True) - np.eye(4)[labels]) / 3
    found = gradient(lambda x: losses.labeled_loss(x, tf.constant(labels)), logits)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_accuracy_is_the_share_of_right_rows() -> None:
    logits = tf.constant([[-1.0, -2.0], [-1.0, -2.0], [-3.0, -2.0], [-3.0, -2.0]])
    found = losses.accuracy(logits, tf.constant([0, 1, 1, 1]))
    assert found.numpy() == 0.75


def test_nothing_has_mean_zero() -> None:
    empty, no_labels = tf.zeros([0, 3]), tf.zeros([0], tf.int32)
    assert losses.labeled_loss(empty, no_labels).numpy() == 0.0
    assert losses.accuracy(empty, no_labels).numpy() == 0.0
    assert losses.unlabeled_loss(empty, empty, "CE").numpy() == 0.0
    assert losses.unlabeled_loss(empty, empty, "MSE").numpy() == 0.0
    assert losses.safe_mean(tf.constant([1.0, 2.0, 6.0])).numpy() == 3.0


# --- Eq. (5) -----------------------------------------------------------------
def test_sharpen_at_one_half_squares() -> None:
    """(1/2, 1/4, 1/4) squared is (4, 1, 1) / 16; over its sum: (4, 1, 1) / 6."""
    found = losses.sharpen(tf.constant([[0.5, 0.25, 0.25]]), 0.5)
    np.testing.assert_allclose(found, [[4 / 6, 1 / 6, 1 / 6]], rtol=1e-6)


def test_sharpen_at_one_changes_nothing() -> None:
    probs = random_probs(2)
    np.testing.assert_allclose(losses.sharpen(probs, 1.0), probs, rtol=1e-6)


def test_sharpen_at_a_low_temperature_is_the_greatest() -> None:
    """(0.3 / 0.5)^20 = 4e-5 is what is left of the second at T = 1/20."""
    found = losses.sharpen(tf.constant([[0.2, 0.5, 0.3]]), 0.05)
    np.testing.assert_allclose(found, [[0, 1, 0]], atol=5e-5)
    assert found.numpy()[0, 2] > 3e-5


def test_sharpen_at_a_high_temperature_is_even_over_what_is_not_zero() -> None:
    found = losses.sharpen(tf.constant([[0.9, 0.1, 0.0]]), 1e6)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.0]], atol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sharpened_zeros_stay_zero_with_a_finite_gradient(temperature: float) -> None:
    """At T > 1 the slope of p^(1/T) at 0 is infinite; zeros must not see it."""
    probs = np.array([[0.7, 0.3, 0.0], [0.0, 0.0, 0.0]], np.float32)
    sharp = losses.sharpen(tf.constant(probs), temperature).numpy()
    np.testing.assert_array_equal(sharp[probs == 0], np.zeros(4))
    weights = tf.constant([[1.0, 2.0, 3.0]] * 2)
    found = gradient(
        lambda p: tf.reduce_sum(weights * losses.sharpen(p, temperature)), probs
    )
    np.testing.assert_array_equal(found[probs == 0], np.zeros(4))
    assert np.isfinite(found).all()
    assert np.abs(found[0, :2]).min() > 0.1


def test_sharpen_gradient_is_the_one_of_the_quotient() -> None:
    """With a = 1/T, s = p^a / sum: ds_i/dp_j = (a / p_j) s_j (1[i=j] - s_i)."""
    probs, a = np.array([[0.6, 0.3, 0.1]], np.float32), 2.0
    s = (probs**a / np.sum(probs**a))[0]
    jacobian = (a / probs[0]) * s * (np.eye(3) - s[:, np.newaxis])
    for i in range(3):
        found = gradient(
            functools.partial(lambda k, p: losses.sharpen(p, 1 / a)[0, k], i), probs
        )
        np.testing.assert_allclose(found[0], jacobian[i], rtol=1e-4, atol=1e-6)


# --- Eq. (8), cross entropy --------------------------------------------------
def test_crossentropy_is_that_of_keras() -> None:
    """Also where the prediction has zeros and ones and where it does not sum to 1."""
    targets = random_probs(3)
    probs = random_probs(4)
    probs[0], probs[1] = [0, 1, 0, 0], [0.5, 0, 0.5, 0]
    probs[2] *= 2.5
    np.testing.assert_allclose(
        losses.keras_crossentropy(tf.constant(targets), tf.constant(probs)),
        tf.keras.losses.categorical_crossentropy(
            tf.constant(targets), tf.constant(probs)
        ),
        rtol=1e-6,
    )


def test_target_mass_on_a_zero_class_costs_16_per_unit() -> None:
    """Targets (1-m, m) against (1, 0): -(1-m) log(1 - 1e-7) + m * 16.118."""
    for mass in (0.0, 0.25, 1.0):
        found = losses.keras_crossentropy(
            tf.constant([[1.0 - mass, mass]]), tf.constant([[1.0, 0.0]])
        )
        np.testing.assert_allclose(found, [mass * UNIT_COST], rtol=1e-6, atol=2e-7)
    assert round(UNIT_COST, 1) == 16.1


def test_unlabeled_crossentropy_averages_over_images() -> None:
    """Rows of cost log 2 and 16.118: half their sum, whatever the classes."""
    found = losses.unlabeled_loss(
        tf.constant([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        tf.constant([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]),
        "CE",
    )
    np.testing.assert_allclose(found, (np.log(2.0) + UNIT_COST) / 2, rtol=1e-6)


def test_clipped_entries_give_no_gradient_through_the_prediction() -> None:
    """Of p = softmax(l), p_2 = 1e-9 is clipped: L = c - t_0 log p_0 - t_1 log p_1.

    Then dL/dl_j = -t_j 1[j < 2] + p_j (t_0 + t_1). Without the clipping the last
    entry would be -t_2 and the bracket 1.
    """
    t = np.array([[0.3, 0.1, 0.6]], np.float32)
    logits = np.array([[0.4, -0.2, -20.0]], np.float32)
    p = np.exp(logits) / np.exp(logits).sum()
    expected = -t * [1, 1, 0] + p * (t[0, 0] + t[0, 1])
    found = gradient(
        lambda x: losses.keras_crossentropy(tf.constant(t), tf.nn.softmax(x)), logits
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_clipped_entries_do_give_a_gradient_through_the_target() -> None:
    """dL/dt_k = -log of the clipped p_k: 16.1 where p_k is 0."""
    found = gradient(
        lambda t: losses.keras_crossentropy(t, tf.constant([[0.5, 0.5, 0.0]])),
        np.array([[0.2, 0.2, 0.6]]),
    )
    expected = [[np.log(2.0), np.log(2.0), UNIT_COST]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_mean_squared_error_averages_over_images_and_classes() -> None:
    """Squares 1, 1, 0, 0 and 4/100 of each of four: (2 + 0.16) / 8 = 0.27."""
    found = losses.unlabeled_loss(
        tf.constant([[1.0, 0.0, 0.0, 0.0], [0.2, 0.2, 0.2, 0.4]]),
        tf.constant([[0.0, 1.0, 0.0, 0.0], [0.4, 0.4, 0.0, 0.2]]),
        "MSE",
    )
    np.testing.assert_allclose(found, 0.27, rtol=1e-6)


# --- Regularization ----------------------------------------------------------
def test_l2_is_the_factor_times_the_sum_of_squares() -> None:
    """0.1 * (1 + 4 + 9) = 1.4; no half in front."""
    kernels = [tf.Variable([[1.0, -2.0]]), tf.Variable([3.0])]
    np.testing.assert_allclose(losses.l2_penalty(kernels, 0.1), 1.4, rtol=1e-6)


def test_proximal_term_is_half_mu_times_the_squared_way() -> None:
    """Ways (3, 0) and (4): 0.2 / 2 * (9 + 16) = 2.5; none at the start itself."""
    start = [tf.constant([1.0, 1.0]), tf.constant([0.0])]
    weights = [tf.constant([4.0, 1.0]), tf.constant([-4.0])]
    np.testing.assert_allclose(losses.proximal_term(weights, start, 0.2), 2.5)
    assert losses.proximal_term(start, start, 0.2).numpy() == 0.0
