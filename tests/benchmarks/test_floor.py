"""The floor's shapes and count of work."""

from __future__ import annotations

from collections import Counter

import tensorflow as tf

from benchmarks import floor
from benchmarks.floor import ConvShape
from models.builder import build_model


def test_convolutions_of_the_network_and_their_work() -> None:
    """Two per multiply-add: ResNet8's eight convolutions take 0.7582 GFLOP an image."""
    shapes = floor.conv_shapes(build_model("res9", (32, 32, 3)))
    assert shapes[0] == ConvShape(side=32, kernel=3, inputs=3, outputs=64)
    assert shapes[-1] == ConvShape(side=4, kernel=3, inputs=512, outputs=512)
    assert len(shapes) == 8
    by_hand = (
        2
        * 9
        * (
            1024 * (3 * 64 + 64 * 128)
            + 256 * (2 * 128 * 128 + 128 * 256)
            + 64 * 256 * 512
            + 16 * 2 * 512 * 512
        )
    )
    assert sum(s.flops(1) for s in shapes) == by_hand
    first = 2 * 9 * 1024 * 3 * 64
    assert floor.training_flops(shapes, 2) == 2 * (3 * by_hand - first)


def test_every_pass_runs_but_the_input_gradient_of_the_first() -> None:
    shapes = [ConvShape(4, 3, 2, 3), ConvShape(4, 3, 3, 2), ConvShape(2, 1, 2, 2)]
    floor.convolutions(shapes, batch=2)()
    values = [floor._random_values(shape, 2) for shape in shapes]
    graph = tf.function(floor.passes).get_concrete_function(values).graph
    kinds = Counter(op.type for op in graph.get_operations())
    found = {kind: n for kind, n in kinds.items() if kind.startswith("Conv2D")}
    expected = {"Conv2D": 3, "Conv2DBackpropFilter": 3, "Conv2DBackpropInput": 2}
    assert found == expected


def test_the_matrix_product_and_its_work() -> None:
    run, flops = floor.matrix_product()
    run()
    assert flops == 2 * 3072**3
