"""Tests of the initial weights."""

from __future__ import annotations

import functools
from typing import List, Optional

import numpy as np
import pytest
import tensorflow as tf

from models import builder
from models.init import Init, initial_weights, parse_init


@functools.cache
def network(
    name: str, norm: str = "none", classes: Optional[int] = None
) -> tf.keras.Model:
    return builder.build_model(name, (8, 8, 3), norm, classes)


def kernels(weights: List[np.ndarray]) -> List[np.ndarray]:
    return [weight for weight in weights if weight.ndim > 1]


def assert_all_equal(left: List[np.ndarray], right: List[np.ndarray]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right):
        np.testing.assert_array_equal(one, other)


def test_parse_init_reads_both_recipes() -> None:
    assert parse_init("default") == Init(None)
    assert parse_init("numpy:0") == Init(0)
    assert parse_init("numpy:7") == Init(7)


@pytest.mark.parametrize(
    "text", ["", "numpy", "numpy:", "numpy:-1", "numpy:x", "numpy:4294967296", "he:7"]
)
def test_parse_init_refuses_anything_else_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="--init=.*`default` or `numpy:SEED`") as error:
        parse_init(text)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_numpy_recipe_gives_the_known_first_numbers() -> None:
    """RandomState(7) yields 1.6905257, -0.4659374, 0.0328202; fan in is 3 * 3 * 3."""
    first = initial_weights(network("res9"), "numpy:7", seed=0)[0].ravel()[:3]
    expected = np.array([1.6905257, -0.46593737, 0.03282016]) * np.sqrt(2 / 27)
    np.testing.assert_allclose(first, expected, rtol=1e-6)


def test_numpy_recipe_draws_all_kernels_from_one_generator() -> None:
    """The dense kernel is the end of one long draw, scaled by sqrt(2 / 512)."""
    weights = initial_weights(network("res9", classes=10), "numpy:7", seed=0)
    count = sum(kernel.size for kernel in kernels(weights))
    tail = np.random.RandomState(7).standard_normal(count)[-5120:].reshape(512, 10)
    np.testing.assert_array_equal(
        weights[-2], (tail * np.sqrt(2 / 512)).astype(np.float32)
    )


def test_numpy_recipe_ignores_the_runs_seed() -> None:
    model = network("wres28x2")
    assert_all_equal(
        initial_weights(model, "numpy:7", 1), initial_weights(model, "numpy:7", 2)
    )


def test_default_recipe_is_a_function_of_the_seed() -> None:
    model = network("wres28x2")
    first = initial_weights(model, "default", 1)
    assert_all_equal(first, initial_weights(model, "default", 1))
    other = initial_weights(model, "default", 2)
    assert all((a != b).any() for a, b in zip(kernels(first), kernels(other)))


def test_default_recipe_keeps_its_numbers() -> None:
    """Recorded once: a change here changes every run that starts from it."""
    first = initial_weights(network("res9"), "default", 1000)[0].ravel()[:3]
    np.testing.assert_allclose(
        first, [-0.18111631, -0.21213618, -0.12017336], rtol=1e-6
    )


@pytest.mark.parametrize("init", ["default", "numpy:7"])
def test_norm_and_dense_layer_leave_the_convolutions_alone(init: str) -> None:
    plain = kernels(initial_weights(network("wres28x2"), init, 3))
    normed = kernels(initial_weights(network("wres28x2", "bn"), init, 3))
    headed = kernels(initial_weights(network("wres28x2", classes=10), init, 3))
    assert_all_equal(plain, normed)
    assert_all_equal(plain, headed[:-1])


def test_default_kernels_are_cut_normal_with_variance_one_over_fan_in() -> None:
    """Variance scaling: std sqrt(1 / n) / 0.8796 before the cut at two of these.

    A sample variance of m values strays by less than 5 * sqrt(2 / m) of itself: 2 % for
    the 147,456 values of a 3x3 kernel from 128 to 128 channels. Without the correction
    the variance would be 23 % lower; without the cut the bound would be exceeded.
    """
    weights = kernels(initial_weights(network("wres28x2"), "default", 0))
    kernel = weights[-1]
    assert kernel.shape == (3, 3, 128, 128)
    fan_in = 9 * 128
    bound = 2 * np.sqrt(1 / fan_in) / 0.87962566103423978
    assert 0.99 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
    assert kernel.var() * fan_in == pytest.approx(1, rel=0.02)
    assert abs(kernel.mean()) < 5 * np.sqrt(1 / fan_in / kernel.size)


def test_default_kernels_have_the_quantiles_of_keras_own() -> None:
    """Keras draws from its own generator: equal in distribution, not in numbers."""
    shape = (3, 3, 128, 128)
    initializer = tf.keras.initializers.VarianceScaling(
        scale=1.0, mode="fan_in", distribution="truncated_normal", seed=1
    )
    ours = kernels(initial_weights(network("wres28x2"), "default", 0))[-1]
    at = np.linspace(0.02, 0.98, 25)
    theirs = np.quantile(initializer(shape).numpy(), at)
    np.testing.assert_allclose(np.quantile(ours, at), theirs, atol=0.02 / np.sqrt(1152))


def test_default_dense_kernel_is_glorot_uniform() -> None:
    """Uniform within sqrt(6 / (128 + 10)); its variance is a third of that squared."""
    kernel, bias = initial_weights(network("wres28x2", classes=10), "default", 0)[-2:]
    limit = np.sqrt(6 / 138)
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert kernel.var() == pytest.approx(limit**2 / 3, rel=0.1)
    assert not bias.any()


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_everything_but_kernels_is_at_its_default(norm: str) -> None:
    """The model is fresh, so its own vectors are the defaults Keras gives them."""
    model = network("res9", norm)
    drawn = initial_weights(model, "default", 0)
    for ours, fresh in zip(drawn, model.get_weights()):
        assert ours.dtype == np.float32
        assert ours.shape == fresh.shape
        if ours.ndim == 1:
            np.testing.assert_array_equal(ours, fresh)
        else:
            assert ours.any()
            assert not fresh.any()


def test_the_models_present_values_play_no_part() -> None:
    model = builder.build_model("wres28x2", (8, 8, 1), "bn")
    before = initial_weights(model, "default", 5)
    model.set_weights([np.full_like(weight, 3.0) for weight in before])
    assert_all_equal(before, initial_weights(model, "default", 5))
    model.set_weights(before)
    assert_all_equal(before, model.get_weights())


def test_an_unknown_weight_is_refused() -> None:
    model = tf.keras.Sequential([tf.keras.layers.PReLU(input_shape=(2,))])
    with pytest.raises(ValueError, match="no initial value for a weight named .*alpha"):
        initial_weights(model, "default", 0)
