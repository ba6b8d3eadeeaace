"""Tests of the update rules against NumPy and against TensorFlow's old optimizers."""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence, Tuple

import numpy as np
import pytest
import tensorflow as tf

from fl import optimizers
from fl.optimizers import Optimizer

RATE = 0.05
SHAPES = [(2, 3), (4,)]
RULES = [
    ("rmsprop", 0.0),
    ("rmsprop", 0.9),
    ("sgd", 0.0),
    ("sgd", 0.9),
    ("nesterov", 0.9),
    ("adam", 0.0),
]
EACH_RULE = pytest.mark.parametrize(("name", "momentum"), RULES)
Arrays = List[np.ndarray]


def random_arrays(rng: np.random.Generator, scale: float = 1.0) -> Arrays:
    return [rng.normal(0, scale, shape).astype(np.float32) for shape in SHAPES]


def random_gradients(steps: int) -> List[Arrays]:
    """Gradients from large to so small that epsilon decides."""
    rng = np.random.default_rng(3)
    return [random_arrays(rng, scale=10.0 ** (1 - 2 * i)) for i in range(steps)]


def run(
    optimizer: Optimizer,
    state: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    gradients: Sequence[Arrays],
) -> Tuple[Arrays, Arrays]:
    """State and weights after a step for each of the gradients."""
    state_variables = [tf.Variable(x) for x in state]
    variables = [tf.Variable(w) for w in weights]
    for each in gradients:
        optimizer.step(state_variables, variables, [tf.constant(g) for g in each], RATE)
    return [x.numpy() for x in state_variables], [w.numpy() for w in variables]


# --- The rules in NumPy, for one weight --------------------------------------
def numpy_rmsprop(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    """Plain: v = 0.9 v + 0.1 g^2; w -= lr g / (sqrt(v) + 1e-7)."""
    v = np.zeros_like(w)
    for g in gradients:
        v = 0.9 * v + 0.1 * g**2
        w = w - RATE * g / (np.sqrt(v) + 1e-7)
    return w


def numpy_rmsprop_momentum(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    """As above with m = 0.9 m + lr g / sqrt(v + 1e-7); w -= m."""
    v, m = np.zeros_like(w), np.zeros_like(w)
    for g in gradients:
        v = 0.9 * v + 0.1 * g**2
        m = 0.9 * m + RATE * g / np.sqrt(v + 1e-7)
        w = w - m
    return w


def numpy_sgd(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    return w - RATE * np.sum(gradients, axis=0)


def numpy_sgd_momentum(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    """Step t leaves -lr g_t (1 + 0.9 + ... + 0.9^(n - t)) behind after n of them."""
    for t, g in enumerate(gradients, start=1):
        w = w - RATE * g * sum(0.9**i for i in range(len(gradients) - t + 1))
    return w


def numpy_nesterov(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    """Sutskever's form in the weights that are looked at: v = 0.9 v - lr g."""
    v = np.zeros_like(w)
    for g in gradients:
        v = 0.9 * v - RATE * g
        w = w + 0.9 * v - RATE * g
    return w


def numpy_adam(w: np.ndarray, gradients: Arrays) -> np.ndarray:
    """Kingma and Ba's "epsilon hat" form: lr_t = lr sqrt(1 - b2^t) / (1 - b1^t)."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        rate = RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - rate * m / (np.sqrt(v) + 1e-7)
    return w


NUMPY_RULES: Mapping[Tuple[str, float], Callable[[np.ndarray, Arrays], np.ndarray]] = {
    ("rmsprop", 0.0): numpy_rmsprop,
    ("rmsprop", 0.9): numpy_rmsprop_momentum,
    ("sgd", 0.0): numpy_sgd,
    ("sgd", 0.9): numpy_sgd_momentum,
    ("nesterov", 0.9): numpy_nesterov,
    ("adam", 0.0): numpy_adam,
}


@EACH_RULE
def test_several_steps_follow_the_rule(name: str, momentum: float) -> None:
    optimizer = optimizers.make_optimizer(name, momentum)
    weights, gradients = random_arrays(np.random.default_rng(4)), random_gradients(5)
    _, found = run(optimizer, optimizer.initial_state(SHAPES), weights, gradients)
    for i, weight in enumerate(weights):
        own = [np.asarray(g[i], np.float64) for g in gradients]
        expected = NUMPY_RULES[name, momentum](weight.astype(np.float64), own)
        np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-6)


@EACH_RULE
def test_steps_are_those_of_the_old_tensorflow(name: str, momentum: float) -> None:
    """`legacy` keeps the optimizers of the release the authors used."""
    legacy = {
        "rmsprop": lambda: tf.keras.optimizers.legacy.RMSprop(RATE, momentum=momentum),
        "sgd": lambda: tf.keras.optimizers.legacy.SGD(RATE, momentum=momentum),
        "nesterov": lambda: tf.keras.optimizers.legacy.SGD(
            RATE, momentum=momentum, nesterov=True
        ),
        "adam": lambda: tf.keras.optimizers.legacy.Adam(RATE),
    }[name]()
    optimizer = optimizers.make_optimizer(name, momentum)
    weights, gradients = random_arrays(np.random.default_rng(5)), random_gradients(5)
    variables = [tf.Variable(w) for w in weights]
    for each in gradients:
        legacy.apply_gradients(zip([tf.constant(g) for g in each], variables))
    _, found = run(optimizer, optimizer.initial_state(SHAPES), weights, gradients)
    for a, b in zip(found, variables):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


def test_epsilon_stands_outside_the_root_only_without_momentum() -> None:
    """A first gradient of 1e-7 gives v = 1e-15.

    Outside: 1e-7 / (3.16e-8 + 1e-7) = 0.760. Inside, the momentum of the first step
    being 0: 1e-7 / sqrt(1e-15 + 1e-7) = 3.16e-4.
    """
    tiny = [[np.array([1e-7], np.float32)]]
    for momentum, expected in ((0.0, 0.75975), (0.9, 3.1623e-4)):
        optimizer = optimizers.make_optimizer("rmsprop", momentum)
        start = optimizer.initial_state([(1,)])
        _, (weight,) = run(optimizer, start, [np.array([0.0], np.float32)], tiny)
        np.testing.assert_allclose(weight, [-RATE * expected], rtol=1e-4)


# --- State -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "momentum", "slots", "count"),
    [
        ("rmsprop", 0.0, 1, 0),
        ("rmsprop", 0.9, 2, 0),
        ("sgd", 0.0, 0, 0),
        ("sgd", 0.9, 1, 0),
        ("nesterov", 0.9, 1, 0),
        ("adam", 0.0, 2, 1),
        ("adam", 0.9, 2, 1),
    ],
)
def test_initial_state_is_zeros_slot_by_slot(
    name: str, momentum: float, slots: int, count: int
) -> None:
    state = optimizers.make_optimizer(name, momentum).initial_state(SHAPES)
    assert [np.shape(x) for x in state] == SHAPES * slots + [()] * count
    assert all(np.asarray(x).dtype == np.float32 for x in state)
    assert all(not np.any(x) for x in state)


@EACH_RULE
def test_state_carried_over_is_one_long_run(name: str, momentum: float) -> None:
    """Three steps, hand over state and weights, two more: exactly the five at once."""
    optimizer = optimizers.make_optimizer(name, momentum)
    weights, gradients = random_arrays(np.random.default_rng(6)), random_gradients(5)
    start = optimizer.initial_state(SHAPES)
    whole = run(optimizer, start, weights, gradients)
    state, middle = run(optimizer, start, weights, gradients[:3])
    parts = run(optimizer, state, middle, gradients[3:])
    for a, b in zip(whole[0] + whole[1], parts[0] + parts[1]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "momentum"), [rule for rule in RULES if rule != ("sgd", 0.0)]
)
def test_a_fresh_state_is_not_the_state_carried_over(
    name: str, momentum: float
) -> None:
    optimizer = optimizers.make_optimizer(name, momentum)
    weights, gradients = random_arrays(np.random.default_rng(7)), random_gradients(2)
    start = optimizer.initial_state(SHAPES)
    state, middle = run(optimizer, start, weights, gradients[:1])
    _, carried = run(optimizer, state, middle, gradients[1:])
    _, fresh = run(optimizer, start, middle, gradients[1:])
    assert np.abs(carried[0] - fresh[0]).min() > 1e-3


def test_adam_counts_its_steps_and_ignores_momentum() -> None:
    weights, gradients = random_arrays(np.random.default_rng(8)), random_gradients(4)
    ends = []
    for momentum in (0.0, 0.9):
        optimizer = optimizers.make_optimizer("adam", momentum)
        start = optimizer.initial_state(SHAPES)
        state, after = run(optimizer, start, weights, gradients)
        assert state[-1] == 4.0
        ends.append(after)
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
