"""ProtoFSSL's client update, in plain TensorFlow (Algorithm 1 of Kim et al. 2022).

1. Take over the global weights.
2. For each episode: embed support, query and unlabelled images in one batch; make the
   own prototypes from the support set (eq. 2); take the labelled loss on the query set
   (eq. 3); pseudo-label the unlabelled images by the helpers' prototypes (eqs. 5-7) and
   hold the own prediction against that; step down the sum (eq. 8).
3. Make the prototypes to share from all labelled images with the new weights.
4. Return the weights, the prototypes and a report.
"""

from __future__ import annotations

from typing import Any, Tuple

import attr
import tensorflow as tf

from fl import losses, prototypes
from fl.local import LocalModel, sum_in_turn, to_float
from fl.types import (
    Averaged,
    Broadcast,
    ClientData,
    ClientOutput,
    ClientReport,
    Prototypes,
)

# Images per forward pass when prototypes are made from all labelled images.
EMBEDDING_BATCH = 128


@attr.frozen
class ClientSettings:
    """What ProtoFSSL's client update depends on beside its inputs.

    Attributes:
        num_classes: K.
        distance: see `prototypes.distances`.
        unlabeled_weight: lambda of eq. (8).
        temperature: T of eq. (5).
        unlabeled_loss_type: `CE` or `MSE`.
        pseudo_label_gradient: whether a gradient flows through the pseudo-label.
        global_prototypes: Algorithm 2: the helpers' mean in place of the support set.
        noise_stddev: of the Gaussian noise on shared prototypes; 0 for none.
        min_share_samples: fewer labelled images than this, and the client withholds
            the prototype of that class; 0 shares all.
        weight_by_examples: whether eq. (1) weighs a client by its number of images;
            all weigh the same otherwise.
        share_optimizer: whether the optimizer's state is averaged with the weights.
        pass_on_optimizer: whether it is handed on to the next client.
    """

    num_classes: int
    distance: str
    unlabeled_weight: float
    temperature: float
    unlabeled_loss_type: str
    pseudo_label_gradient: bool
    global_prototypes: bool
    noise_stddev: float
    min_share_samples: int
    weight_by_examples: bool
    share_optimizer: bool
    pass_on_optimizer: bool


@attr.frozen(eq=False)
class Own:
    """What the server gets of each client apart."""

    prototypes: Prototypes
    report: ClientReport


@attr.frozen(eq=False)
class EpisodeTerms:
    """The figures of one episode beside the loss; a structure that can be summed."""

    accuracy: tf.Tensor
    unlabeled_loss: tf.Tensor
    pseudo_label_correct: tf.Tensor
    pseudo_label_known: tf.Tensor
    pseudo_label_confidence: tf.Tensor
    pseudo_label_count: tf.Tensor


def client_update(
    local: LocalModel, settings: ClientSettings, message: Broadcast, client: ClientData
) -> ClientOutput:
    """Trains on one client's data; see the module's docstring."""
    local.receive(message.model_weights, message.optimizer_state)
    loss, terms = _train(local, settings, message, client)
    made, shared = _prototypes_to_share(local.model, settings, client)
    num_examples = tf.shape(client.labeled_y)[0] + tf.shape(client.unlabeled_y)[0]
    state = local.optimizer_state
    return ClientOutput(
        averaged=Averaged(
            model_weights=local.weights,
            optimizer_state=state if settings.share_optimizer else (),
        ),
        weight=(
            tf.cast(num_examples, tf.float32)
            if settings.weight_by_examples
            else tf.constant(1.0)
        ),
        own=Own(
            prototypes=shared,
            report=_report(client, loss, terms, made, num_examples),
        ),
        handed_on=state if settings.pass_on_optimizer else (),
        received=message.optimizer_state if settings.pass_on_optimizer else (),
        vital=(loss, shared.values),
    )


def make_prototypes(
    model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor, num_classes: int
) -> Prototypes:
    """Eq. (2) over all labelled images, with the moving statistics of batch norm."""
    total = tf.shape(labels)[0]

    def embed(start: tf.Tensor, pieces: tf.TensorArray) -> Tuple[Any, Any]:
        batch = images[start : start + EMBEDDING_BATCH]
        embeddings = model(to_float(batch), training=False)
        return start + EMBEDDING_BATCH, pieces.write(pieces.size(), embeddings)

    nothing = tf.TensorArray(tf.float32, size=0, dynamic_size=True, infer_shape=False)
    _, pieces = tf.while_loop(
        lambda start, _: start < total, embed, (tf.constant(0), nothing)
    )
    embeddings = tf.ensure_shape(pieces.concat(), [None, model.output_shape[-1]])
    return prototypes.class_prototypes(embeddings, labels, num_classes)


def _train(
    local: LocalModel, settings: ClientSettings, message: Broadcast, client: ClientData
) -> Tuple[tf.Tensor, EpisodeTerms]:
    """Runs the E episodes; the sums over them of the loss and of its terms."""
    zero = tf.constant(0.0)
    zeros = (zero, EpisodeTerms(*[zero] * len(attr.fields(EpisodeTerms))))

    def take(episode: tf.Tensor) -> Tuple[tf.Tensor, EpisodeTerms]:
        return local.minimize(
            lambda: _episode_loss(local.model, settings, message, client, episode),
            message.model_weights,
            message.learning_rate,
        )

    sums: Tuple[tf.Tensor, EpisodeTerms]
    sums = sum_in_turn(take, tf.shape(client.query)[0], zeros)
    return sums


def _episode_loss(
    model: tf.keras.Model,
    settings: ClientSettings,
    message: Broadcast,
    client: ClientData,
    episode: tf.Tensor,
) -> Tuple[tf.Tensor, EpisodeTerms]:
    """Eq. (8) on the images of one episode."""
    support, query = client.support[episode], client.query[episode]
    drawn = client.unlabeled[episode, : client.unlabeled_drawn[episode]]
    images = tf.concat(
        [
            tf.gather(client.labeled_x, tf.concat([support, query], axis=0)),
            tf.gather(client.unlabeled_x, drawn),
        ],
        axis=0,
    )
    embeddings = model(to_float(images), training=True)
    support_z, query_z, unlabeled_z = tf.split(
        embeddings, [tf.size(support), tf.size(query), tf.size(drawn)], num=3
    )
    own = _own_prototypes(settings, message, client, support, support_z)

    logits = prototypes.class_logits(query_z, own, settings.distance)
    labels = tf.gather(client.labeled_y, query)
    if settings.global_prototypes:  # The helpers may lack a class of the query set.
        has_prototype = tf.gather(own.present, labels)
        logits = tf.boolean_mask(logits, has_prototype)
        labels = tf.boolean_mask(labels, has_prototype)
    labeled = losses.labeled_loss(logits, labels)

    has_helpers = tf.reduce_any(message.helpers.present)
    active = tf.cast(client.unlabeled_active[episode] & has_helpers, tf.float32)
    pseudo_labels = _pseudo_labels(settings, message.helpers, unlabeled_z)
    own_probs = prototypes.prototype_probs(unlabeled_z, own, settings.distance)
    unlabeled = (
        settings.unlabeled_weight
        * active
        * losses.unlabeled_loss(pseudo_labels, own_probs, settings.unlabeled_loss_type)
    )
    terms = EpisodeTerms(
        accuracy=losses.accuracy(logits, labels),
        unlabeled_loss=unlabeled,
        **_pseudo_label_figures(client, drawn, pseudo_labels, active),
    )
    return labeled + unlabeled, terms


def _own_prototypes(
    settings: ClientSettings,
    message: Broadcast,
    client: ClientData,
    support: tf.Tensor,
    support_z: tf.Tensor,
) -> Prototypes:
    """Eq. (2), or Algorithm 2's mean of the helpers in episodes without support."""
    made = prototypes.class_prototypes(
        support_z, tf.gather(client.labeled_y, support), settings.num_classes
    )
    if not settings.global_prototypes:
        return made
    shared = prototypes.mean_prototypes(message.helpers)
    has_support = tf.size(support) > 0
    return Prototypes(
        values=tf.where(has_support, made.values, shared.values),
        present=tf.where(has_support, made.present, shared.present),
    )


def _pseudo_labels(
    settings: ClientSettings, helpers: Prototypes, unlabeled_z: tf.Tensor
) -> tf.Tensor:
    """Eqs. (5)-(7): the sharpened mean of the helpers' opinions, [B, K]."""
    if not settings.pseudo_label_gradient:
        unlabeled_z = tf.stop_gradient(unlabeled_z)
    mean = prototypes.helper_mean_probs(unlabeled_z, helpers, settings.distance)
    return losses.sharpen(mean, settings.temperature)


def _pseudo_label_figures(
    client: ClientData,
    drawn: tf.Tensor,
    pseudo_labels: tf.Tensor,
    active: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """How often the pseudo-label is right and how sure it is, as sums and counts."""
    truth = tf.gather(client.unlabeled_y, drawn)
    guess = tf.argmax(pseudo_labels, axis=-1, output_type=truth.dtype)
    known = active * tf.cast(client.unlabeled_y_known, tf.float32)
    count = tf.cast(tf.size(drawn), tf.float32)
    right = tf.reduce_sum(tf.cast(tf.equal(guess, truth), tf.float32))
    return {
        "pseudo_label_correct": known * right,
        "pseudo_label_known": known * count,
        "pseudo_label_confidence": active
        * tf.reduce_sum(tf.reduce_max(pseudo_labels, axis=-1)),
        "pseudo_label_count": active * count,
    }


def _prototypes_to_share(
    model: tf.keras.Model, settings: ClientSettings, client: ClientData
) -> Tuple[Prototypes, Prototypes]:
    """The client's prototypes as made, and as they leave it: withheld or noisy."""
    made = make_prototypes(
        model, client.labeled_x, client.labeled_y, settings.num_classes
    )
    noisy = made
    if settings.noise_stddev > 0:
        noise = tf.random.stateless_normal(
            tf.shape(made.values), client.noise_seed, stddev=settings.noise_stddev
        )
        noisy = Prototypes(values=made.values + noise, present=made.present)
    return made, withhold(noisy, client.labeled_y, settings.min_share_samples)


def withhold(
    prototypes_made: Prototypes, labels: tf.Tensor, min_share_samples: int
) -> Prototypes:
    """Leaves out the classes of which the client has too few labelled images."""
    num_classes = prototypes_made.present.shape[0]
    counts = tf.math.unsorted_segment_sum(tf.ones_like(labels), labels, num_classes)
    present = tf.logical_and(prototypes_made.present, counts >= min_share_samples)
    mask = tf.cast(present, tf.float32)[:, tf.newaxis]
    return Prototypes(values=prototypes_made.values * mask, present=present)


def _report(
    client: ClientData,
    loss: tf.Tensor,
    terms: EpisodeTerms,
    made: Prototypes,
    num_examples: tf.Tensor,
) -> ClientReport:
    episodes = tf.cast(tf.shape(client.query)[0], tf.float32)
    return ClientReport(
        accuracy=terms.accuracy / episodes,
        loss=loss / episodes,
        unlabeled_loss=terms.unlabeled_loss / episodes,
        pseudo_label_correct=terms.pseudo_label_correct,
        pseudo_label_known=terms.pseudo_label_known,
        pseudo_label_confidence=terms.pseudo_label_confidence,
        pseudo_label_count=terms.pseudo_label_count,
        prototype_norm=tf.norm(made.values),
        num_examples=num_examples,
    )
