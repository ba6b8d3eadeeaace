"""What a training step's convolutions alone cost in TensorFlow; the machine's peak.

Each convolution of a network is run by itself, by TensorFlow's own operations, on
random values of the shapes that it has inside the network: forward, the gradient of its
kernel and, but for the first, that of its input. All else that a network does (biases,
norms, ReLU, pools, sums, the optimizer) is left out.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple

import attr
import tensorflow as tf

MATRIX_SIDE = 3072
STRIDES = (1, 1, 1, 1)


@attr.frozen
class ConvShape:
    """A convolution of stride 1 with padding `SAME`: side, channels in and out."""

    side: int
    kernel: int
    inputs: int
    outputs: int

    def flops(self, batch: int) -> int:
        """Two per multiply-add, of one pass forward; each gradient costs the same."""
        positions = batch * self.side * self.side
        return 2 * positions * self.kernel * self.kernel * self.inputs * self.outputs


def conv_shapes(model: tf.keras.Model) -> List[ConvShape]:
    """The convolutions of a network, in order."""
    found = []
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.Conv2D):
            side, inputs = layer.input_shape[1], layer.input_shape[-1]
            found.append(ConvShape(side, layer.kernel_size[0], inputs, layer.filters))
    return found


def training_flops(shapes: Sequence[ConvShape], batch: int) -> int:
    """Of forward and both gradients, without the input gradient of the first."""
    return 3 * sum(s.flops(batch) for s in shapes) - shapes[0].flops(batch)


def convolutions(shapes: Sequence[ConvShape], batch: int) -> Callable[[], None]:
    """Makes a function that runs them all once."""
    data = [_random_values(shape, batch) for shape in shapes]
    run = tf.function(passes)
    return lambda: _finish(run(data))


def passes(values: Sequence[Tuple[tf.Tensor, ...]]) -> List[tf.Tensor]:
    """All passes of convolutions, each given by its input, kernel and upstream."""
    made = []
    for number, (x, w, dy) in enumerate(values):
        made.append(tf.nn.conv2d(x, w, 1, "SAME"))
        made.append(
            tf.raw_ops.Conv2DBackpropFilter(
                input=x,
                filter_sizes=tf.shape(w),
                out_backprop=dy,
                strides=STRIDES,
                padding="SAME",
            )
        )
        if number > 0:
            made.append(
                tf.raw_ops.Conv2DBackpropInput(
                    input_sizes=tf.shape(x),
                    filter=w,
                    out_backprop=dy,
                    strides=STRIDES,
                    padding="SAME",
                )
            )
    # One value of each, so that nothing is left out and nothing is copied.
    return [tf.reshape(value, [-1])[0] for value in made]


def matrix_product() -> Tuple[Callable[[], None], float]:
    """A large matrix product, and its FLOPs."""
    left, right = (tf.random.normal([MATRIX_SIDE, MATRIX_SIDE]) for _ in range(2))

    @tf.function
    def run(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(a, b)[0, 0]

    return lambda: _finish([run(left, right)]), 2.0 * MATRIX_SIDE**3


def _finish(values: Sequence[tf.Tensor]) -> None:
    for value in values:  # Reading a value waits for it.
        value.numpy()


def _random_values(shape: ConvShape, batch: int) -> Tuple[tf.Tensor, ...]:
    image = [batch, shape.side, shape.side]
    return (
        tf.random.normal([*image, shape.inputs]),
        tf.random.normal([shape.kernel, shape.kernel, shape.inputs, shape.outputs]),
        tf.random.normal([*image, shape.outputs]),
    )
