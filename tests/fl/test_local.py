"""Tests of a client's copy of the network: hand-over, steps and regularization."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest
import tensorflow as tf

from fl import optimizers
from fl.local import LocalModel, Regularization, sum_in_turn, to_float

RATE = tf.constant(0.1)
NOTHING = Regularization()


def one_weight() -> tf.keras.Model:
    """One weight: y = w x."""
    return tf.keras.Sequential(
        [tf.keras.Input([1]), tf.keras.layers.Dense(1, use_bias=False)]
    )


def normalized() -> tf.keras.Model:
    """One weight behind a batch norm: gamma, beta, moving mean and variance, w."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([1]),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(1, use_bias=False),
        ]
    )


def convolution() -> tf.keras.Model:
    """A convolution of one kernel value and a bias, then a dense weight."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([1, 1, 1]),
            tf.keras.layers.Conv2D(1, 1),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1, use_bias=False),
        ]
    )


def local_model(
    model_fn: Any = one_weight,
    regularization: Regularization = NOTHING,
    optimizer: Tuple[str, float] = ("sgd", 0.0),
) -> LocalModel:
    return LocalModel(model_fn, optimizers.make_optimizer(*optimizer), regularization)


def slide(regularization: Regularization) -> Tuple[float, List[float]]:
    """Five steps from 0 down the loss -w: the last weight, and the losses told."""
    local = local_model(regularization=regularization)
    start = (tf.zeros([1, 1]),)
    local.receive(start, ())
    kernel = local.model.trainable_variables[0]
    told = [
        local.minimize(lambda: (-tf.reduce_sum(kernel), None), start, RATE)[0]
        for _ in range(5)
    ]
    return float(kernel.numpy()[0, 0]), [float(x) for x in told]


# --- The proximal term -------------------------------------------------------
def test_without_proximal_term_every_step_is_the_same() -> None:
    """The gradient is -1 and the rate 0.1: 5 * 0.1 = 0.5; the loss is -w before."""
    weight, told = slide(NOTHING)
    np.testing.assert_allclose(weight, 0.5, rtol=1e-6)
    np.testing.assert_allclose(told, [0, -0.1, -0.2, -0.3, -0.4], atol=1e-6)


def test_proximal_term_holds_the_weight_back() -> None:
    """A step is w + 0.1 (1 - w): 1 - w shrinks by 0.9, so w = 1 - 0.9^5 = 0.40951.

    The loss told is -w + w^2 / 2 at w = 1 - 0.9^t.
    """
    weight, told = slide(Regularization(mu=1.0, proximal_gradient=True))
    np.testing.assert_allclose(weight, 0.40951, rtol=1e-6)
    before = 1 - 0.9 ** np.arange(5)
    np.testing.assert_allclose(told, -before + before**2 / 2, atol=1e-6)


def test_proximal_term_not_differentiated_only_shows_in_the_loss() -> None:
    """The weight goes to 0.5 as without it; told is -w + w^2 / 2 at w = t / 10."""
    weight, told = slide(Regularization(mu=1.0, proximal_gradient=False))
    np.testing.assert_allclose(weight, 0.5, rtol=1e-6)
    before = np.arange(5) / 10
    np.testing.assert_allclose(told, -before + before**2 / 2, atol=1e-6)


@pytest.mark.parametrize(("differentiated", "expected"), [(True, 2.0), (False, 20.0)])
def test_only_the_shown_proximal_term_covers_moving_statistics(
    differentiated: bool, expected: float
) -> None:
    """Moved: w by 2, the moving mean by 6. mu / 2 = 1/2: 4 / 2 or (4 + 36) / 2."""
    local = local_model(
        normalized, Regularization(mu=1.0, proximal_gradient=differentiated)
    )
    start = local.weights
    local.model.weights[2].assign_add([6.0])
    local.model.weights[4].assign_add([[2.0]])
    assert "moving_mean" in local.model.weights[2].name
    told, _ = local.minimize(lambda: (tf.constant(0.0), None), start, RATE)
    np.testing.assert_allclose(told, expected, rtol=1e-6)


# --- L2 ----------------------------------------------------------------------
def test_l2_covers_convolution_kernels_alone() -> None:
    """Loss 0.5 k^2, gradient k: the kernel 3 becomes 3 - 0.1 * 3; the rest stays."""
    local = local_model(convolution, Regularization(l2_factor=0.5))
    kernel, bias, dense = local.model.trainable_variables
    for variable in (kernel, bias, dense):
        variable.assign(tf.fill(variable.shape, 3.0))
    told, _ = local.minimize(lambda: (tf.constant(2.0), None), local.weights, RATE)
    np.testing.assert_allclose(told, 2.0 + 4.5)
    np.testing.assert_allclose(kernel.numpy().item(), 2.7, rtol=1e-6)
    assert (bias.numpy().item(), dense.numpy().item()) == (3.0, 3.0)


# --- Hand-over and steps -----------------------------------------------------
def test_weights_come_and_go_in_the_order_of_keras() -> None:
    local = local_model(normalized)
    sent = [np.full(w.shape, i + 0.5, np.float32) for i, w in enumerate(local.weights)]
    local.receive(tuple(sent), ())
    for kept, value, own in zip(local.weights, sent, local.model.get_weights()):
        np.testing.assert_array_equal(kept, value)
        np.testing.assert_array_equal(own, value)


def test_weights_taken_do_not_change_with_later_steps() -> None:
    local = local_model()
    local.receive((tf.ones([1, 1]),), ())
    taken = local.weights
    kernel = local.model.trainable_variables[0]
    local.minimize(lambda: (tf.reduce_sum(kernel), None), taken, RATE)
    assert taken[0].numpy().item() == 1.0
    np.testing.assert_allclose(local.weights[0], [[0.9]], rtol=1e-6)


def test_optimizer_state_comes_and_goes() -> None:
    """From v = 4 a gradient of 1 gives 0.9 * 4 + 0.1 * 1 = 3.7."""
    local = local_model(optimizer=("rmsprop", 0.0))
    np.testing.assert_array_equal(local.optimizer_state[0], [[0.0]])
    local.receive((tf.ones([1, 1]),), (tf.constant([[4.0]]),))
    kernel = local.model.trainable_variables[0]
    local.minimize(lambda: (tf.reduce_sum(kernel), None), local.weights, RATE)
    np.testing.assert_allclose(local.optimizer_state[0], [[3.7]], rtol=1e-6)
    expected = 1.0 - 0.1 / (np.sqrt(3.7) + 1e-7)
    np.testing.assert_allclose(kernel.numpy(), [[expected]], rtol=1e-6)


def test_weight_outside_the_loss_stays() -> None:
    """Its gradient is zeros and not None, which an update rule could not take."""
    local = local_model(normalized)
    gamma = local.model.trainable_variables[0]
    before = local.model.get_weights()
    local.minimize(lambda: (tf.reduce_sum(gamma), None), local.weights, RATE)
    after = local.model.get_weights()
    np.testing.assert_allclose(after[0], before[0] - 0.1, rtol=1e-6)
    for a, b in zip(after[1:], before[1:]):
        np.testing.assert_array_equal(a, b)


def test_what_the_loss_reports_is_handed_through() -> None:
    local = local_model()
    _, report = local.minimize(
        lambda: (tf.constant(0.0), {"figure": tf.constant(7.0)}), local.weights, RATE
    )
    assert report["figure"].numpy() == 7.0


def test_loss_is_told_before_the_step_inside_a_graph() -> None:
    """Also the shown proximal term, which reads the weights after the tape closed.

    From w = 3, global 1: told is 3 + (3 - 1)^2 / 2 = 5; after the step w = 2.9.
    """
    local = local_model(regularization=Regularization(mu=1.0))
    kernel = local.model.trainable_variables[0]

    @tf.function
    def step() -> tf.Tensor:
        kernel.assign([[3.0]])
        loss = lambda: (tf.reduce_sum(kernel), tf.constant(0.0))  # noqa: E731
        told, _ = local.minimize(loss, (tf.ones([1, 1]),), RATE)
        return told

    np.testing.assert_allclose(step(), 5.0, rtol=1e-6)
    np.testing.assert_allclose(kernel.numpy(), [[2.9]], rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_steps_are_taken_in_turn_and_what_they_return_adds_up(graph: bool) -> None:
    """v <- 2 v + i from 1: 2, 5, 12, which sum to 19; a count of each: 3."""
    value = tf.Variable(1.0)

    def step(number: tf.Tensor) -> Any:
        told = value.assign(2.0 * value + tf.cast(number, tf.float32))
        return {"told": tf.identity(told), "count": tf.constant(1.0)}

    def run(count: tf.Tensor) -> Any:
        return sum_in_turn(step, count, {"told": tf.constant(0.0), "count": 0.0})

    found = (tf.function(run, autograph=False) if graph else run)(tf.constant(3))
    assert (float(found["told"]), float(found["count"])) == (19.0, 3.0)
    assert float(value) == 12.0


def test_images_become_floats_up_to_one() -> None:
    found = to_float(tf.constant([[0, 51, 255]], tf.uint8))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, [[0.0, 0.2, 1.0]], rtol=1e-6)


def test_weight_decay_shrinks_every_weight_and_shows_in_no_loss() -> None:
    """Loss -w at rate 0.1 with decay 1: w <- w + 0.1 (1 - w), 0.40951 after five."""
    weight, told = slide(Regularization(weight_decay=1.0))
    assert weight == pytest.approx(0.40951, rel=1e-5)
    np.testing.assert_allclose(told, [0, -0.1, -0.19, -0.271, -0.3439], atol=1e-6)
