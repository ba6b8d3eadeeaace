"""Tests of the networks' convolutions: values and gradients against TensorFlow's."""

from __future__ import annotations

from typing import Any, Sequence

import attr
import numpy as np
import pytest
import tensorflow as tf
from convolutions import ROUNDING, error, plain, values, with_gradients

from models import builder, convolution, winograd


@attr.frozen
class Case:
    """The shapes of a convolution."""

    side: int
    size: int
    inputs: int
    outputs: int
    stride: int = 1
    biased: bool = True
    number: int = 3

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        """Of images, kernel and, if there is one, bias."""
        shapes = [
            (self.number, self.side, self.side, self.inputs),
            (self.size, self.size, self.inputs, self.outputs),
            (self.outputs,),
        ]
        return shapes if self.biased else shapes[:2]

    @property
    def shape_out(self) -> Sequence[int]:
        """Of what comes out."""
        side = -(-self.side // self.stride)
        return (self.number, side, side, self.outputs)


@pytest.mark.parametrize(
    "case",
    [
        Case(side=32, size=3, inputs=3, outputs=8),
        Case(side=8, size=3, inputs=5, outputs=7, biased=False),
        Case(side=9, size=3, inputs=5, outputs=7, stride=2),
        Case(side=8, size=1, inputs=5, outputs=7, stride=2),
        Case(side=4, size=1, inputs=6, outputs=3),
        Case(side=8, size=3, inputs=128, outputs=136),
        Case(side=4, size=3, inputs=136, outputs=128, biased=False),
    ],
)
def test_it_is_tensorflows_convolution(case: Case) -> None:
    arrays = [values(*shape) for shape in case.shapes]
    upstream = values(*case.shape_out)
    right = with_gradients(plain, arrays, upstream, case.stride, tf.float64)
    found = with_gradients(convolution.convolve, arrays, upstream, case.stride)
    assert len(found) == len(right) == 1 + len(arrays)
    for ours, exact in zip(found, right):
        assert ours.shape == exact.shape
        assert error(ours, exact) < ROUNDING


def test_gradients_of_a_kernel_are_exactly_zero_where_nothing_meets() -> None:
    """A channel with one value meets an upstream with one value in one tap alone.

    The others must be zero and not rounding: RMSprop makes a full step of anything.
    """
    case = Case(side=8, size=3, inputs=128, outputs=128, number=1)
    images, upstream = np.zeros([2, 1, 8, 8, 128], np.float32)
    images[0, 3, 5, 7], upstream[0, 4, 4, 9] = 0.7, 1.3
    arrays = [images, *(values(*shape) for shape in case.shapes[1:])]
    _, _, of_kernel, of_bias = with_gradients(convolution.convolve, arrays, upstream)
    assert winograd.applies(*case.shapes[:2], 1)
    expected = np.zeros([3, 3, 128, 128])
    expected[0, 2, 7, 9] = 0.7 * 1.3  # One row above, one column to the right.
    np.testing.assert_allclose(of_kernel, expected, rtol=1e-6, atol=0)
    np.testing.assert_allclose(of_bias, 1.3 * (np.arange(128) == 9), rtol=1e-6, atol=0)


def test_no_gradients_of_gradients() -> None:
    """A penalty on the images' gradient would lack a term: an error says so."""
    case = Case(side=4, size=3, inputs=2, outputs=3)
    images, kernel, bias = (tf.constant(values(*shape)) for shape in case.shapes)
    with tf.GradientTape() as outer:
        outer.watch(kernel)
        with tf.GradientTape() as inner:
            inner.watch(images)
            loss = tf.reduce_sum(convolution.convolve(images, kernel, bias, 1) ** 2)
        penalty = tf.reduce_sum(inner.gradient(loss, images) ** 2)
    with pytest.raises(LookupError, match="no gradients of gradients"):
        outer.gradient(penalty, kernel)


@pytest.mark.parametrize("known", [(None, None), (8, 8)])
def test_shapes_may_be_unknown_while_tracing(known: Sequence[Any]) -> None:
    """Nothing is known of the images but their channels, or all but their number."""
    case = Case(side=8, size=3, inputs=128, outputs=128)
    arrays = [values(*shape) for shape in case.shapes]
    upstream = values(*case.shape_out)

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, *known, 128]),
            *(tf.TensorSpec(shape) for shape in case.shapes[1:]),
            tf.TensorSpec([None, *known, 128]),
        ],
    )
    def run(images: Any, kernel: Any, bias: Any, upstream: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([images, kernel, bias])
            made = convolution.convolve(images, kernel, bias, 1)
        return [made, *tape.gradient(made, [images, kernel, bias], upstream)]

    right = with_gradients(plain, arrays, upstream, dtype=tf.float64)
    for ours, exact in zip(run(*arrays, upstream), right):
        assert error(ours.numpy(), exact) < ROUNDING


@pytest.mark.parametrize("channels", [3, 128])
def test_no_images_make_no_outputs_and_zero_gradients(channels: int) -> None:
    case = Case(side=4, size=3, inputs=channels, outputs=channels, number=0)
    arrays = [values(*shape) for shape in case.shapes]
    made, of_images, of_kernel, of_bias = with_gradients(
        convolution.convolve, arrays, values(*case.shape_out)
    )
    assert made.shape == of_images.shape == (0, 4, 4, channels)
    np.testing.assert_array_equal(of_kernel, np.zeros_like(arrays[1]))
    np.testing.assert_array_equal(of_bias, np.zeros(channels))


def test_the_network_is_the_same_by_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def watched(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        computed.append((images.shape[1], *kernel.shape[2:]))
        return convolve(images, kernel)

    convolve = winograd.convolve
    monkeypatch.setattr(winograd, "convolve", watched)
    fast = builder.build_model("res9", (32, 32, 3), "bn")
    assert computed == [
        *((16, 128, 128), (16, 128, 128), (16, 128, 256)),
        *((8, 256, 512), (4, 512, 512), (4, 512, 512)),
    ]
    random = [values(*w.shape) * 0.05 if w.ndim > 1 else w for w in fast.get_weights()]
    fast.set_weights(random)
    images = values(3, 32, 32, 3)
    by_winograd, *gradients = _output_and_gradients(fast, images)
    monkeypatch.setattr(winograd, "applies", lambda *_: False)
    slow = builder.build_model("res9", (32, 32, 3), "bn")
    slow.set_weights(random)
    plainly, *expected = _output_and_gradients(slow, images)
    np.testing.assert_allclose(by_winograd, plainly, rtol=1e-4, atol=1e-5)
    for weight, ours, theirs in zip(fast.trainable_weights, gradients, expected):
        if "conv/bias" not in weight.name:  # Batch norm takes biases out again.
            assert error(ours, theirs) < 1e-4, weight.name


def _output_and_gradients(model: tf.keras.Model, images: np.ndarray) -> Any:
    """A network's output, and the gradients of the sum of its squares."""
    with tf.GradientTape() as tape:
        made = model(images, training=True)
        loss = tf.reduce_sum(tf.square(made))
    return [
        made.numpy(),
        *(g.numpy() for g in tape.gradient(loss, model.trainable_weights)),
    ]


def test_it_is_saved_as_a_plain_layer(tmp_path: Any) -> None:
    image = tf.keras.Input((4, 4, 128))
    model = tf.keras.Model(image, builder._conv(image, 128, "only"))
    model.set_weights([values(3, 3, 128, 128), values(128)])
    model.save(tmp_path / "model.keras", save_format="keras")
    read = tf.keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert type(read.layers[1]) is tf.keras.layers.Conv2D
    assert "call" not in vars(read.layers[1])
    images = values(2, 4, 4, 128)
    np.testing.assert_allclose(read(images), model(images), rtol=1e-3, atol=1e-3)
