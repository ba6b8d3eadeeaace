"""Floating point operations of a forward pass, counted layer by layer.

The count is for one image at inference and follows the paper's Table 2 (0.7592 GFLOP
for ResNet9 at 32x32):

* convolution and dense layer: 2 for each multiply-add, 1 for each bias added;
* pools: as many as the window has values, for each output value;
* residual sum: 1 for each addition;
* batch norm (bn, sbn): 2 for each value, a scale and a shift. The moving statistics
  are known beforehand, so both are constants of a channel;
* group norm (gn): 6 for each value. Its statistics are the image's own: 1 for the
  mean, 3 for the variance (subtract, square, add), 2 for scale and shift;
* ReLU, leaky ReLU and flattening: nothing.

The networks of the paper's tables have no norm. In training, batch norm takes its
statistics from the batch and costs as much as group norm; that is not counted.
"""

from __future__ import annotations

import math
from typing import Callable, List, Mapping, Tuple

import attr
import tensorflow as tf

BATCH_NORM_FLOPS = 2
GROUP_NORM_FLOPS = 6


@attr.frozen
class LayerCost:
    """What a layer costs.

    Attributes:
        name: The layer's name in the network.
        kind: Its class in Keras.
        output_shape: Of one image.
        num_weights: Its weights, moving statistics included.
        flops: Operations for one image.
    """

    name: str
    kind: str
    output_shape: Tuple[int, ...]
    num_weights: int
    flops: int


def layer_costs(model: tf.keras.Model) -> List[LayerCost]:
    """Counts the layers of a model of `models.builder`, in forward order.

    Raises:
        TypeError: If the model has a layer of a kind that is not known here.
    """
    return [_layer_cost(layer) for layer in model.layers if _does_something(layer)]


def _does_something(layer: tf.keras.layers.Layer) -> bool:
    return not isinstance(layer, tf.keras.layers.InputLayer)


def _layer_cost(layer: tf.keras.layers.Layer) -> LayerCost:
    kind = type(layer).__name__
    if kind not in _COUNTS:
        raise TypeError(f"There is no count for {layer.name}, a layer of type {kind}.")
    shape = tuple(int(size) for size in layer.output_shape[1:])
    return LayerCost(
        name=layer.name,
        kind=kind,
        output_shape=shape,
        num_weights=layer.count_params(),
        flops=_COUNTS[kind](layer, math.prod(shape)),
    )


def _product(layer: tf.keras.layers.Layer, values: int) -> int:
    """A convolution or dense layer: every output value is a sum over the kernel."""
    inputs_of_a_value = math.prod(layer.kernel.shape[:-1])
    return values * (2 * inputs_of_a_value + int(layer.use_bias))


def _max_pool(layer: tf.keras.layers.Layer, values: int) -> int:
    return values * math.prod(layer.pool_size)


def _mean_pool(layer: tf.keras.layers.Layer, values: int) -> int:
    return values * math.prod(layer.input_shape[1:-1])


def _sum(layer: tf.keras.layers.Layer, values: int) -> int:
    return values * (len(layer.input_shape) - 1)


_COUNTS: Mapping[str, Callable[[tf.keras.layers.Layer, int], int]] = {
    "Conv2D": _product,
    "Dense": _product,
    "MaxPooling2D": _max_pool,
    "GlobalAveragePooling2D": _mean_pool,
    "Add": _sum,
    "BatchNormalization": lambda layer, values: BATCH_NORM_FLOPS * values,
    "GroupNormalization": lambda layer, values: GROUP_NORM_FLOPS * values,
    "ReLU": lambda layer, values: 0,
    "LeakyReLU": lambda layer, values: 0,
    "Flatten": lambda layer, values: 0,
}
