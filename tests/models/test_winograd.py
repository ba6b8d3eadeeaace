"""Tests of Winograd's convolution: against TensorFlow's own, values and gradients."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import tensorflow as tf

from models import builder, winograd

Convolution = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# Float32 has 24 bits; sums of some hundred products lose a few of them.
ROUNDING = 5e-6


def plain(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(images, kernel, 1, "SAME")


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def with_gradients(
    convolution: Convolution,
    arrays: Tuple[np.ndarray, np.ndarray, np.ndarray],
    dtype: Any = tf.float32,
) -> List[np.ndarray]:
    """The outputs, and the gradients of images and kernel for a given upstream."""
    images, kernel, upstream = (tf.cast(array, dtype) for array in arrays)
    with tf.GradientTape() as tape:
        tape.watch([images, kernel])
        made = convolution(images, kernel)
    gradients = tape.gradient(made, [images, kernel], upstream)
    return [tensor.numpy() for tensor in (made, *gradients)]


def error(found: np.ndarray, right: np.ndarray) -> float:
    """Of all values together, as a share of their size."""
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


def test_minimal_filtering_is_a_correlation() -> None:
    """y = A' [(G g) * (B' d)] is y_i = sum_j d_{i + j} g_j, for any d and g."""
    taps, spots_in, spots_out = winograd.minimal_filtering()
    rng = np.random.default_rng(3)
    inputs, kernel = rng.normal(size=6), rng.normal(size=3)
    found = spots_out.T @ ((taps @ kernel) * (spots_in @ inputs))
    np.testing.assert_allclose(found, np.correlate(inputs, kernel), rtol=1e-12)


@pytest.mark.parametrize("side", [4, 8, 12, 16, 32])
@pytest.mark.parametrize("number", [1, 3])
def test_it_is_tensorflows_convolution(side: int, number: int) -> None:
    arrays = (
        values(number, side, side, 5),
        values(3, 3, 5, 7),
        values(number, side, side, 7),
    )
    right = with_gradients(plain, arrays, tf.float64)
    for found, exact in zip(with_gradients(winograd.convolve, arrays), right):
        assert found.shape == exact.shape
        assert error(found, exact) < ROUNDING


def test_rounding_is_near_that_of_tensorflow_with_many_channels() -> None:
    arrays = values(4, 8, 8, 256), values(3, 3, 256, 256), values(4, 8, 8, 256)
    right = with_gradients(plain, arrays, tf.float64)
    ours = with_gradients(winograd.convolve, arrays)
    theirs = with_gradients(plain, arrays)
    for found, other, exact in zip(ours, theirs, right):
        assert error(found, exact) < max(4 * error(other, exact), 2e-6)


def test_gradients_of_a_kernel_are_exactly_zero_where_nothing_meets() -> None:
    """A channel with one value meets an upstream with one value in one tap alone.

    The others must be zero and not rounding: RMSprop makes a full step of anything.
    """
    images, upstream = np.zeros([2, 1, 8, 8, 1], np.float32)
    images[0, 3, 5, 0], upstream[0, 4, 4, 0] = 0.7, 1.3
    found = with_gradients(winograd.convolve, (images, values(3, 3, 1, 1), upstream))
    expected = np.zeros([3, 3, 1, 1])
    expected[0, 2] = 0.7 * 1.3  # One row above, one column to the right.
    np.testing.assert_allclose(found[2], expected, rtol=1e-6, atol=0)


def test_no_images_make_no_outputs_and_zero_gradients() -> None:
    arrays = values(0, 4, 4, 3), values(3, 3, 3, 2), values(0, 4, 4, 2)
    made, of_images, of_kernel = with_gradients(winograd.convolve, arrays)
    assert made.shape == (0, 4, 4, 2)
    assert of_images.shape == (0, 4, 4, 3)
    np.testing.assert_array_equal(of_kernel, 0.0)


@pytest.mark.parametrize(
    ("side", "inputs", "outputs", "expected"),
    [
        (4, 512, 512, True),
        (16, 128, 256, True),
        (16, 64, 128, False),
        (2, 256, 512, False),
        (6, 256, 512, False),
    ],
)
def test_where_it_applies(side: int, inputs: int, outputs: int, expected: bool) -> None:
    assert winograd.applies(side, inputs, outputs) is expected


def test_the_network_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = builder.build_model("res9", (32, 32, 3), "bn")
    by_winograd = [
        layer.name
        for layer in fast.layers
        if getattr(layer, "convolution_op", None) is winograd.convolve
    ]
    assert by_winograd == [
        *("step3_1_conv", "step3_2_conv", "step4_conv", "step5_conv"),
        *("step6_1_conv", "step6_2_conv"),
    ]
    monkeypatch.setattr(winograd, "applies", lambda *shape: False)
    slow = builder.build_model("res9", (32, 32, 3), "bn")
    weights = [values(*w.shape) * 0.05 if w.ndim > 1 else w for w in slow.get_weights()]
    for model in (fast, slow):
        model.set_weights(weights)
    images = values(3, 32, 32, 3)
    np.testing.assert_allclose(
        fast(images, training=True), slow(images, training=True), rtol=1e-4, atol=1e-5
    )


def test_it_is_saved_as_a_plain_layer(tmp_path: Any) -> None:
    image = tf.keras.Input((4, 4, 128))
    model = tf.keras.Model(image, builder._conv(image, 128, "only"))
    model.set_weights([values(3, 3, 128, 128), values(128)])
    model.save(tmp_path / "model.keras", save_format="keras")
    read = tf.keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert type(read.layers[1]) is tf.keras.layers.Conv2D
    assert read.layers[1].convolution_op is not winograd.convolve
    images = values(2, 4, 4, 128)
    np.testing.assert_allclose(read(images), model(images), rtol=1e-3, atol=1e-3)
