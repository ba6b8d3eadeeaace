"""The terms of the loss, one function each (eqs. 3, 5, 8 of Kim et al. 2022)."""

from __future__ import annotations

from typing import Iterable, Sequence

import tensorflow as tf

# Keras clips probabilities to this distance from 0 and 1 before it takes logarithms.
KERAS_EPSILON = 1e-7


def labeled_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Eq. (3): mean cross entropy of softmax(-d) at the true class of the queries."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return safe_mean(losses)


def accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The share of rows whose largest logit stands at the true class."""
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return safe_mean(tf.cast(tf.equal(predictions, labels), tf.float32))


def sharpen(probs: tf.Tensor, temperature: float) -> tf.Tensor:
    """Eq. (5): p^(1/T) / sum p^(1/T); rows of zeros stay zero.

    A probability of exactly 0 stays 0 and gets no gradient, at any temperature.
    """
    positive = probs > 0
    powered = tf.where(
        positive, tf.pow(tf.where(positive, probs, 1.0), 1.0 / temperature), 0.0
    )
    total = tf.reduce_sum(powered, axis=-1, keepdims=True)
    return tf.math.divide_no_nan(powered, total)


def keras_crossentropy(targets: tf.Tensor, probs: tf.Tensor) -> tf.Tensor:
    """Cross entropy of each row as Keras takes it of probabilities, [B].

    The prediction is scaled to sum to one and clipped, so that target mass on a class
    of probability 0 costs -log(1e-7) = 16.1 per unit and gives it no gradient.
    """
    scaled = tf.math.divide_no_nan(probs, tf.reduce_sum(probs, axis=-1, keepdims=True))
    clipped = tf.clip_by_value(scaled, KERAS_EPSILON, 1.0 - KERAS_EPSILON)
    return -tf.reduce_sum(targets * tf.math.log(clipped), axis=-1)


def unlabeled_loss(
    pseudo_labels: tf.Tensor, probs: tf.Tensor, loss_type: str
) -> tf.Tensor:
    """The second term of eq. (8), without its weight: CE, or MSE over the classes."""
    if loss_type == "CE":
        return safe_mean(keras_crossentropy(pseudo_labels, probs))
    return safe_mean(tf.reduce_mean(tf.square(pseudo_labels - probs), axis=-1))


def l2_penalty(kernels: Iterable[tf.Variable], factor: float) -> tf.Tensor:
    """Factor times the sum of the squares of the convolution kernels."""
    return factor * tf.add_n([tf.reduce_sum(tf.square(k)) for k in kernels])


def proximal_term(
    weights: Sequence[tf.Tensor], start: Sequence[tf.Tensor], mu: float
) -> tf.Tensor:
    """FedProx: (mu / 2) ||w - w_global||^2 over the weights given."""
    return (mu / 2.0) * tf.add_n(
        [tf.reduce_sum(tf.square(w - w0)) for w, w0 in zip(weights, start)]
    )


def safe_mean(values: tf.Tensor) -> tf.Tensor:
    """The mean, and 0 of nothing."""
    count = tf.cast(tf.size(values), values.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(values), count)
