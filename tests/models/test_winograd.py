"""Tests of Winograd's convolution: against TensorFlow's own."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pytest
import tensorflow as tf
from convolutions import ROUNDING, error, plain, values, with_gradients

from models import winograd


def convolve(
    images: tf.Tensor, kernel: tf.Tensor, bias: None, stride: int
) -> tf.Tensor:
    assert bias is None
    assert stride == 1
    return winograd.convolve(images, kernel)


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
    arrays = values(number, side, side, 5), values(3, 3, 5, 7)
    upstream = values(number, side, side, 7)
    right = with_gradients(plain, arrays, upstream, dtype=tf.float64)
    for found, exact in zip(with_gradients(convolve, arrays, upstream), right):
        assert found.shape == exact.shape
        assert error(found, exact) < ROUNDING


def test_rounding_is_near_that_of_tensorflow_with_many_channels() -> None:
    arrays, upstream = (
        (values(4, 8, 8, 256), values(3, 3, 256, 256)),
        values(4, 8, 8, 256),
    )
    right = with_gradients(plain, arrays, upstream, dtype=tf.float64)
    ours = with_gradients(convolve, arrays, upstream)
    theirs = with_gradients(plain, arrays, upstream)
    for found, other, exact in zip(ours, theirs, right):
        assert error(found, exact) < max(4 * error(other, exact), 2e-6)


@pytest.mark.parametrize(
    ("images", "kernel", "stride", "expected"),
    [
        ((4, 4, 512), (3, 3, 512, 512), 1, True),
        ((16, 16, 128), (3, 3, 128, 256), 1, True),
        ((16, 16, 64), (3, 3, 64, 128), 1, False),
        ((2, 2, 256), (3, 3, 256, 512), 1, False),
        ((6, 6, 256), (3, 3, 256, 512), 1, False),
        ((8, 4, 256), (3, 3, 256, 512), 1, False),
        ((8, 8, 256), (1, 1, 256, 512), 1, False),
        ((8, 8, 256), (3, 3, 256, 512), 2, False),
    ],
)
def test_where_it_applies(
    images: Sequence[int], kernel: Sequence[int], stride: int, expected: bool
) -> None:
    assert winograd.applies([None, *images], kernel, stride) is expected
