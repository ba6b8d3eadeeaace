"""Convolutions as the networks train them: values of TensorFlow's, in less time.

`convolve` is `tf.nn.conv2d` with padding `SAME` and a bias, but for the cost of

* the outputs, and the gradient of the images, which come by Winograd's algorithm where
  that is cheaper;
* the gradient of the bias. TensorFlow would fuse it with the kernel's, which with wide
  images takes far longer than both apart; here it is a matrix product.

The gradient of the kernel stays TensorFlow's own: it is often exactly zero, where an
input and an output channel are never active side by side, and would become rounding by
Winograd's algorithm, of which RMSprop makes full steps.

There are no gradients of gradients: asking for those of a loss is an error.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

import tensorflow as tf

from models import winograd


def convolve(
    images: tf.Tensor, kernel: tf.Tensor, bias: Optional[tf.Tensor], stride: int
) -> tf.Tensor:
    """A convolution with padding `SAME`.

    Args:
        images: [N, H, W, C].
        kernel: [h, w, C, K].
        bias: [K], or None.
        stride: along both sides.

    Returns:
        [N, H / stride, W / stride, K], rounded up.
    """
    weights = [tf.convert_to_tensor(x) for x in (kernel, bias) if x is not None]
    fixed = [tf.stop_gradient(x) for x in weights]
    if winograd.applies(images.shape, weights[0].shape, stride):
        made = winograd.convolve(images, fixed[0])
    else:
        made = tf.nn.conv2d(images, fixed[0], stride, "SAME")
    if bias is not None:
        made = tf.nn.bias_add(made, fixed[1])
    return _with_weight_gradients(made, weights, images, stride)


def _with_weight_gradients(
    made: tf.Tensor, weights: List[tf.Tensor], images: tf.Tensor, stride: int
) -> tf.Tensor:
    """Hands on what was made, with the gradients of the weights it was made by."""

    @tf.custom_gradient
    def attach(
        made: tf.Tensor, *weights: tf.Tensor
    ) -> Tuple[tf.Tensor, Callable[[tf.Tensor], Tuple[tf.Tensor, ...]]]:
        def gradient(upstream: tf.Tensor) -> Tuple[tf.Tensor, ...]:
            of_kernel = tf.raw_ops.Conv2DBackpropFilter(
                input=images,
                filter_sizes=weights[0].shape,
                out_backprop=upstream,
                strides=[1, stride, stride, 1],
                padding="SAME",
            )
            of_bias = [_sum_over_positions(upstream)] if len(weights) > 1 else []
            gradients = (upstream, of_kernel, *of_bias)
            return tuple(_only_once(value) for value in gradients)

        return tf.identity(made), gradient

    return attach(made, *weights)


def _only_once(gradient: tf.Tensor) -> tf.Tensor:
    """The gradient, which cannot be differentiated again.

    The kernel of the images' gradient is held fixed, so that what TensorFlow would make
    of it without a word would be wrong.
    """
    message = "models.convolution has no gradients of gradients"
    return tf.raw_ops.PreventGradient(input=gradient, message=message)


def _sum_over_positions(values: tf.Tensor) -> tf.Tensor:
    """[N, H, W, K] -> [K]; a product with ones sums faster than TensorFlow's sums."""
    number, height, width, channels = tf.unstack(tf.shape(values))
    by_image = tf.reshape(values, [number, height * width, channels])
    sums = tf.matmul(tf.ones([number, 1, height * width], values.dtype), by_image)
    return tf.reduce_sum(sums, axis=[0, 1])
