"""What tests of convolutions share: a plain one, values, gradients, errors."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow as tf

Convolution = Callable[..., tf.Tensor]
# Float32 has 24 bits; sums of some thousand products lose a few of them.
ROUNDING = 5e-6


def plain(
    images: tf.Tensor, kernel: tf.Tensor, bias: Optional[tf.Tensor], stride: int
) -> tf.Tensor:
    made = tf.nn.conv2d(images, kernel, stride, "SAME")
    return made if bias is None else tf.nn.bias_add(made, bias)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def with_gradients(
    function: Convolution,
    arrays: Sequence[np.ndarray],
    upstream: np.ndarray,
    stride: int = 1,
    dtype: Any = tf.float32,
) -> List[np.ndarray]:
    """The outputs, and the gradients of the arrays, as a compiled step has them."""

    @tf.function(autograph=False)
    def run(tensors: List[tf.Tensor], upstream: tf.Tensor) -> List[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            made = function(*tensors, *[None] * (3 - len(tensors)), stride)
        return [made, *tape.gradient(made, tensors, upstream)]

    tensors = [tf.cast(array, dtype) for array in arrays]
    return [tensor.numpy() for tensor in run(tensors, tf.cast(upstream, dtype))]


def error(found: np.ndarray, right: np.ndarray) -> float:
    """Of all values together, as a share of their size."""
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
