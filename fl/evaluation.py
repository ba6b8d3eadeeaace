"""Accuracy and loss of the global model on held-out images."""

from __future__ import annotations

from typing import Callable, Tuple

import attr
import numpy as np
import tensorflow as tf

from fl import losses, prototypes
from fl.local import to_float
from fl.types import Prototypes

EVALUATION_BATCH = 250
# Theirs evaluates in ten equal chunks and drops what does not divide.
CHUNKS = 10

# (images uint8 [B, H, W, C], labels int32 [B]) -> predictions [B], losses [B]
ScoreFn = Callable[[tf.Tensor, tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]


@attr.frozen(eq=False)
class Evaluation:
    """What evaluation gives.

    Attributes:
        accuracy: share of images classified right.
        loss: mean loss.
        labels: true classes [n].
        predictions: predicted classes [n].
    """

    accuracy: float
    loss: float
    labels: np.ndarray
    predictions: np.ndarray


def evaluate(score: ScoreFn, images: np.ndarray, rows: np.ndarray) -> Evaluation:
    """Scores held-out images.

    Args:
        score: the method's score function.
        images: uint8, all images.
        rows: int [K, n], for each class the indices of its images. Of n, the largest
            multiple of ten is used, as in the authors' program; all if n < 10.
    """
    used = rows[:, : rows.shape[1] - rows.shape[1] % CHUNKS or None]
    indices = used.reshape(-1)
    labels = np.repeat(np.arange(len(rows), dtype=np.int32), used.shape[1])
    predictions, loss_values = [], []
    for start in range(0, len(indices), EVALUATION_BATCH):
        batch = slice(start, start + EVALUATION_BATCH)
        predicted, loss = score(images[indices[batch]], labels[batch])
        predictions.append(np.asarray(predicted))
        loss_values.append(np.asarray(loss, np.float64))
    guesses = np.concatenate(predictions)
    return Evaluation(
        accuracy=float(np.mean(guesses == labels)),
        loss=float(np.mean(np.concatenate(loss_values))),
        labels=labels,
        predictions=guesses,
    )


def score_with_prototypes(
    model: tf.keras.Model,
    sets: Prototypes,
    images: tf.Tensor,
    labels: tf.Tensor,
    distance: str,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Classifies by the mean of softmax(-d) over prototype sets.

    The loss is Keras's sparse cross entropy of that mean: clipped, then renormalised.
    """
    embeddings = model(to_float(images), training=False)
    probs = prototypes.helper_mean_probs(embeddings, sets, distance)  # [B, K]
    epsilon = losses.KERAS_EPSILON
    logits = tf.math.log(tf.clip_by_value(probs, epsilon, 1.0 - epsilon))
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.argmax(probs, axis=-1, output_type=tf.int32), loss


def score_with_logits(
    model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Classifies by a dense layer's logits; the loss is their cross entropy."""
    logits = model(to_float(images), training=False)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.argmax(logits, axis=-1, output_type=tf.int32), loss


def confusion_matrix(evaluation: Evaluation, num_classes: int) -> np.ndarray:
    """Counts [true class, predicted class]."""
    matrix = np.zeros([num_classes, num_classes], np.int64)
    np.add.at(matrix, (evaluation.labels, evaluation.predictions), 1)
    return matrix
