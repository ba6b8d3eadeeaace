"""A client's part in a method with a dense classifier, in plain TensorFlow.

What it receives, the steps it takes on its images, and what it returns. It is traced
into the federated computation of `fl.methods.classifier`.
"""

from __future__ import annotations

import abc
from typing import Any, Mapping, Optional, Tuple

import attr
import tensorflow as tf

from data.episodes import Steps
from fl.local import LocalModel, sum_in_turn, to_float
from fl.types import Array, Averaged, ClientOutput, Weights


@attr.frozen(eq=False)
class Message:
    """What every active client receives.

    Attributes:
        model_weights: the global weights.
        optimizer_state: see `State`.
        learning_rate: float32 [].
        progress: float32 [], the share of the run's rounds that are done.
        shared: see `State`.
    """

    model_weights: Weights
    optimizer_state: Weights
    learning_rate: Array
    progress: Array
    shared: Any = ()


@attr.frozen(eq=False)
class Client:
    """A client's images and the steps it takes.

    Attributes:
        labeled_x: uint8 [n, H, W, C].
        labeled_y: int32 [n].
        unlabeled_x: uint8 [u, H, W, C].
        unlabeled_y: int32 [u], the true classes: for measuring only.
        unlabeled_y_known: bool [].
        steps: indices of each step's images.
        seed: int32 [2], for augmentations.
        slot: int32 [].
        optimizer_state: the client's own, where it keeps one.
        personal: what this client alone kept or is sent; nothing by default.
        returns: bool [], whether what it does reaches the server.
    """

    labeled_x: Array
    labeled_y: Array
    unlabeled_x: Array
    unlabeled_y: Array
    unlabeled_y_known: Array
    steps: Steps
    seed: Array
    slot: Array
    optimizer_state: Weights
    personal: Any = ()
    returns: Array = True


@attr.frozen(eq=False)
class Kept:
    """What a client keeps until it trains again.

    Attributes:
        optimizer_state: its own, where it keeps one.
        own: what the method adds.
    """

    optimizer_state: Weights
    own: Any = ()


@attr.frozen(eq=False)
class Batch:
    """The images of one step, float32 in [0, 1], and a seed for its augmentations."""

    labeled_x: tf.Tensor
    labeled_y: tf.Tensor
    unlabeled_x: tf.Tensor
    unlabeled_y: tf.Tensor
    unlabeled_y_known: tf.Tensor
    seed: tf.Tensor


@attr.frozen(eq=False)
class Figures:
    """What a step reports beside its loss; sums and counts, so that they add up.

    Attributes:
        labeled_correct: labelled images classified right.
        labeled_count: labelled images.
        unlabeled_loss: the weighted unlabelled term, times the labelled images.
        pseudo_label_correct: used pseudo-labels that are right, where truth is known.
        pseudo_label_known: used pseudo-labels of known truth.
        pseudo_label_used: pseudo-labels that count in the loss.
        pseudo_label_confidence: sum of the largest probability of each pseudo-label.
        pseudo_label_count: unlabelled images seen.
    """

    labeled_correct: tf.Tensor
    labeled_count: tf.Tensor
    unlabeled_loss: tf.Tensor
    pseudo_label_correct: tf.Tensor
    pseudo_label_known: tf.Tensor
    pseudo_label_used: tf.Tensor
    pseudo_label_confidence: tf.Tensor
    pseudo_label_count: tf.Tensor


@attr.frozen(eq=False)
class Finish:
    """What a client has after its last step.

    Attributes:
        weights: what enters the mean.
        returned: what the server gets apart, beside the report.
        kept: what the client keeps beside an optimizer's state.
    """

    weights: Weights
    returned: Any = ()
    kept: Any = ()


@attr.frozen(eq=False)
class Own:
    """What the server gets of each client apart: a report, and what the method adds."""

    report: Mapping[str, Any]
    returned: Any


@attr.frozen
class Settings:
    """What the frame depends on beside its inputs.

    Attributes:
        weight_by_examples: see `fl.client.ClientSettings`.
        optimizer_state: the treatment, as in the flag of that name.
        semi_supervised: whether there are pseudo-labels to report on.
    """

    weight_by_examples: bool
    optimizer_state: str
    semi_supervised: bool


class Step(abc.ABC):
    """A method's step on a client's network, made while the computation is traced."""

    def __init__(self, local: LocalModel):
        self.local = local

    def begin(self, message: Message, client: Client) -> None:
        """Takes over what the client received; before the first step."""
        del message, client

    @abc.abstractmethod
    def take(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """One step on a batch; its loss before, and its figures."""

    def finish(self, message: Message, client: Client) -> Finish:
        """What the client has after the last step: by default its weights."""
        del message, client
        return Finish(weights=self.local.weights)


class LossStep(Step):
    """A step of the optimizer down one loss."""

    def take(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """See `Step`."""
        return self.local.minimize(
            lambda: self.loss(message, batch),
            message.model_weights,
            message.learning_rate,
        )

    @abc.abstractmethod
    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """The loss to minimise on a batch, and its figures."""


def client_update(
    local: LocalModel,
    step: Step,
    settings: Settings,
    message: Message,
    client: Client,
) -> ClientOutput:
    """All steps of one client."""
    own_optimizer = settings.optimizer_state == "client"
    local.receive(
        message.model_weights,
        client.optimizer_state if own_optimizer else message.optimizer_state,
    )
    step.begin(message, client)
    zero = tf.constant(0.0)
    zeros = (zero, Figures(*[zero] * len(attr.fields(Figures))))

    def take(number: tf.Tensor) -> Tuple[tf.Tensor, Figures]:
        loss, figures = step.take(message, _batch(client, number))
        return figures.labeled_count * loss, figures

    num_steps = tf.shape(client.steps.labeled_count)[0]
    loss_sum, sums = sum_in_turn(take, num_steps, zeros)
    num_examples = tf.shape(client.labeled_y)[0] + tf.shape(client.unlabeled_y)[0]
    state = local.optimizer_state
    finish = step.finish(message, client)
    return ClientOutput(
        averaged=Averaged(
            model_weights=finish.weights,
            optimizer_state=state if settings.optimizer_state == "averaged" else (),
        ),
        weight=(
            tf.cast(num_examples, tf.float32)
            if settings.weight_by_examples
            else tf.constant(1.0)
        ),
        own=Own(
            report=_report(settings, loss_sum, sums, num_examples),
            returned=finish.returned,
        ),
        handed_on=state if settings.optimizer_state == "sequential" else (),
        received=(
            message.optimizer_state if settings.optimizer_state == "sequential" else ()
        ),
        vital=loss_sum,
        kept=Kept(optimizer_state=state if own_optimizer else (), own=finish.kept),
    )


def labeled_figures(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Accuracy on the labelled images of a step, as a sum and a count."""
    guess = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return {
        "labeled_correct": tf.reduce_sum(tf.cast(tf.equal(guess, labels), tf.float32)),
        "labeled_count": tf.cast(tf.size(labels), tf.float32),
    }


def pseudo_label_figures(
    batch: Batch,
    probs: tf.Tensor,
    used: tf.Tensor,
    loss: tf.Tensor,
    guess: Optional[tf.Tensor] = None,
) -> dict[str, tf.Tensor]:
    """How pseudo-labels fare in a step.

    Args:
        batch: its images.
        probs: [B, K], the distributions that pseudo-labels are taken from.
        used: float32 [B], 1 where a pseudo-label counts in the loss.
        loss: the weighted unlabelled term.
        guess: int32 [B], the pseudo-labels; by default the likeliest classes.
    """
    if guess is None:
        guess = tf.argmax(probs, axis=-1, output_type=batch.unlabeled_y.dtype)
    right = tf.cast(tf.equal(guess, batch.unlabeled_y), tf.float32)
    known = tf.cast(batch.unlabeled_y_known, tf.float32)
    return {
        "unlabeled_loss": loss * tf.cast(tf.size(batch.labeled_y), tf.float32),
        "pseudo_label_correct": known * tf.reduce_sum(used * right),
        "pseudo_label_known": known * tf.reduce_sum(used),
        "pseudo_label_used": tf.reduce_sum(used),
        "pseudo_label_confidence": tf.reduce_sum(tf.reduce_max(probs, axis=-1)),
        "pseudo_label_count": tf.cast(tf.size(guess), tf.float32),
    }


def at_least(probs: tf.Tensor, threshold: float) -> tf.Tensor:
    """1 where the largest probability reaches the threshold, else 0; float32 [B]."""
    return tf.cast(tf.reduce_max(probs, axis=-1) >= threshold, tf.float32)


def no_pseudo_labels() -> dict[str, tf.Tensor]:
    """The figures of a step without unlabelled images."""
    zero = tf.constant(0.0)
    names = [f.name for f in attr.fields(Figures) if not f.name.startswith("labeled")]
    return dict.fromkeys(names, zero)


def _batch(client: Client, number: tf.Tensor) -> Batch:
    steps = client.steps
    labeled = steps.labeled[number, : steps.labeled_count[number]]
    unlabeled = steps.unlabeled[number, : steps.unlabeled_count[number]]
    return Batch(
        labeled_x=to_float(tf.gather(client.labeled_x, labeled)),
        labeled_y=tf.gather(client.labeled_y, labeled),
        unlabeled_x=to_float(tf.gather(client.unlabeled_x, unlabeled)),
        unlabeled_y=tf.gather(client.unlabeled_y, unlabeled),
        unlabeled_y_known=client.unlabeled_y_known,
        seed=tf.random.experimental.stateless_fold_in(client.seed, number),
    )


def _report(
    settings: Settings, loss_sum: tf.Tensor, sums: Figures, num_examples: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Means over the steps, each weighted by its labelled images."""
    report = {
        "accuracy": sums.labeled_correct / sums.labeled_count,
        "loss": loss_sum / sums.labeled_count,
        "num_examples": num_examples,
    }
    if settings.semi_supervised:
        figures = attr.asdict(sums)
        report["unlabeled_loss"] = sums.unlabeled_loss / sums.labeled_count
        report.update(
            {k: v for k, v in figures.items() if k.startswith("pseudo_label")}
        )
    return report
