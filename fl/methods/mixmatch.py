"""MixMatch (Berthelot et al. 2019) at every client, with FedAvg or FedProx.

The paper of ProtoFSSL has it in its cost tables only; here it trains as well. A step:

1. Two weakly augmented views of each unlabelled image; the mean of the network's
   probabilities on them (eq. 4 of Kim et al. 2022), sharpened (eq. 5), is its label.
2. Labelled images (weakly augmented) and all views are joined, shuffled, and each image
   mixed with its partner: x' = l x + (1 - l) x2 with l ~ Beta(0.75, 0.75) and
   l = max(l, 1 - l); labels alike.
3. Loss: cross entropy on the mixed labelled images plus, with a weight that grows
   linearly to 75 over the run, the squared error of the probabilities on the others.

No gradient flows through the label guess.
"""

from __future__ import annotations

from typing import Tuple

import tensorflow as tf

from fl import augment, losses
from fl.local import LocalModel
from fl.methods.classifier import PairedMethod
from fl.methods.steps import (
    Batch,
    Figures,
    LossStep,
    Message,
    Step,
    labeled_figures,
    pseudo_label_figures,
)

VIEWS = 2
MIXUP_ALPHA = 0.75


class MixMatch(PairedMethod):
    """See the module's docstring."""

    def make_step(self, local: LocalModel) -> Step:
        """The loss of the module's docstring."""
        config = self.setup.config
        return MixMatchStep(
            local,
            config.temperature,
            config.unlabeled_weight,
            self.setup.data.num_classes,
        )


class MixMatchStep(LossStep):
    """A MixMatch step on a client's network."""

    def __init__(
        self, local: LocalModel, temperature: float, weight: float, num_classes: int
    ):
        super().__init__(local)
        self._temperature = temperature
        self._weight = weight
        self._num_classes = num_classes

    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """Cross entropy and squared error on mixed images."""
        seeds = tf.unstack(
            tf.random.experimental.stateless_split(batch.seed, VIEWS + 2)
        )
        views = [augment.weak(batch.unlabeled_x, seed) for seed in seeds[:VIEWS]]
        guess = label_guess(
            [tf.nn.softmax(self.local.model(view, training=True)) for view in views],
            self._temperature,
        )
        labeled_x = augment.weak(batch.labeled_x, seeds[VIEWS])
        images = tf.concat([labeled_x, *views], axis=0)
        labels = tf.concat(
            [tf.one_hot(batch.labeled_y, self._num_classes)] + [guess] * VIEWS, axis=0
        )
        images, labels = mix_up(images, labels, seeds[VIEWS + 1])
        logits = self.local.model(images, training=True)
        count = tf.shape(labeled_x)[0]
        labeled = losses.safe_mean(
            tf.nn.softmax_cross_entropy_with_logits(labels[:count], logits[:count])
        )
        error = squared_error(labels[count:], logits[count:])
        unlabeled = self._weight * message.progress * error
        used = tf.ones_like(guess[:, 0])
        figures = Figures(
            **labeled_figures(logits[:count], batch.labeled_y),
            **pseudo_label_figures(batch, guess, used, unlabeled),
        )
        return labeled + unlabeled, figures


def label_guess(probs: list[tf.Tensor], temperature: float) -> tf.Tensor:
    """Eqs. (4) and (5): the sharpened mean over the views, without a gradient."""
    mean = tf.add_n(probs) / float(len(probs))
    return tf.stop_gradient(losses.sharpen(mean, temperature))


def mix_up(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Mixes each image and its label with a partner's; the own part is the larger."""
    order_seed, share_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    count = tf.shape(images)[0]
    partner = tf.argsort(tf.random.stateless_uniform([count], order_seed))
    share = own_share(count, share_seed)
    wide = share[:, tf.newaxis, tf.newaxis, tf.newaxis]
    narrow = share[:, tf.newaxis]
    return (
        wide * images + (1.0 - wide) * tf.gather(images, partner),
        narrow * labels + (1.0 - narrow) * tf.gather(labels, partner),
    )


def own_share(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """max(l, 1 - l), l ~ Beta(0.75, 0.75) as a ratio of gammas; [count]."""
    gammas = tf.random.stateless_gamma([2, count], seed, alpha=MIXUP_ALPHA)
    share = gammas[0] / (gammas[0] + gammas[1])
    return tf.maximum(share, 1.0 - share)


def squared_error(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean over images and classes of (label - softmax)^2."""
    each = tf.reduce_mean(tf.square(labels - tf.nn.softmax(logits)), axis=-1)
    return losses.safe_mean(each)
