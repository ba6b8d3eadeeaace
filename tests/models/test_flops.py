"""The count of operations: layers by hand, networks against closed forms."""

from __future__ import annotations

import functools
from typing import Any, Optional

import pytest
import tensorflow as tf

from models import builder, flops, specs

# Sides of the images that the eight convolutions of ResNet9 see, and their channels.
SIDES = (32, 32, 16, 16, 16, 8, 4, 4)
CHANNELS = (3, 64, 128, 128, 128, 256, 512, 512, 512)
CONV_VALUES = sum(side**2 * out for side, out in zip(SIDES, CHANNELS[1:]))


@functools.cache
def count(
    name: str = "res9",
    side: int = 32,
    norm: str = "none",
    classes: Optional[int] = None,
    bias: bool = True,
) -> int:
    model = builder.build_model(name, (side, side, 3), norm, classes, use_bias=bias)
    return sum(cost.flops for cost in flops.layer_costs(model))


def cost_of(layer: tf.keras.layers.Layer, *shapes: Any) -> flops.LayerCost:
    """What a layer alone costs on inputs of the given shapes."""
    inputs = [tf.keras.Input(shape) for shape in shapes]
    model = tf.keras.Model(inputs, layer(inputs[0] if len(inputs) == 1 else inputs))
    (cost,) = flops.layer_costs(model)
    return cost


def test_convolution_with_stride_and_bias() -> None:
    """3x4 outputs of 5 channels, each 2 * (3 * 3 * 2) and a bias: 60 * 37."""
    layer = tf.keras.layers.Conv2D(5, 3, strides=2, padding="same", name="conv")
    cost = cost_of(layer, (6, 8, 2))
    assert cost == flops.LayerCost("conv", "Conv2D", (3, 4, 5), 95, 2220)


def test_no_bias_no_addition() -> None:
    layer = tf.keras.layers.Conv2D(5, 3, padding="same", use_bias=False)
    assert cost_of(layer, (2, 2, 2)).flops == 20 * 36


def test_dense_layer() -> None:
    """10 outputs of 2 * 512 and a bias."""
    assert cost_of(tf.keras.layers.Dense(10), (512,)).flops == 10 * 1025


def test_pools_count_their_window() -> None:
    """2x2 outputs of windows 3x3, 7 channels; the mean over 6x6 of 7 channels."""
    assert cost_of(tf.keras.layers.MaxPool2D(3), (6, 6, 7)).flops == 2 * 2 * 7 * 9
    mean = tf.keras.layers.GlobalAveragePooling2D()
    assert cost_of(mean, (6, 6, 7)).flops == 7 * 36


def test_sum_counts_additions() -> None:
    """One addition a value for two inputs, two for three."""
    for inputs in (2, 3):
        shapes = [(4, 4, 3)] * inputs
        assert cost_of(tf.keras.layers.Add(), *shapes).flops == 48 * (inputs - 1)


@pytest.mark.parametrize(
    ("kind", "operations", "weights"),
    [
        ("BatchNormalization", 2, 4 * 6),
        ("GroupNormalization", 6, 2 * 6),
        ("ReLU", 0, 0),
        ("LeakyReLU", 0, 0),
        ("Flatten", 0, 0),
    ],
)
def test_operations_a_value(kind: str, operations: int, weights: int) -> None:
    options = {"groups": 3} if kind == "GroupNormalization" else {}
    cost = cost_of(getattr(tf.keras.layers, kind)(**options), (4, 4, 6))
    assert cost.flops == operations * 96
    assert cost.num_weights == weights


def test_a_layer_that_nobody_counted_is_refused() -> None:
    with pytest.raises(TypeError, match="Softmax"):
        cost_of(tf.keras.layers.Softmax(), (3,))


def test_resnet9_has_the_paper_count() -> None:
    """0.7592 GFLOP, from the architecture in the paper's appendix.

    Convolutions: side^2 * out * (2 * 9 * in + 1) for its eight. Pools leave 16x16x128,
    8x8x256, 4x4x512 (windows of 4) and 1x1x512 (of 16); residual sums are over
    16x16x128 and 4x4x512 values. The dense layer takes 10 * (2 * 512 + 1).
    """
    convolutions = sum(
        side**2 * out * (18 * into + 1)
        for side, into, out in zip(SIDES, CHANNELS, CHANNELS[1:])
    )
    pools = 4 * (16**2 * 128 + 8**2 * 256 + 4**2 * 512) + 16 * 512
    sums = 16**2 * 128 + 4**2 * 512
    assert count() == convolutions + pools + sums == 759_169_024
    assert count(classes=10) == count() + 10_250
    assert round(count(classes=10) / 1e9, 4) == 0.7592


def test_biases_are_one_addition_an_output() -> None:
    assert count() - count(bias=False) == CONV_VALUES


@pytest.mark.parametrize(("norm", "operations"), [("bn", 2), ("sbn", 2), ("gn", 6)])
def test_norms_add_their_operations(norm: str, operations: int) -> None:
    """Each of the eight convolutions has one, on all its values."""
    assert count(norm=norm) - count() == operations * CONV_VALUES


def test_first_convolutions_grow_with_the_image() -> None:
    """On 96x96 the first two convolutions have nine times the positions."""
    small, large = (
        flops.layer_costs(builder.build_model("res9", (side, side, 3)))
        for side in (32, 96)
    )
    by_name = {cost.name: cost.flops for cost in small}
    for cost in large:
        if cost.name in ("step1_conv", "step2_conv"):
            assert cost.flops == 9 * by_name[cost.name]


def test_weights_of_the_layers_are_the_network_s() -> None:
    model = builder.build_model("res9", (8, 8, 1), "bn", 10)
    costs = flops.layer_costs(model)
    assert sum(cost.num_weights for cost in costs) == model.count_params()
    assert [c.name for c in costs] == [layer.name for layer in model.layers[1:]]


@pytest.mark.parametrize("name", specs.MODELS)
def test_every_network_can_be_counted(name: str) -> None:
    """A norm costs something in each."""
    assert count(name, side=8, norm="gn") > count(name, side=8)
