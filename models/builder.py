"""Builds any network of `models.specs` as a functional Keras model.

Every kernel starts at zero, so that building draws no random number and is quick enough
to be repeated inside a computation; the weights always come from
`models.init.initial_weights` or from a checkpoint.

The ResNets have biases in every convolution, as the authors' program does, in front of
a norm too (FedMatch asks for none). The wide network has them only without a norm: a
norm subtracts them again, and the literature counts its parameters without.

Keras keeps two sets of base classes and swaps them for the whole process: building in
a plain `tf.Graph`, where TensorFlow Federated traces its computations, leaves models
built eagerly before unusable until one of the same layers is built eagerly again. So
build the eager model after the computations are traced, or call it only through a
`tf.function` traced before. In a plain graph, train inside a `tf.function`: nothing
else makes sure that the moving statistics of batch norm are updated.
"""

from __future__ import annotations

import functools
from typing import Optional, Tuple

import attr
import tensorflow as tf

from models import convolution, specs

_BN_MOMENTUM = 0.99
_NORM_EPSILON = 1e-3
_GN_GROUPS = 32
_LEAK = 0.1


@attr.frozen
class _Setting:
    """What all steps of one network share: norm, pool sizes, whether with biases."""

    norm: str
    pools: Tuple[int, ...]
    use_bias: bool

    @property
    def wide_bias(self) -> bool:
        """Whether the wide network's convolutions have biases."""
        return self.use_bias and self.norm == "none"


def build_model(
    name: str,
    image_shape: Tuple[int, int, int],
    norm: str = "none",
    num_classes: Optional[int] = None,
    use_bias: bool = True,
) -> tf.keras.Model:
    """Builds a network with zero kernels and biases and norms at their defaults.

    Args:
        name: A key of `specs.MODELS`.
        image_shape: Height, width and channels of an image.
        norm: One of `specs.NORMS`.
        num_classes: Number of classes of the last dense layer; None leaves it out.
        use_bias: Whether convolutions and the dense layer have biases.

    Returns:
        A model from images [B, height, width, channels] to embeddings [B, D], or to
        logits [B, num_classes] if a number of classes is given.

    Raises:
        ValueError: If the name or norm is unknown or the pools do not fit the images.
    """
    spec = specs.network_spec(name)
    setting = _Setting(
        specs.check_norm(norm), specs.pool_sizes(name, image_shape), use_bias
    )
    inputs = tf.keras.Input(image_shape, name="images")
    x = inputs
    for number, step in enumerate(spec.steps, start=1):
        x = _apply_step(x, step, setting, f"step{number}")
    if len(x.shape) > 2:
        x = tf.keras.layers.Flatten(name="embedding")(x)  # [B, D]
    if num_classes is not None:
        x = _dense(x, num_classes, use_bias)  # [B, K]
    return tf.keras.Model(inputs, x, name=name)


def _apply_step(
    x: tf.Tensor, step: specs.Step, setting: _Setting, name: str
) -> tf.Tensor:
    if isinstance(step, specs.Conv):
        return _conv_block(x, step.width, setting, name, step.pool_stage)
    if isinstance(step, specs.Residual):
        return _residual(x, step, setting, name)
    if isinstance(step, specs.Projection):
        return _conv(x, step.width, name, size=1, use_bias=setting.use_bias)
    if isinstance(step, specs.WideStem):
        return _conv(x, step.width, name, use_bias=setting.wide_bias)
    if isinstance(step, specs.WideGroup):
        return _wide_group(x, step, setting, name)
    if isinstance(step, specs.WideTail):
        x = _norm_leaky_relu(x, setting, name)
        return tf.keras.layers.GlobalAveragePooling2D(name="embedding")(x)
    raise TypeError(f"The builder knows no step of type {type(step).__name__}.")


def _conv_block(
    x: tf.Tensor,
    width: int,
    setting: _Setting,
    name: str,
    pool_stage: Optional[int] = None,
) -> tf.Tensor:
    """Convolution, norm, ReLU and pool, the last two in the cheaper order.

    ReLU never decreases, so the largest value of a window is the same before and after
    it, and so is its place wherever that value is positive; elsewhere the gradient is
    zero. Pooling first therefore changes neither values nor gradients and leaves ReLU
    a fraction of the positions.
    """
    x = _conv(x, width, name, use_bias=setting.use_bias)
    x = _norm(x, setting.norm, name)
    x = _pool(x, setting, name, pool_stage)
    return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


def _residual(
    x: tf.Tensor, step: specs.Residual, setting: _Setting, name: str
) -> tf.Tensor:
    branch = x
    for number in range(1, step.length + 1):
        branch = _conv_block(branch, step.width, setting, f"{name}_{number}")
    x = tf.keras.layers.Add(name=f"{name}_sum")([x, branch])
    return _pool(x, setting, name, step.pool_stage)


def _wide_group(
    x: tf.Tensor, step: specs.WideGroup, setting: _Setting, name: str
) -> tf.Tensor:
    for number in range(1, step.blocks + 1):
        first = number == 1
        x = _wide_block(
            x,
            step.width,
            setting,
            f"{name}_{number}",
            stride=step.stride if first else 1,
            shared_activation=first and step.shared_activation,
        )
    return x


def _wide_block(
    x: tf.Tensor,
    width: int,
    setting: _Setting,
    name: str,
    stride: int,
    shared_activation: bool,
) -> tf.Tensor:
    bias = setting.wide_bias
    branch = _norm_leaky_relu(x, setting, f"{name}_a")
    shortcut = branch if shared_activation else x
    branch = _conv(branch, width, f"{name}_a", stride=stride, use_bias=bias)
    branch = _norm_leaky_relu(branch, setting, f"{name}_b")
    branch = _conv(branch, width, f"{name}_b", use_bias=bias)
    if shortcut.shape[-1] != width:
        shortcut = _conv(
            shortcut, width, f"{name}_skip", size=1, stride=stride, use_bias=bias
        )
    return tf.keras.layers.Add(name=f"{name}_sum")([shortcut, branch])


def _conv(
    x: tf.Tensor,
    width: int,
    name: str,
    size: int = 3,
    stride: int = 1,
    use_bias: bool = True,
) -> tf.Tensor:
    """A convolution, computed by `models.convolution`."""
    layer = tf.keras.layers.Conv2D(
        width,
        size,
        strides=stride,
        padding="same",
        use_bias=use_bias,
        kernel_initializer="zeros",
        name=f"{name}_conv",
    )
    # No class of its own: the network is saved and read as plain Keras layers.
    layer.call = functools.partial(_convolve, layer)
    return layer(x)


def _convolve(layer: tf.keras.layers.Conv2D, images: tf.Tensor) -> tf.Tensor:
    bias = layer.bias if layer.use_bias else None
    return convolution.convolve(images, layer.kernel, bias, layer.strides[0])


def _dense(x: tf.Tensor, width: int, use_bias: bool) -> tf.Tensor:
    layer = tf.keras.layers.Dense(
        width, use_bias=use_bias, kernel_initializer="zeros", name="logits"
    )
    return layer(x)


def _norm(x: tf.Tensor, norm: str, name: str) -> tf.Tensor:
    """Applies a normalisation; `sbn` is `bn` that keeps the last batch's statistics."""
    if norm == "none":
        return x
    name = f"{name}_{norm}"
    if norm == "gn":
        # A narrow layer has no 32 groups to make: each channel is then its own.
        layer = tf.keras.layers.GroupNormalization(
            groups=min(_GN_GROUPS, x.shape[-1]), epsilon=_NORM_EPSILON, name=name
        )
    else:
        layer = tf.keras.layers.BatchNormalization(
            momentum=0.0 if norm == "sbn" else _BN_MOMENTUM,
            epsilon=_NORM_EPSILON,
            name=name,
        )
    return layer(x)


def _norm_leaky_relu(x: tf.Tensor, setting: _Setting, name: str) -> tf.Tensor:
    x = _norm(x, setting.norm, name)
    return tf.keras.layers.LeakyReLU(alpha=_LEAK, name=f"{name}_relu")(x)


def _pool(
    x: tf.Tensor, setting: _Setting, name: str, stage: Optional[int]
) -> tf.Tensor:
    if stage is None or setting.pools[stage - 1] == 1:
        return x
    size = setting.pools[stage - 1]
    return tf.keras.layers.MaxPool2D(size, name=f"{name}_pool")(x)
