"""ProtoFSSL's local training as a plain eager Keras loop.

The same maths as `fl.client`, under the release's switches, written the obvious way:
Keras layers called eagerly under a tape in the order in which the paper names them,
Keras's own RMSprop and losses. It is what our client update is measured against, and,
in a test, what it is held against.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from fl.types import ClientData, Prototypes

TEMPERATURE = 0.5
UNLABELED_WEIGHT = 0.3

# Of ResNet8: the width of a convolution and the pool behind it, or of a residual pair
# of them and the pool behind their sum.
RESNET8 = (
    ("conv", 64, None),
    ("conv", 128, 1),
    ("pair", 128, None),
    ("conv", 256, 2),
    ("conv", 512, 3),
    ("pair", 512, 4),
)


def resnet8(
    image_shape: Tuple[int, int, int], pools: Sequence[int], norm: str
) -> tf.keras.Model:
    """ResNet8 as the paper has it: convolution, norm, ReLU and then the pool.

    Args:
        image_shape: height, width and channels.
        pools: the sizes of the four pools.
        norm: `none`, `bn` or `gn`.
    """
    layers = tf.keras.layers
    norms = {"bn": layers.BatchNormalization, "gn": layers.GroupNormalization}

    def conv(x: tf.Tensor, width: int) -> tf.Tensor:
        x = layers.Conv2D(width, 3, padding="same")(x)
        if norm != "none":
            x = norms[norm](epsilon=1e-3)(x)
        return layers.ReLU()(x)

    image = tf.keras.Input(image_shape)
    x = image
    for kind, width, pool in RESNET8:
        if kind == "pair":
            x = layers.Add()([x, conv(conv(x, width), width)])
        else:
            x = conv(x, width)
        if pool is not None:
            x = layers.MaxPool2D(pools[pool - 1])(x)
    return tf.keras.Model(image, layers.Flatten()(x))


class PlainClient:
    """A network and an optimizer that train episode by episode."""

    def __init__(self, model: tf.keras.Model, learning_rate: float):
        self.model = model
        self._optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate)

    def train(self, client: ClientData, helpers: Prototypes) -> List[float]:
        """All episodes of a client; the loss of each."""
        return [
            self._episode(client, helpers, number)
            for number in range(len(client.query))
        ]

    def prototypes(self, client: ClientData) -> np.ndarray:
        """What a client shares: class means of all its labelled images, [K, D]."""
        images = tf.cast(client.labeled_x, tf.float32) / 255.0
        made: np.ndarray = _means(self.model(images), client.labeled_y).numpy()
        return made

    def _episode(self, client: ClientData, helpers: Prototypes, number: int) -> float:
        images, sizes = _episode_images(client, number)
        labels = client.labeled_y[client.query[number]]
        support = client.labeled_y[client.support[number]]
        with tf.GradientTape() as tape:
            embeddings = self.model(tf.cast(images, tf.float32) / 255.0, training=True)
            support_z, query_z, unlabeled_z = tf.split(embeddings, sizes)
            own = _means(support_z, support)
            each = tf.keras.losses.sparse_categorical_crossentropy(
                labels, -_mean_squares(query_z, own), from_logits=True
            )
            loss = tf.reduce_mean(each)
            if client.unlabeled_active[number]:
                loss += UNLABELED_WEIGHT * _unlabeled_loss(unlabeled_z, own, helpers)
        weights = self.model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return float(loss)


def _episode_images(client: ClientData, number: int) -> Tuple[np.ndarray, List[int]]:
    support, query = client.support[number], client.query[number]
    unlabeled = client.unlabeled[number]
    images = np.concatenate(
        [
            client.labeled_x[support],
            client.labeled_x[query],
            client.unlabeled_x[unlabeled],
        ]
    )
    return images, [len(support), len(query), len(unlabeled)]


def _means(embeddings: tf.Tensor, labels: np.ndarray) -> tf.Tensor:
    """Prototypes [K, D] of classes 0 to K - 1, each with an image."""
    return tf.stack(
        [
            tf.reduce_mean(tf.boolean_mask(embeddings, labels == k), axis=0)
            for k in range(labels.max() + 1)
        ]
    )


def _mean_squares(embeddings: tf.Tensor, prototypes: tf.Tensor) -> tf.Tensor:
    gaps = embeddings[:, tf.newaxis] - prototypes[tf.newaxis]  # [B, K, D]
    return tf.reduce_mean(tf.square(gaps), axis=-1)


def _unlabeled_loss(
    embeddings: tf.Tensor, own: tf.Tensor, helpers: Prototypes
) -> tf.Tensor:
    opinions = [
        tf.nn.softmax(-_mean_squares(embeddings, helper)) for helper in helpers.values
    ]
    sharp = tf.pow(tf.add_n(opinions) / len(opinions), 1.0 / TEMPERATURE)
    targets = sharp / tf.reduce_sum(sharp, axis=-1, keepdims=True)
    probs = tf.nn.softmax(-_mean_squares(embeddings, own))
    return tf.reduce_mean(tf.keras.losses.categorical_crossentropy(targets, probs))
