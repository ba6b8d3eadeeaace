"""FedAvg (McMahan et al. 2017) on the labelled images alone, with a dense classifier.

With all of a client's images labelled these are the paper's "-SL" rows. FedProx adds a
proximal term to the same training (`fl.local.Regularization`).

1. The server broadcasts its weights and the round's learning rate.
2. Each active client runs E epochs over its labelled images, in one order per round.
3. The weighted mean of all weights becomes the server's.
"""

from __future__ import annotations

import math
from typing import Any, Tuple

import attr
import numpy as np
import tensorflow as tf

from data import episodes
from fl import evaluation, losses
from fl.evaluation import ScoreFn
from fl.local import LocalModel, to_float
from fl.methods import base
from fl.types import Array, ClientOutput, Weights
from flags.config import ExperimentConfig

LOWEST_RATE = 1e-6


@attr.frozen(eq=False)
class State:
    """All that survives a round; see `fl.server.ServerState`."""

    round_num: int
    model_weights: Weights
    optimizer_state: Weights


@attr.frozen(eq=False)
class Message:
    """What every active client receives."""

    model_weights: Weights
    optimizer_state: Weights
    learning_rate: Array


@attr.frozen(eq=False)
class Client:
    """A client's labelled images and the order it goes through them.

    Attributes:
        labeled_x: uint8 [n, H, W, C].
        labeled_y: int32 [n].
        order: int32 [n].
        slot: int32 [].
    """

    labeled_x: Array
    labeled_y: Array
    order: Array
    slot: Array


@attr.frozen(eq=False)
class Averaged:
    """What is averaged over the clients."""

    model_weights: Any
    optimizer_state: Any


@attr.frozen(eq=False)
class Report:
    """Means over a client's steps, each weighted by its batch."""

    accuracy: Array
    loss: Array
    num_examples: Array


@attr.frozen(eq=False)
class Own:
    """What the server gets of each client apart."""

    report: Report


@attr.frozen
class Settings:
    """What the client update depends on beside its inputs.

    Attributes:
        epochs: E.
        batch_size: images per step; 0 takes all at once.
        weight_by_examples: see `fl.client.ClientSettings`.
        share_optimizer: see there.
        pass_on_optimizer: see there.
    """

    epochs: int
    batch_size: int
    weight_by_examples: bool
    share_optimizer: bool
    pass_on_optimizer: bool


class FedAvg(base.Method):
    """See the module's docstring."""

    def __init__(self, setup: base.Setup):
        super().__init__(setup)
        config = setup.config
        settings = Settings(
            epochs=config.local_episode,
            batch_size=config.sl_batch_size,
            weight_by_examples=config.aggregation == "examples",
            **base.shares_optimizer(config),
        )
        self._round = base.bind_round(
            setup,
            self.optimizer,
            lambda local, message, data: client_update(local, settings, message, data),
            base.specs_of(self._message(self.initial_state())),
            _client_spec(setup.data.images.shape[1:]),
        )
        self._score = tf.function(
            lambda images, labels: evaluation.score_with_logits(
                self.model, images, labels
            ),
            reduce_retracing=True,
        )

    def initial_state(self) -> State:
        """The initial weights."""
        return State(
            round_num=0,
            model_weights=tuple(self.setup.initial_weights),
            optimizer_state=self.initial_optimizer_state(),
        )

    def run_round(self, state: State) -> base.RoundOutcome:
        """Steps 1 to 3 of the module's docstring."""
        config = self.setup.config
        active = episodes.active_clients(
            config.seed, state.round_num, config.num_client, config.num_active_client
        )
        clients = [
            self._client(state.round_num, slot, number)
            for slot, number in enumerate(active)
        ]
        exchange = self._round(self._message(state), clients)
        return base.RoundOutcome(
            state=State(
                round_num=state.round_num + 1,
                model_weights=tuple(exchange.mean.model_weights),
                optimizer_state=base.next_optimizer_state(config, exchange),
            ),
            clients=active,
            report=attr.asdict(exchange.own.report),
            bytes_down=exchange.bytes_down,
            bytes_up=exchange.bytes_up,
        )

    def score_fn(self, state: State) -> ScoreFn:
        """Classification by the dense layer."""
        self.load_weights(state.model_weights)
        return self._score

    def exports(self, state: State) -> dict[str, np.ndarray]:
        """Nothing beside the weights."""
        return {}

    def _message(self, state: State) -> Message:
        return Message(
            model_weights=state.model_weights,
            optimizer_state=state.optimizer_state,
            learning_rate=np.float32(learning_rate(self.setup.config, state.round_num)),
        )

    def _client(self, round_index: int, slot: int, number: int) -> Client:
        data = self.setup.data
        indices = data.clients[number].labeled
        return Client(
            labeled_x=data.images[indices],
            labeled_y=data.labels[indices].astype(np.int32),
            order=episodes.epoch_order(round_index, len(indices)),
            slot=np.int32(slot),
        )


def learning_rate(config: ExperimentConfig, round_index: int) -> float:
    """The rate of a round: constant, or max(lr cos(15 pi r / (32 R)), 1e-6)."""
    if config.baseline_lr == "constant":
        return config.opt_lr
    angle = 15 * math.pi * round_index / (32 * config.num_round)
    return max(config.opt_lr * math.cos(angle), LOWEST_RATE)


def client_update(
    local: LocalModel, settings: Settings, message: Message, client: Client
) -> ClientOutput:
    """E epochs of cross entropy on one client's labelled images."""
    local.receive(message.model_weights, message.optimizer_state)
    images = tf.gather(client.labeled_x, client.order)
    labels = tf.gather(client.labeled_y, client.order)
    total = tf.shape(labels)[0]
    step = settings.batch_size or total
    loss_sum, right = tf.constant(0.0), tf.constant(0.0)
    for _ in tf.range(settings.epochs):
        for start in tf.range(0, total, step):
            x, y = images[start : start + step], labels[start : start + step]
            loss, accuracy = local.minimize(
                lambda: _loss(local.model, x, y),  # noqa: B023
                message.model_weights,
                message.learning_rate,
            )
            size = tf.cast(tf.shape(y)[0], tf.float32)
            loss_sum += size * loss
            right += size * accuracy
    seen = tf.cast(settings.epochs * total, tf.float32)
    state = local.optimizer_state
    return ClientOutput(
        averaged=Averaged(
            model_weights=local.weights,
            optimizer_state=state if settings.share_optimizer else (),
        ),
        weight=(
            tf.cast(total, tf.float32)
            if settings.weight_by_examples
            else tf.constant(1.0)
        ),
        own=Own(
            report=Report(
                accuracy=right / seen, loss=loss_sum / seen, num_examples=total
            ),
        ),
        handed_on=state if settings.pass_on_optimizer else (),
    )


def _loss(
    model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor]:
    logits = model(to_float(images), training=True)
    return losses.labeled_loss(logits, labels), losses.accuracy(logits, labels)


def _client_spec(image_shape: Tuple[int, ...]) -> Client:
    vector = tf.TensorSpec([None], tf.int32)
    return Client(
        labeled_x=tf.TensorSpec([None, *image_shape], tf.uint8),
        labeled_y=vector,
        order=vector,
        slot=tf.TensorSpec([], tf.int32),
    )
