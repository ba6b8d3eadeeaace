"""FixMatch (Sohn et al. 2020) at every client, with FedAvg or FedProx.

A step takes the cross entropy on labelled images, and on unlabelled ones that between
the class the network is confident of on a weakly augmented view and its prediction on a
strongly augmented one:

    loss = CE(labelled) + weight * CE(argmax p(weak), strong), where max p(weak) > 0.95

Three recipes (`--fixmatch_recipe`):

* `scripts`, as the authors of ProtoFSSL ran it: 10 labelled images a step as they are,
  100 unlabelled, the mean over the confident ones, weight 0.01, the strong view made
  from the plain image, an optimizer that each client keeps.
* `flag`, as their `--fixmatch` does it: the same loss on all images in one step.
* `published`, as in the paper of FixMatch: labelled images weakly augmented too, 7
  unlabelled to a labelled one, the mean over the whole batch, weight 1.

Departures: augmentations are seeded (theirs do not repeat); RandAugment's operations
and their draw are its paper's (see `augment.strong_fixmatch`); all strong views pass
through the network, not only the confident ones, so that batch statistics never come
from too few images.
"""

from __future__ import annotations

from typing import Tuple

import attr
import tensorflow as tf

from fl import augment, losses
from fl.local import LocalModel
from fl.methods.classifier import LABELED_BATCH, UNLABELED_BATCH, PairedMethod
from fl.methods.steps import (
    Batch,
    Figures,
    LossStep,
    Message,
    Step,
    labeled_figures,
    pseudo_label_figures,
)
from flags.config import ExperimentConfig

PUBLISHED_RATIO = 7


@attr.frozen
class FixMatchOptions:
    """What sets the recipes apart.

    Attributes:
        threshold: confidence that a pseudo-label must exceed.
        weight: of the unlabelled term.
        magnitude: of RandAugment, of 30.
        augment_labeled: whether labelled images are weakly augmented.
        mean_over_all: whether the unlabelled term is a mean over the whole batch, not
            over the confident images alone.
    """

    threshold: float
    weight: float
    magnitude: int
    augment_labeled: bool
    mean_over_all: bool


class FixMatch(PairedMethod):
    """See the module's docstring."""

    def batch_sizes(self, sizes: Tuple[int, int]) -> Tuple[int, int]:
        """As the recipe says."""
        return batch_sizes(self.setup.config.fixmatch_recipe, sizes)

    def make_step(self, local: LocalModel) -> Step:
        """The loss of the module's docstring."""
        return FixMatchStep(local, options(self.setup.config))


def batch_sizes(recipe: str, sizes: Tuple[int, int]) -> Tuple[int, int]:
    """Labelled and unlabelled images a step."""
    if recipe == "flag":
        return sizes
    if recipe == "published":
        return LABELED_BATCH, PUBLISHED_RATIO * LABELED_BATCH
    return LABELED_BATCH, UNLABELED_BATCH


def options(config: ExperimentConfig) -> FixMatchOptions:
    """The recipe that the configuration names."""
    published = config.fixmatch_recipe == "published"
    return FixMatchOptions(
        threshold=config.confidence_threshold,
        weight=config.unlabeled_weight,
        magnitude=strong_magnitude(config),
        augment_labeled=published,
        mean_over_all=published,
    )


def strong_magnitude(config: ExperimentConfig) -> int:
    """RandAugment's magnitude, of 30: 14 in the scripts, 10 on STL-10 and published."""
    if config.dataset == "stl10" or config.fixmatch_recipe == "published":
        return 10
    return 14


class FixMatchStep(LossStep):
    """A FixMatch step on a client's network."""

    def __init__(self, local: LocalModel, chosen: FixMatchOptions):
        super().__init__(local)
        self._options = chosen

    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """Cross entropy on labelled images and on confident pseudo-labels."""
        chosen = self._options
        labeled_seed, weak_seed, strong_seed = tf.unstack(
            tf.random.experimental.stateless_split(batch.seed, 3)
        )
        labeled_x = batch.labeled_x
        if chosen.augment_labeled:
            labeled_x = augment.weak_crop(labeled_x, labeled_seed)
        weak = augment.weak(batch.unlabeled_x, weak_seed)
        probs = tf.stop_gradient(tf.nn.softmax(self.local.model(weak, training=True)))
        strong = augment.strong_fixmatch(
            batch.unlabeled_x, strong_seed, magnitude=chosen.magnitude
        )
        logits = self.local.model(tf.concat([labeled_x, strong], axis=0), training=True)
        count = tf.shape(labeled_x)[0]
        used = confident(probs, chosen.threshold)
        unlabeled = chosen.weight * pseudo_label_loss(
            probs, logits[count:], used, chosen.mean_over_all
        )
        figures = Figures(
            **labeled_figures(logits[:count], batch.labeled_y),
            **pseudo_label_figures(batch, probs, used, unlabeled),
        )
        return losses.labeled_loss(logits[:count], batch.labeled_y) + unlabeled, figures


def confident(probs: tf.Tensor, threshold: float) -> tf.Tensor:
    """1 where the largest probability exceeds the threshold, else 0; float32 [B]."""
    return tf.cast(tf.reduce_max(probs, axis=-1) > threshold, tf.float32)


def pseudo_label_loss(
    probs: tf.Tensor, logits: tf.Tensor, used: tf.Tensor, mean_over_all: bool
) -> tf.Tensor:
    """CE(argmax of the weak view's probabilities, strong view) on the images used.

    The mean is over those, or over all; 0 if there is none.
    """
    targets = tf.argmax(probs, axis=-1, output_type=tf.int32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    count = tf.cast(tf.size(used), tf.float32) if mean_over_all else tf.reduce_sum(used)
    return tf.math.divide_no_nan(tf.reduce_sum(used * each), count)
