"""SAGE (CVPR 2025), labels at the clients: FixMatch with a second opinion.

The client keeps a frozen copy of the model it received. Both give probabilities on
the weak view, p_l (local) and p_g (received). Where the local model is confident, the
target mixes both opinions, the more towards the local one the closer their confidences
are; elsewhere it is the received model's. A target counts where either is confident:

    d = clip(|max p_l - max p_g|, 1e-6, 1),  lam = exp(-ln 2 / 0.05 * d)
    target = lam onehot(p_l) + (1 - lam) onehot(p_g)   where max p_l >= 0.95
             onehot(p_g)                               elsewhere
    loss = CE(labelled) + mean over the batch of
           1[max p_l >= 0.95 or max p_g >= 0.95] KL(target || f(strong))

No communication beside weights. Steps and augmentations are those of FixMatch's
`scripts` recipe, so that the two differ in the loss alone.
"""

from __future__ import annotations

import math
from typing import Tuple

import tensorflow as tf

from fl import augment, losses
from fl.local import LocalModel, ModelFn
from fl.methods.classifier import PairedMethod
from fl.methods.fixmatch import strong_magnitude
from fl.methods.steps import (
    Batch,
    Client,
    Figures,
    LossStep,
    Message,
    Step,
    labeled_figures,
    pseudo_label_figures,
)

DECAY = math.log(2.0) / 0.05
SMALLEST_GAP = 1e-6


class Sage(PairedMethod):
    """See the module's docstring."""

    def make_step(self, local: LocalModel) -> Step:
        """The loss of the module's docstring."""
        config = self.setup.config
        return SageStep(
            local,
            self.setup.model_fn,
            config.confidence_threshold,
            config.unlabeled_weight,
            strong_magnitude(config),
        )


class SageStep(LossStep):
    """A SAGE step on a client's network."""

    def __init__(
        self,
        local: LocalModel,
        model_fn: ModelFn,
        threshold: float,
        weight: float,
        magnitude: int,
    ):
        super().__init__(local)
        self._received = model_fn()
        self._threshold = threshold
        self._weight = weight
        self._magnitude = magnitude

    def begin(self, message: Message, client: Client) -> None:
        """Keeps a copy of the model received."""
        for variable, value in zip(self._received.weights, message.model_weights):
            variable.assign(value)

    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """Cross entropy on labelled images, divergence from the mixed targets."""
        weak_seed, strong_seed = tf.unstack(
            tf.random.experimental.stateless_split(batch.seed, 2)
        )
        weak = augment.weak(batch.unlabeled_x, weak_seed)
        local = tf.stop_gradient(tf.nn.softmax(self.local.model(weak, training=True)))
        received = tf.stop_gradient(tf.nn.softmax(self._received(weak, training=False)))
        strong = augment.strong_fixmatch(
            batch.unlabeled_x, strong_seed, magnitude=self._magnitude
        )
        logits = self.local.model(
            tf.concat([batch.labeled_x, strong], axis=0), training=True
        )
        count = tf.shape(batch.labeled_x)[0]
        targets = mixed_targets(local, received, self._threshold)
        used = either_confident(local, received, self._threshold)
        unlabeled = self._weight * target_divergence(targets, logits[count:], used)
        figures = Figures(
            **labeled_figures(logits[:count], batch.labeled_y),
            **pseudo_label_figures(batch, targets, used, unlabeled),
        )
        return losses.labeled_loss(logits[:count], batch.labeled_y) + unlabeled, figures


def mixed_targets(local: tf.Tensor, received: tf.Tensor, threshold: float) -> tf.Tensor:
    """The targets of the module's docstring, [B, K]."""
    num_classes = local.shape[-1]
    local_top, received_top = (tf.reduce_max(p, axis=-1) for p in (local, received))
    gap = tf.clip_by_value(tf.abs(local_top - received_top), SMALLEST_GAP, 1.0)
    share = tf.exp(-DECAY * gap)
    share = tf.where(local_top >= threshold, share, 0.0)[:, tf.newaxis]
    return share * tf.one_hot(tf.argmax(local, axis=-1), num_classes) + (
        1.0 - share
    ) * tf.one_hot(tf.argmax(received, axis=-1), num_classes)


def either_confident(
    local: tf.Tensor, received: tf.Tensor, threshold: float
) -> tf.Tensor:
    """1 where either model is confident, else 0; float32 [B]."""
    top = tf.maximum(tf.reduce_max(local, axis=-1), tf.reduce_max(received, axis=-1))
    return tf.cast(top >= threshold, tf.float32)


def target_divergence(
    targets: tf.Tensor, logits: tf.Tensor, used: tf.Tensor
) -> tf.Tensor:
    """Mean over the batch of KL(target || softmax(logits)) where used."""
    log_probs = tf.nn.log_softmax(logits)
    divergence = tf.reduce_sum(
        tf.math.xlogy(targets, targets) - targets * log_probs, axis=-1
    )
    return losses.safe_mean(used * divergence)
