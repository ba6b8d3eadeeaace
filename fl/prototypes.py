"""Prototypes, and the probabilities they give (eqs. 2, 6, 7 of Kim et al. 2022)."""

from __future__ import annotations

import tensorflow as tf

from fl.types import Prototypes


def class_prototypes(
    embeddings: tf.Tensor, labels: tf.Tensor, num_classes: int
) -> Prototypes:
    """Eq. (2): the mean embedding of each class; absent where it has no image."""
    values = tf.math.unsorted_segment_mean(embeddings, labels, num_classes)  # [K, D]
    counts = tf.math.unsorted_segment_sum(tf.ones_like(labels), labels, num_classes)
    return Prototypes(values=values, present=counts > 0)


def mean_prototypes(helpers: Prototypes) -> Prototypes:
    """Algorithm 2: for each class, the mean over the helpers that have it."""
    mask = tf.cast(helpers.present, tf.float32)[..., tf.newaxis]  # [H, K, 1]
    total = tf.reduce_sum(helpers.values * mask, axis=0)  # [K, D]
    count = tf.reduce_sum(mask, axis=0)  # [K, 1]
    return Prototypes(
        values=tf.math.divide_no_nan(total, count),
        present=tf.reduce_any(helpers.present, axis=0),
    )


def distances(embeddings: tf.Tensor, values: tf.Tensor, distance: str) -> tf.Tensor:
    """d(z, c) for each embedding and each prototype.

    Args:
        embeddings: [B, D].
        values: prototypes [..., K, D].
        distance: `euclidean`, the norm of the difference, as in the paper, or
            `mean_squared`, the mean over the D dimensions of its square, as in the
            authors' program.

    Returns:
        [..., B, K].
    """
    if distance == "mean_squared":
        return _mean_squares(embeddings, values)
    # The root would make rounding near 0 large: here differences, [..., B, K, D].
    difference = embeddings[:, tf.newaxis, :] - values[..., tf.newaxis, :, :]
    squared = tf.reduce_sum(tf.square(difference), axis=-1)
    # The root has no finite slope at 0; the distance of a point to itself gets none.
    positive = squared > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, squared, 1.0)), 0.0)


def _mean_squares(embeddings: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """The mean of (z - c)^2 over the D dimensions, as (z^2 + c^2 - 2 z c) / D.

    A matrix product in place of all differences, which with 30 helpers take some 15
    times as long. The mean embedding is subtracted from both sides first, so that what
    all have in common does not drown the differences in rounding.
    """
    count = tf.cast(tf.shape(embeddings)[0], embeddings.dtype)
    total = tf.reduce_sum(embeddings, axis=0)
    centre = tf.stop_gradient(tf.math.divide_no_nan(total, count))  # [D]
    z, c = embeddings - centre, values - centre
    squares = (
        tf.reduce_sum(tf.square(z), axis=-1)[:, tf.newaxis]  # [B, 1]
        + tf.reduce_sum(tf.square(c), axis=-1)[..., tf.newaxis, :]  # [..., 1, K]
        - 2.0 * tf.matmul(z, c, transpose_b=True)  # [..., B, K]
    )
    return tf.nn.relu(squares) / tf.cast(tf.shape(z)[-1], z.dtype)


def class_logits(
    embeddings: tf.Tensor, prototypes: Prototypes, distance: str
) -> tf.Tensor:
    """The exponents of eq. (6), -d(z, c_k), [..., B, K]; lowest where c_k is absent."""
    logits = -distances(embeddings, prototypes.values, distance)
    return tf.where(prototypes.present[..., tf.newaxis, :], logits, logits.dtype.min)


def prototype_probs(
    embeddings: tf.Tensor, prototypes: Prototypes, distance: str
) -> tf.Tensor:
    """Eq. (6): softmax over the present classes of -d(z, c_k); exactly 0 elsewhere.

    A set of prototypes with no class present gives zeros for every class.
    """
    logits = class_logits(embeddings, prototypes, distance)
    mask = tf.cast(prototypes.present, logits.dtype)[..., tf.newaxis, :]
    return tf.nn.softmax(logits) * mask


def helper_mean_probs(
    embeddings: tf.Tensor, helpers: Prototypes, distance: str
) -> tf.Tensor:
    """Eq. (7): the mean of eq. (6) over the helpers that have any class, [B, K]."""
    probs = prototype_probs(embeddings, helpers, distance)  # [H, B, K]
    present = tf.reduce_any(helpers.present, axis=-1)  # [H]
    count = tf.reduce_sum(tf.cast(present, probs.dtype))
    return tf.math.divide_no_nan(tf.reduce_sum(probs, axis=0), count)
