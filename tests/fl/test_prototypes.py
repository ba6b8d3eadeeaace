"""Tests of eqs. (2), (6), (7) and the two distances against closed forms."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import pytest
import tensorflow as tf

from fl import prototypes
from fl.types import Prototypes

DISTANCES = pytest.mark.parametrize("distance", ["mean_squared", "euclidean"])


def sets(values: Any, present: Any) -> Prototypes:
    return Prototypes(
        values=tf.constant(values, tf.float32),
        present=tf.constant(np.asarray(present, bool)),
    )


def random_case(seed: int = 0) -> Tuple[tf.Tensor, Prototypes]:
    """Four embeddings [4, 5] and two helpers [2, 3, 5] that have every class."""
    rng = np.random.default_rng(seed)
    helpers = sets(rng.normal(size=(2, 3, 5)), np.ones((2, 3), bool))
    return tf.constant(rng.normal(size=(4, 5)), tf.float32), helpers


def numpy_distances(z: np.ndarray, c: np.ndarray, distance: str) -> np.ndarray:
    """d(z, c) written as loops over both."""
    return np.array(
        [
            [
                np.mean((a - b) ** 2)
                if distance == "mean_squared"
                else np.linalg.norm(a - b)
                for b in c
            ]
            for a in z
        ]
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


# --- Eq. (2) -----------------------------------------------------------------
def test_prototype_is_the_mean_of_its_class() -> None:
    """Class 0: ((1,2) + (3,6)) / 2 = (2,4); class 2: (5,7) alone; class 1 has none."""
    made = prototypes.class_prototypes(
        tf.constant([[1.0, 2.0], [5.0, 7.0], [3.0, 6.0]]), tf.constant([0, 2, 0]), 4
    )
    np.testing.assert_array_equal(made.values, [[2, 4], [0, 0], [5, 7], [0, 0]])
    np.testing.assert_array_equal(made.present, [True, False, True, False])


def test_no_image_makes_no_prototype() -> None:
    made = prototypes.class_prototypes(
        tf.zeros([0, 3]), tf.zeros([0], tf.int32), num_classes=2
    )
    np.testing.assert_array_equal(made.values, np.zeros([2, 3]))
    np.testing.assert_array_equal(made.present, [False, False])


def test_each_image_gets_its_share_of_the_gradient() -> None:
    """c_0 = (a + b) / 2 and c_1 = e, so d(3 c_0 + 5 c_1) is 1.5, 1.5 and 5."""
    embeddings = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        made = prototypes.class_prototypes(embeddings, tf.constant([0, 0, 1]), 2)
        total = 3.0 * made.values[0, 0] + 5.0 * made.values[1, 0]
    np.testing.assert_allclose(tape.gradient(total, embeddings), [[1.5], [1.5], [5.0]])


# --- Algorithm 2 -------------------------------------------------------------
def test_mean_of_helpers_counts_only_those_that_have_the_class() -> None:
    """Class 0: (2 + 4) / 2 = 3; class 1: 8 alone, the 100 is masked; class 2: none."""
    mean = prototypes.mean_prototypes(
        sets([[[2], [8], [0]], [[4], [100], [0]]], [[1, 1, 0], [1, 0, 0]])
    )
    np.testing.assert_array_equal(mean.values, [[3], [8], [0]])
    np.testing.assert_array_equal(mean.present, [True, True, False])


# --- Distances ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("distance", "expected"), [("mean_squared", 12.5), ("euclidean", 5.0)]
)
def test_distances_of_a_3_4_5_triangle(distance: str, expected: float) -> None:
    """(9 + 16) / 2 dimensions = 12.5; the root of 9 + 16 = 5."""
    found = prototypes.distances(
        tf.constant([[0.0, 0.0]]), tf.constant([[3.0, 4.0], [0.0, 0.0]]), distance
    )
    np.testing.assert_allclose(found, [[expected, 0.0]])


@DISTANCES
def test_distances_of_many_sets_and_points(distance: str) -> None:
    z, helpers = random_case()
    found = prototypes.distances(z, helpers.values, distance)
    assert found.shape == (2, 4, 3)
    for helper, values in enumerate(helpers.values.numpy()):
        np.testing.assert_allclose(
            found[helper], numpy_distances(z.numpy(), values, distance), rtol=1e-5
        )


def test_slope_of_the_mean_squared_distance() -> None:
    """The gradient of the mean of (z - c)^2 is 2 (z - c) / D, and its negative."""
    z, helpers = random_case()
    values = helpers.values[0]
    with tf.GradientTape() as tape:
        tape.watch([z, values])
        distance = prototypes.distances(z, values, "mean_squared")
    for_z, for_values = tape.gradient(distance, [z, values])
    gaps = z.numpy()[:, np.newaxis] - values.numpy()  # [4, 3, 5]
    np.testing.assert_allclose(for_z, 2 * gaps.sum(axis=1) / 5, rtol=1e-5)
    np.testing.assert_allclose(for_values, -2 * gaps.sum(axis=0) / 5, rtol=1e-5)


@DISTANCES
def test_what_all_points_have_in_common_costs_no_precision(distance: str) -> None:
    """A thousand in every dimension, whose square would swallow distances near 1."""
    z, helpers = random_case()
    far, values = z + 1000.0, helpers.values + 1000.0
    expected = numpy_distances(far.numpy(), values[0].numpy(), distance)
    found = prototypes.distances(far, values, distance)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@DISTANCES
def test_no_point_gives_no_distance_and_no_gradient(distance: str) -> None:
    values = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        found = prototypes.distances(tf.zeros([0, 2]), values, distance)
    assert found.shape == (0, 2)
    np.testing.assert_array_equal(tape.gradient(found, values), np.zeros([2, 2]))


def test_euclidean_distance_has_slope_one_away_from_the_prototype() -> None:
    """The gradient of ||z - c|| is (z - c) / ||z - c|| = (0.6, 0.8)."""
    z = tf.Variable([[3.0, 4.0]])
    with tf.GradientTape() as tape:
        distance = prototypes.distances(z, tf.zeros([1, 2]), "euclidean")
    np.testing.assert_allclose(tape.gradient(distance, z), [[0.6, 0.8]], rtol=1e-6)


def test_euclidean_distance_of_a_point_to_itself_has_no_gradient() -> None:
    z = tf.Variable([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        distance = prototypes.distances(z, tf.constant([[1.0, 2.0]]), "euclidean")
    assert distance.numpy() == 0.0
    np.testing.assert_array_equal(tape.gradient(distance, z), [[0.0, 0.0]])


# --- Eq. (6) -----------------------------------------------------------------
@DISTANCES
def test_probabilities_are_the_softmax_of_minus_distance(distance: str) -> None:
    z, helpers = random_case()
    found = prototypes.prototype_probs(z, helpers, distance)
    for helper, values in enumerate(helpers.values.numpy()):
        expected = softmax(-numpy_distances(z.numpy(), values, distance))
        np.testing.assert_allclose(found[helper], expected, rtol=1e-5)


def test_two_prototypes_give_a_logistic_function() -> None:
    """Distances 0 and 3: p_0 = 1 / (1 + e^-3)."""
    z, c = tf.zeros([1, 1]), sets([[0.0], [3.0]], [True, True])
    found = prototypes.prototype_probs(z, c, "euclidean")
    p = 1.0 / (1.0 + np.exp(-3.0))
    np.testing.assert_allclose(found, [[p, 1.0 - p]], rtol=1e-6)


@DISTANCES
def test_absent_class_has_probability_exactly_zero(distance: str) -> None:
    """The absent class lies on the point; the rest is a softmax of what is present."""
    z, helpers = random_case()
    values = helpers.values.numpy()[0]
    values[1] = z.numpy()[0]
    found = prototypes.prototype_probs(z, sets(values, [1, 0, 1]), distance).numpy()
    np.testing.assert_array_equal(found[:, 1], np.zeros(4))
    expected = softmax(-numpy_distances(z.numpy(), values[[0, 2]], distance))
    np.testing.assert_allclose(found[:, [0, 2]], expected, rtol=1e-5)


@DISTANCES
def test_nothing_present_gives_zeros_and_no_gradient(distance: str) -> None:
    z = tf.Variable(tf.zeros([2, 3]))
    with tf.GradientTape() as tape:
        probs = prototypes.prototype_probs(
            z, sets(np.zeros((4, 3)), np.zeros(4, bool)), distance
        )
    np.testing.assert_array_equal(probs, np.zeros((2, 4)))
    np.testing.assert_array_equal(tape.gradient(probs, z), np.zeros((2, 3)))


@DISTANCES
def test_absent_prototype_gets_no_gradient(distance: str) -> None:
    z, helpers = random_case()
    values = tf.Variable(helpers.values[0])
    with tf.GradientTape() as tape:
        own = Prototypes(values=values, present=tf.constant([True, False, True]))
        logits = prototypes.class_logits(z, own, distance)
        loss = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 0])
    gradient = tape.gradient(loss, values).numpy()
    np.testing.assert_array_equal(gradient[1], np.zeros(5))
    assert np.abs(gradient[[0, 2]]).min() > 0


def test_far_prototypes_do_not_overflow() -> None:
    """exp(-1e6) is 0 in float32, of all of them; the nearest still gets all mass."""
    c = sets([[1000.0], [1001.0]], [True, True])
    found = prototypes.prototype_probs(tf.zeros([1, 1]), c, "mean_squared")
    np.testing.assert_array_equal(found, [[1.0, 0.0]])


# --- Eq. (7) -----------------------------------------------------------------
@DISTANCES
def test_helper_mean_is_the_mean_of_eq_6(distance: str) -> None:
    z, helpers = random_case()
    expected = np.mean(
        [
            softmax(-numpy_distances(z.numpy(), values, distance))
            for values in helpers.values.numpy()
        ],
        axis=0,
    )
    found = prototypes.helper_mean_probs(z, helpers, distance)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@DISTANCES
def test_empty_helper_slots_do_not_count(distance: str) -> None:
    z, helpers = random_case()
    padded = sets(
        np.concatenate([helpers.values, np.zeros((3, 3, 5))]),
        np.concatenate([helpers.present, np.zeros((3, 3), bool)]),
    )
    np.testing.assert_allclose(
        prototypes.helper_mean_probs(z, padded, distance),
        prototypes.helper_mean_probs(z, helpers, distance),
        rtol=1e-6,
    )


def test_helper_that_lacks_a_class_votes_zero_for_it() -> None:
    """Helper A has both classes at the point: (1/2, 1/2). B has class 0: (1, 0).

    Their mean is (3/4, 1/4).
    """
    helpers = sets(np.zeros((2, 2, 1)), [[1, 1], [1, 0]])
    found = prototypes.helper_mean_probs(tf.zeros([1, 1]), helpers, "euclidean")
    np.testing.assert_allclose(found, [[0.75, 0.25]])


def test_no_helper_at_all_gives_zeros() -> None:
    for count in (0, 2):
        empty = sets(np.zeros((count, 3, 5)), np.zeros((count, 3), bool))
        found = prototypes.helper_mean_probs(tf.ones([4, 5]), empty, "mean_squared")
        np.testing.assert_array_equal(found, np.zeros((4, 3)))
