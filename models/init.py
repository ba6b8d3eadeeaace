"""Initial weights, drawn in NumPy so that a seed gives the same on any machine.

Two recipes: `default` is what Keras would draw for these networks, in distribution;
`numpy:SEED` is a fixed recipe with which other programs can be given equal weights.
TensorFlow is not imported: a model is asked for nothing but its weights' names and
shapes, so this also works where variables have no value yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

import attr
import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

Shape = Tuple[int, ...]

# Standard deviation of a standard normal cut at two standard deviations; dividing by it
# gives the cut distribution the variance asked for.
_TRUNCATED_STD = 0.87962566103423978
_CUT = 2.0

# Keeps these draws apart from other uses of the same seed.
_STREAM = 0x1217


@attr.frozen
class Init:
    """A recipe for initial weights.

    Attributes:
        seed: The recipe's own seed; None for `default`, which takes the run's seed.
    """

    seed: Optional[int] = None


def parse_init(text: str) -> Init:
    """Reads a recipe: `default` or `numpy:SEED`.

    Raises:
        ValueError: If the text is neither.
    """
    if text == "default":
        return Init()
    found = re.fullmatch(r"numpy:([0-9]+)", text)
    if found is None or int(found.group(1)) >= 2**32:
        raise ValueError(
            f"--init={text} is not understood; give `default` or `numpy:SEED` "
            "with a seed from 0 to 4294967295, such as numpy:7."
        )
    return Init(int(found.group(1)))


def initial_weights(model: tf.keras.Model, init: str, seed: int) -> List[np.ndarray]:
    """Draws a model's initial weights.

    Kernels are drawn in forward order from one generator; biases, offsets and moving
    means are zero, scales and moving variances one. A norm or a last dense layer
    therefore leaves the convolutions' kernels as they are without it.

    Args:
        model: A model of `models.builder`; its present values play no part.
        init: A recipe as `parse_init` reads it.
        seed: The run's seed, not negative; `numpy:SEED` does not use it.

    Returns:
        float32 arrays in the order of `model.get_weights()`.
    """
    draw = _kernel_source(parse_init(init), seed)
    return [_initial_value(weight, draw) for weight in model.weights]


def _kernel_source(init: Init, seed: int) -> Callable[[Shape], np.ndarray]:
    if init.seed is not None:
        rng = np.random.RandomState(init.seed)
        return lambda shape: _he_normal(shape, rng)
    # RandomState because NumPy promises never to change its draws.
    bits = np.random.MT19937(np.random.SeedSequence([seed, _STREAM]))
    rng = np.random.RandomState(bits)
    return lambda shape: _keras_default(shape, rng)


def _initial_value(
    weight: tf.Variable, draw: Callable[[Shape], np.ndarray]
) -> np.ndarray:
    kind = weight.name.split("/")[-1].split(":")[0]
    shape = tuple(int(size) for size in weight.shape)
    if kind == "kernel":
        return draw(shape).astype(np.float32)
    if kind in ("gamma", "moving_variance"):
        return np.ones(shape, np.float32)
    if kind in ("bias", "beta", "moving_mean"):
        return np.zeros(shape, np.float32)
    raise ValueError(f"There is no initial value for a weight named {weight.name}.")


def _fan_in(shape: Shape) -> int:
    return int(np.prod(shape[:-1]))


def _he_normal(shape: Shape, rng: np.random.RandomState) -> np.ndarray:
    return rng.standard_normal(shape) * np.sqrt(2.0 / _fan_in(shape))


def _keras_default(shape: Shape, rng: np.random.RandomState) -> np.ndarray:
    """Glorot uniform for dense kernels, else variance scaling (scale 1, fan in)."""
    if len(shape) == 2:
        limit = np.sqrt(6.0 / sum(shape))
        return rng.uniform(-limit, limit, shape)
    std = np.sqrt(1.0 / _fan_in(shape)) / _TRUNCATED_STD
    return std * _truncated_normal(shape, rng)


def _truncated_normal(shape: Shape, rng: np.random.RandomState) -> np.ndarray:
    """Draws standard normal values, each anew until it lies within two deviations."""
    values = rng.standard_normal(shape)
    outside = np.abs(values) > _CUT
    while outside.any():
        values[outside] = rng.standard_normal(int(outside.sum()))
        outside = np.abs(values) > _CUT
    return values
