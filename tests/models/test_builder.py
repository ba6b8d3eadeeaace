"""Tests of the builder: shapes, weight order, arithmetic of blocks and norms."""

from __future__ import annotations

import functools
import itertools
from typing import Callable, Iterator, List, Optional, Tuple

import numpy as np
import pytest
import tensorflow as tf

from models import builder, specs
from models.init import initial_weights

CHANNELS = (3, 64, 128, 128, 128, 256, 512, 512, 512)
WIDTHS = tuple(zip(CHANNELS, CHANNELS[1:]))
SIDES = (8, 32, 96)


@functools.cache
def network(
    name: str, side: int = 32, norm: str = "none", classes: Optional[int] = None
) -> tf.keras.Model:
    return builder.build_model(name, (side, side, 3), norm, classes)


def one_step(step: specs.Step, norm: str, shape: Tuple[int, ...]) -> tf.keras.Model:
    """A model of a single step with the pools of 32x32 images."""
    setting = builder._Setting(norm, (2, 2, 2, 4), use_bias=True)
    inputs = tf.keras.Input(shape)
    return tf.keras.Model(inputs, builder._apply_step(inputs, step, setting, "step"))


def identity_kernel(size: int, width: int) -> np.ndarray:
    """A convolution that hands on its input."""
    kernel = np.zeros((size, size, width, width), np.float32)
    kernel[size // 2, size // 2] = np.eye(width)
    return kernel


def images(side: int, count: int = 2) -> tf.Tensor:
    rng = np.random.default_rng(5)
    return tf.constant(rng.random((count, side, side, 3)), tf.float32)


def random_weights(model: tf.keras.Model) -> List[np.ndarray]:
    """Initial kernels with biases of both signs, which zeros would hide."""
    rng = np.random.default_rng(6)
    return [
        weight if weight.ndim > 1 else rng.normal(0, 0.3, weight.shape)
        for weight in initial_weights(model, "numpy:7", 0)
    ]


def count(variables: List[tf.Variable]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


# --- Sizes -------------------------------------------------------------------


def test_parameter_counts_of_resnet8_and_9() -> None:
    """The paper's 6,563,520 and 6,568,640 are kernels; biases add 2,240, then 10.

    Biases: 64 + 3 * 128 + 256 + 3 * 512 = 2,240; the dense kernel has 512 * 10.
    """
    headless, headed = network("res9"), network("res9", classes=10)
    assert headless.count_params() == 6_565_760
    assert headed.count_params() == 6_570_890
    for model, kernels in ((headless, 6_563_520), (headed, 6_568_640)):
        assert count([w for w in model.weights if len(w.shape) > 1]) == kernels


def test_parameter_count_of_resnet17() -> None:
    """17 convolutions: 9 times the sum of inputs * outputs, and one bias an output.

    3*64 + 4*64^2, 64*128 + 3*128^2, 128*256 + 3*256^2, 256*512 + 3*512^2 sum up to
    1,220,800; outputs are 5*64 + 4*(128 + 256 + 512) = 3,904.
    """
    assert network("res18").count_params() == 9 * 1_220_800 + 3_904


def test_projection_adds_a_1x1_convolution() -> None:
    difference = network("res9_256d").count_params() - network("res9").count_params()
    assert difference == 512 * 256 + 256


def test_wide_network_has_the_parameters_of_the_literature() -> None:
    """WRN-28-2 with 10 classes is known for its 1.467 M trainable parameters.

    Kernels: 432 + 9 * (16*32 + 7*32^2 + 32*64 + 7*64^2 + 64*128 + 7*128^2) + 1x1:
    (16*32 + 32*64 + 64*128) = 1,462,704; norms: 2 * (16 + 7*32 + 32 + 7*64 + 64 +
    7*128 + 128) = 3,616; dense: 1,290. Without norm each of the outputs
    16 + 9 * (32 + 64 + 128) of a convolution has a bias instead: 2,032.
    """
    model = network("wres28x2", 8, "bn", 10)
    assert count(model.trainable_weights) == 1_467_610
    plain = network("wres28x2", 8, classes=10)
    assert plain.count_params() == 1_462_704 + 2_032 + 1_290


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", specs.MODELS)
def test_output_is_one_embedding_an_image(name: str, side: int) -> None:
    model = network(name, side)
    assert model.output_shape == (None, specs.embedding_size(name))


@pytest.mark.parametrize(
    ("name", "norm"), [("res9", "gn"), ("res9", "sbn"), ("wres28x2", "bn")]
)
def test_norms_keep_the_output_shape(name: str, norm: str) -> None:
    model = network(name, 8, norm)
    assert model.output_shape == (None, specs.embedding_size(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norm", "side"), list(itertools.product(specs.MODELS, specs.NORMS, SIDES))
)
def test_every_combination_gives_logits(name: str, norm: str, side: int) -> None:
    model = builder.build_model(name, (side, side, 3), norm, 10)
    assert model.output_shape == (None, 10)
    assert model(images(side, 1)).shape == (1, 10)


def test_grey_images_change_the_first_kernel_only() -> None:
    grey = builder.build_model("res9", (8, 8, 1))
    shapes = [weight.shape for weight in grey.weights]
    assert shapes[0] == (3, 3, 1, 64)
    assert shapes[1:] == [weight.shape for weight in network("res9").weights[1:]]


def test_a_pool_of_one_is_no_layer() -> None:
    def pools(side: int) -> List[Tuple[int, int]]:
        layers = network("res9", side).layers
        kind = tf.keras.layers.MaxPool2D
        assert all(x.padding == "valid" for x in layers if isinstance(x, kind))
        assert all(x.strides == x.pool_size for x in layers if isinstance(x, kind))
        return [layer.pool_size for layer in layers if isinstance(layer, kind)]

    assert pools(8) == [(2, 2)] * 3
    assert pools(96) == [(3, 3), (2, 2), (4, 4), (4, 4)]


def test_wrong_names_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="--model=vgg"):
        builder.build_model("vgg", (32, 32, 3))
    with pytest.raises(ValueError, match="--bn_type=ln"):
        builder.build_model("res9", (32, 32, 3), "ln")
    with pytest.raises(ValueError, match="28x28"):
        builder.build_model("res9", (28, 28, 1))


# --- Weights -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "vectors"), [("none", 1), ("gn", 3), ("bn", 5), ("sbn", 5)]
)
def test_weight_order_is_kernel_then_vectors(norm: str, vectors: int) -> None:
    """Kernel, bias, gamma, beta, moving mean, moving variance; dense last."""
    expected: List[Tuple[int, ...]] = []
    for inputs, outputs in WIDTHS:
        expected += [(3, 3, inputs, outputs)] + [(outputs,)] * vectors
    expected += [(512, 10), (10,)]
    weights = network("res9", 8, norm, 10).get_weights()
    assert [weight.shape for weight in weights] == expected


def test_vectors_of_a_convolution_come_in_the_known_order() -> None:
    names = [w.name.split("/")[-1] for w in network("res9", 8, "bn").weights]
    block = ["kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"]
    assert names == [f"{name}:0" for name in block] * 8


def test_a_new_model_draws_nothing() -> None:
    for weight in network("res9", 8, "bn").get_weights():
        assert weight.ndim == 1 or not weight.any()


def test_building_again_in_a_graph_gives_the_same_variables() -> None:
    """An eager model afterwards, of the same layers, makes the earlier ones usable."""
    eager = network("res9", 8, "bn")
    with tf.Graph().as_default():
        inside = builder.build_model("res9", (8, 8, 3), "bn")
        found = [(weight.name, weight.shape) for weight in inside.weights]
    assert found == [(weight.name, weight.shape) for weight in eager.weights]
    builder.build_model("res9", (8, 8, 3), "bn")
    assert eager(images(8)).shape == (2, 512)


def test_wide_network_has_biases_only_without_norm() -> None:
    def biases(model: tf.keras.Model) -> int:
        return sum("bias" in weight.name for weight in model.weights)

    assert biases(network("wres28x2", 8)) == 28
    assert biases(network("wres28x2", 8, "bn")) == 0


# --- Forward passes, written out -----------------------------------------------


def conv(x: tf.Tensor, weights: Iterator[tf.Tensor], stride: int = 1) -> tf.Tensor:
    x = tf.nn.conv2d(x, next(weights), stride, "SAME")
    return x + next(weights)


def plain_resnet8(weights: Iterator[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """ResNet8 at 32x32 in the textbook order: convolution, ReLU, pool."""

    def block(x: tf.Tensor, pool: int = 1) -> tf.Tensor:
        return tf.nn.max_pool2d(tf.nn.relu(conv(x, weights)), pool, pool, "VALID")

    x = block(block(x), pool=2)
    x = x + block(block(x))
    x = block(block(x, pool=2), pool=2)
    x = x + block(block(x))
    return tf.nn.max_pool2d(x, 4, 4, "VALID")[:, 0, 0, :]


def plain_resnet17(weights: Iterator[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """ResNet17 at 8x8: three pools of 2."""

    def block(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(conv(x, weights))

    x = block(x)
    x = x + block(block(x))
    x = x + block(block(x))
    for _ in range(3):
        x = tf.nn.max_pool2d(block(x), 2, 2, "VALID")
        x = x + block(x)
        x = x + block(block(x))
    return x[:, 0, 0, :]


def plain_wide(weights: Iterator[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """WRN-28-2 without norm; its shortcut's kernel precedes the second one's."""

    def leaky(x: tf.Tensor) -> tf.Tensor:
        return tf.where(x > 0, x, 0.1 * x)

    x = conv(x, weights)
    for group, stride in enumerate((1, 2, 2)):
        branch = leaky(x)
        shortcut = branch if group == 0 else x
        branch = leaky(conv(branch, weights, stride))
        shortcut = conv(shortcut, weights, stride)
        x = shortcut + conv(branch, weights)
        for _ in range(3):
            x = x + conv(leaky(conv(leaky(x), weights)), weights)
    return tf.reduce_mean(leaky(x), axis=(1, 2))


def test_pool_before_relu_equals_the_plain_order_in_values_and_gradients() -> None:
    model = network("res9")
    model.set_weights(random_weights(model))
    x = images(32)
    with tf.GradientTape(persistent=True) as tape:
        ours = model(x, training=True)
        plain = plain_resnet8(iter(model.weights), x)
        ours_loss, plain_loss = tf.reduce_sum(ours**2), tf.reduce_sum(plain**2)
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(
        tape.gradient(ours_loss, model.weights),
        tape.gradient(plain_loss, model.weights),
    ):
        scale = np.abs(other).max()
        assert scale > 0
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-5)


def test_pool_before_relu_is_exact_at_ties_and_below_zero() -> None:
    """Windows with equal maxima, with zeros alone and with negatives alone."""
    x = np.array([[2, 2, 0, 0], [1, 2, 0, 0], [-1, -2, -3, 5], [-1, -4, 5, 0]])
    x = tf.constant(x.reshape(1, 4, 4, 1), tf.float32)
    model = one_step(specs.Conv(1, pool_stage=1), "none", (4, 4, 1))
    model.set_weights([identity_kernel(3, 1), np.zeros(1)])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours = model(x)
        plain = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
    np.testing.assert_array_equal(ours, plain)
    gradient = tape.gradient(ours, x)
    np.testing.assert_array_equal(gradient, tape.gradient(plain, x))
    assert tf.reduce_sum(gradient) == 2


@pytest.mark.parametrize(
    ("name", "plain"), [("res18", plain_resnet17), ("wres28x2", plain_wide)]
)
def test_network_equals_its_forward_pass_written_out(
    name: str, plain: Callable[[Iterator[tf.Tensor], tf.Tensor], tf.Tensor]
) -> None:
    model = network(name, 8)
    model.set_weights(random_weights(model))
    weights = iter(model.weights)
    expected = plain(weights, images(8))
    assert next(weights, None) is None
    np.testing.assert_allclose(model(images(8)), expected, rtol=1e-4, atol=1e-4)


def test_projection_follows_the_last_pool_without_activation() -> None:
    model, inner = network("res9_256d"), network("res9")
    weights = random_weights(model)
    model.set_weights(weights)
    inner.set_weights(weights[:-2])
    expected = inner(images(32)) @ weights[-2][0, 0] + weights[-1]
    assert tf.reduce_min(expected) < 0
    np.testing.assert_allclose(model(images(32)), expected, rtol=1e-4, atol=1e-4)


def test_dense_layer_gives_logits_of_the_embedding() -> None:
    headed, headless = network("res9", classes=10), network("res9")
    weights = random_weights(headed)
    headed.set_weights(weights)
    headless.set_weights(weights[:-2])
    expected = headless(images(32)) @ weights[-2] + weights[-1]
    np.testing.assert_allclose(headed(images(32)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("x", "expected"), [(2.0, 2.0), (-2.0, -2.0), (12.0, 15.0)])
def test_residual_sum_follows_the_second_relu_and_nothing_follows_it(
    x: float, expected: float
) -> None:
    """Convolutions hand on their input; biases are 1 and -10.

    x = 2: relu(relu(3) - 10) = 0, the sum is 2 (ReLU after the sum would give 0 of
    2 - 7). x = -2: the branch is 0 and the sum stays negative. x = 12: 13 - 10 + 12.
    """
    model = one_step(specs.Residual(1), "none", (1, 1, 1))
    kernel = identity_kernel(3, 1)
    model.set_weights([kernel, np.array([1.0]), kernel, np.array([-10.0])])
    assert float(model(tf.fill((1, 1, 1, 1), x))) == expected


# --- Norms -------------------------------------------------------------------


def conv_with_norm(norm: str, x: np.ndarray) -> tf.keras.Model:
    """One block that hands its input on to the norm."""
    model = one_step(specs.Conv(x.shape[-1]), norm, x.shape[1:])
    weights = model.get_weights()
    weights[0] = identity_kernel(3, x.shape[-1])
    model.set_weights(weights)
    return model


def batch(shape: Tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(8).normal(2.0, 3.0, shape).astype(np.float32)


def test_bn_normalises_by_the_batch_and_keeps_the_unbiased_variance() -> None:
    """With n = 3 * 2 * 2 values: output by variance v, moving by v n / (n - 1).

    Moving values start at 0 and 1 and go 1 % of the way (momentum 0.99).
    """
    x = batch((3, 2, 2, 2))
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    model = conv_with_norm("bn", x)
    y = model(x, training=True)
    expected = np.maximum((x - mean) / np.sqrt(var + 1e-3), 0)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    moving_mean, moving_var = model.get_weights()[-2:]
    np.testing.assert_allclose(moving_mean, 0.01 * mean, rtol=1e-4)
    np.testing.assert_allclose(moving_var, 0.99 + 0.01 * var * 12 / 11, rtol=1e-5)


def test_sbn_keeps_the_last_batch_alone() -> None:
    """Momentum 0: a second batch replaces the first, and inference uses it."""
    x = batch((3, 2, 2, 2))
    model = conv_with_norm("sbn", x)
    model(7 * x + 1, training=True)
    model(x, training=True)
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)) * 12 / 11
    moving_mean, moving_var = model.get_weights()[-2:]
    np.testing.assert_allclose(moving_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(moving_var, var, rtol=1e-5)
    expected = np.maximum((x - mean) / np.sqrt(var + 1e-3), 0)
    np.testing.assert_allclose(model(x, training=False), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("norm", "kept"), [("bn", 0.99), ("sbn", 0.0)])
def test_moving_statistics_are_the_same_in_a_plain_graph(
    norm: str, kept: float
) -> None:
    """Computations are traced in plain graphs, where Keras takes another path."""
    x = batch((3, 2, 2, 2))
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)) * 12 / 11
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = one_step(specs.Conv(2), norm, x.shape[1:])

        @tf.function
        def train() -> List[tf.Tensor]:
            model.weights[0].assign(identity_kernel(3, 2))
            model(tf.constant(x), training=True)
            return [weight.read_value() for weight in model.weights[-2:]]

        fetched = train()
        session.run(tf.compat.v1.global_variables_initializer())
        moving_mean, moving_var = session.run(fetched)
    conv_with_norm(norm, x)  # Gives Keras its eager classes back.
    np.testing.assert_allclose(moving_mean, (1 - kept) * mean, rtol=1e-4)
    np.testing.assert_allclose(moving_var, kept + (1 - kept) * var, rtol=1e-5)


@pytest.mark.parametrize(("width", "groups"), [(64, 32), (16, 16)])
def test_gn_normalises_groups_of_channels_within_an_image(
    width: int, groups: int
) -> None:
    """Mean and variance over positions and the group's channels, epsilon 1e-3."""
    x = batch((2, 2, 3, width))
    parts = x.reshape(2, 6, groups, width // groups)
    mean = parts.mean(axis=(1, 3), keepdims=True)
    var = parts.var(axis=(1, 3), keepdims=True)
    expected = np.maximum((parts - mean) / np.sqrt(var + 1e-3), 0).reshape(x.shape)
    model = conv_with_norm("gn", x)
    np.testing.assert_allclose(model(x), expected, rtol=1e-3, atol=1e-4)
    alone = model(x[:1], training=True)
    np.testing.assert_allclose(alone, expected[:1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "norm", "momentum", "norms"),
    [("res9", "sbn", 0.0, 8), ("res18", "bn", 0.99, 17), ("wres28x2", "bn", 0.99, 25)],
)
def test_every_convolution_has_the_chosen_norm(
    name: str, norm: str, momentum: float, norms: int
) -> None:
    """8 and 17 convolutions; the wide network norms 24 inputs and the end."""
    kind = tf.keras.layers.BatchNormalization
    found = [x for x in network(name, 8, norm).layers if isinstance(x, kind)]
    assert len(found) == norms
    assert {layer.momentum for layer in found} == {momentum}
    assert {layer.epsilon for layer in found} == {1e-3}
    assert all(layer.fused for layer in found)


@pytest.mark.parametrize("name", ["res9", "res18", "res9_256d", "wres28x2"])
def test_without_biases_kernels_are_all_there_is(name: str) -> None:
    """FedMatch's networks: as many kernels as before, and nothing else."""
    plain = builder.build_model(name, (32, 32, 3), num_classes=10)
    bare = builder.build_model(name, (32, 32, 3), num_classes=10, use_bias=False)
    kernels = [w.shape for w in plain.weights if w.name.endswith("kernel:0")]
    assert [w.shape for w in bare.weights] == kernels
    assert len(plain.weights) == 2 * len(kernels)
