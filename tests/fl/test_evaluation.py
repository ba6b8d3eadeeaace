"""Tests of evaluation: which images count, the score by prototypes, the matrix."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
import tensorflow as tf

from fl import evaluation
from fl.evaluation import Evaluation
from fl.types import Prototypes


class ByBrightness:
    """Predicts the pixel's value as the class and takes image number as the loss."""

    def __init__(self) -> None:
        self.seen: List[int] = []
        self.batches: List[int] = []

    def __call__(
        self, images: np.ndarray, labels: np.ndarray
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        self.seen += [int(n) for n in images[:, 0, 0, 1]]
        self.batches.append(len(images))
        predictions = tf.constant(images[:, 0, 0, 0], tf.int32)
        return predictions, tf.constant(images[:, 0, 0, 1], tf.float32)


def numbered_images(classes: List[int]) -> np.ndarray:
    """Pixel 0 is the class to be predicted, pixel 1 the image's own number."""
    pixels = np.stack([classes, np.arange(len(classes))], axis=-1)
    return pixels.astype(np.uint8)[:, np.newaxis, np.newaxis, :]


@pytest.mark.parametrize(
    ("per_class", "used"), [(20, 20), (25, 20), (19, 10), (10, 10), (9, 9), (1, 1)]
)
def test_remainder_of_ten_equal_chunks_is_dropped(per_class: int, used: int) -> None:
    """Ten chunks of q = n // 10 images of each class; all of them where q is 0."""
    rows = np.arange(2 * per_class).reshape(2, per_class)
    score = ByBrightness()
    found = evaluation.evaluate(score, numbered_images([0] * 2 * per_class), rows)
    assert score.seen == [*rows[0, :used], *rows[1, :used]]
    np.testing.assert_array_equal(found.labels, [0] * used + [1] * used)
    assert found.accuracy == 0.5


def test_mean_over_chunks_is_the_mean_over_images() -> None:
    """Theirs averages ten chunk means, chunk i having images iq..(i+1)q-1 of each."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(75).reshape(3, 25)
    classes = rng.integers(0, 3, 75)
    images = numbered_images(classes.tolist())
    found = evaluation.evaluate(ByBrightness(), images, rows)
    chunks = [rows[:, 2 * i : 2 * i + 2] for i in range(10)]
    right = [np.mean(classes[c] == np.arange(3)[:, None]) for c in chunks]
    np.testing.assert_allclose(found.accuracy, np.mean(right))
    np.testing.assert_allclose(found.loss, np.mean([c.mean() for c in chunks]))


def test_images_pass_in_batches_and_come_back_in_order() -> None:
    rows = np.arange(520).reshape(2, 260) % 256
    classes = np.random.default_rng(1).integers(0, 2, 256)
    score = ByBrightness()
    found = evaluation.evaluate(score, numbered_images(classes.tolist()), rows)
    assert score.batches == [evaluation.EVALUATION_BATCH] * 2 + [20]
    np.testing.assert_array_equal(found.predictions, classes[rows.reshape(-1)])
    assert found.accuracy == np.mean(classes[rows] == [[0], [1]])


# --- Score by prototypes -----------------------------------------------------
def first_pixels() -> tf.keras.Model:
    """Embeds an image as its pixels; dropout shows whether it runs in training."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([1, 2, 1]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.9),
        ]
    )


def black_and_white() -> tf.Tensor:
    """Two images that embed as (0, 0) and (1, 1)."""
    return tf.constant([[[[0], [0]]], [[[255], [255]]]], tf.uint8)


def test_score_is_the_mean_over_prototype_sets() -> None:
    """Set A has classes at (0,0), (1,1); set B at (1,1), (0,1/2).

    From (0,0) the distances are 0, sqrt 2 and sqrt 2, 1/2; from (1,1) they are sqrt 2,
    0 and 0, sqrt 1.25. For two classes softmax(-d)_0 = 1 / (1 + e^(d_0 - d_1)).
    """
    sets = Prototypes(
        values=tf.constant([[[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.5]]]),
        present=tf.ones([2, 2], tf.bool),
    )
    predictions, losses = evaluation.score_with_prototypes(
        first_pixels(), sets, black_and_white(), tf.constant([0, 0]), "euclidean"
    )
    root = np.sqrt(2.0)
    dark = [[0, root], [root, 0.5]]
    light = [[root, 0], [0, np.sqrt(1.25)]]
    p = [np.mean([1 / (1 + np.exp(a - b)) for a, b in d]) for d in (dark, light)]
    np.testing.assert_allclose(losses, -np.log(p), rtol=1e-5)
    np.testing.assert_array_equal(predictions, [0 if q > 0.5 else 1 for q in p])
    assert predictions.dtype == tf.int32


def test_loss_is_that_of_keras_on_given_probabilities() -> None:
    """Clipped, then renormalised: a class nobody has costs log((1 - 1e-7) * 1e7)."""
    sets = Prototypes(
        values=tf.constant([[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]),
        present=tf.constant([[True, True, False]]),
    )
    near = 1.0 / (1.0 + np.exp(-1.0))
    probs = tf.constant([[near, 1 - near, 0.0], [1 - near, near, 0.0]], tf.float32)
    for label in range(3):
        labels = tf.constant([label, label])
        _, losses = evaluation.score_with_prototypes(
            first_pixels(), sets, black_and_white(), labels, "mean_squared"
        )
        expected = tf.keras.losses.sparse_categorical_crossentropy(labels, probs)
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(losses, [-np.log(1e-7)] * 2, rtol=1e-6)


def test_renormalising_after_clipping_shows_where_no_set_has_any_class() -> None:
    """All zeros are clipped to 1e-7 each and scaled to 1/3: the loss is log 3."""
    sets = Prototypes(values=tf.zeros([0, 3, 2]), present=tf.zeros([0, 3], tf.bool))
    _, losses = evaluation.score_with_prototypes(
        first_pixels(), sets, black_and_white(), tf.constant([0, 2]), "euclidean"
    )
    np.testing.assert_allclose(losses, np.log([3.0, 3.0]), rtol=1e-6)


def test_confusion_matrix_counts_truth_by_prediction() -> None:
    made = Evaluation(
        accuracy=0.6,
        loss=0.0,
        labels=np.array([0, 0, 0, 1, 2]),
        predictions=np.array([0, 2, 2, 1, 0]),
    )
    matrix = evaluation.confusion_matrix(made, 4)
    expected = [[1, 0, 2, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(matrix, expected)
