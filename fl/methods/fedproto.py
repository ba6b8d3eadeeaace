"""FedProto-style regularisation (Tan et al. 2022), beside FedAvg.

Clients share the mean embedding of each of their classes; the server's mean of these is
a global prototype. A step takes the cross entropy on labelled images plus the squared
distance of each embedding to the global prototype of its class:

    loss = CE(labelled) + weight * mean over images and dimensions of (z - c_y)^2

Images whose class has no global prototype yet (all in round 1) only count in the first
term. Departure: FedProto proper shares prototypes instead of weights, for clients with
different networks; here weights are averaged as well, as in every other method.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import tensorflow as tf

from fl import losses, server
from fl.client import make_prototypes
from fl.local import LocalModel
from fl.methods.classifier import State
from fl.methods.fedavg import FedAvg
from fl.methods.steps import (
    Batch,
    Client,
    Figures,
    Finish,
    LossStep,
    Message,
    Step,
    labeled_figures,
    no_pseudo_labels,
)
from fl.process import Exchange
from fl.types import Prototypes


class FedProto(FedAvg):
    """See the module's docstring."""

    def make_step(self, local: LocalModel) -> Step:
        """The loss of the module's docstring."""
        return FedProtoStep(
            local, self.setup.config.prototype_weight, self.setup.data.num_classes
        )

    def initial_shared(self) -> Prototypes:
        """No prototype of any class."""
        size = self.model.layers[-1].input_shape[-1]
        none = server.no_prototypes(1, self.setup.data.num_classes, size)
        return Prototypes(values=none.values[0], present=none.present[0])

    def next_shared(
        self, state: State, active: Sequence[int], exchange: Exchange
    ) -> Prototypes:
        """For each class the mean over the clients that have it."""
        returned = exchange.counted(exchange.own.returned)
        present = returned.present.astype(bool)
        kept = Prototypes(values=returned.values, present=present)
        empty = server.no_prototypes(1, *returned.values.shape[1:])
        mean = server.fill_absent(empty, kept)
        return Prototypes(values=mean.values[0], present=mean.present[0])


class FedProtoStep(LossStep):
    """A step on a client's network, of which the embedding is taken too."""

    def __init__(self, local: LocalModel, weight: float, num_classes: int):
        super().__init__(local)
        self._weight = weight
        self._num_classes = num_classes
        model = local.model
        self._embed = tf.keras.Model(model.input, model.layers[-1].input)
        self._classify = model.layers[-1]

    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """Cross entropy and the pull towards the global prototypes."""
        embeddings = self._embed(batch.labeled_x, training=True)
        logits = self._classify(embeddings)
        pull = self._weight * prototype_distance(
            embeddings, batch.labeled_y, message.shared
        )
        figures = Figures(
            **labeled_figures(logits, batch.labeled_y), **no_pseudo_labels()
        )
        return losses.labeled_loss(logits, batch.labeled_y) + pull, figures

    def finish(self, message: Message, client: Client) -> Finish:
        """The weights, and the client's own prototypes made with them."""
        made = make_prototypes(
            self._embed, client.labeled_x, client.labeled_y, self._num_classes
        )
        return Finish(weights=self.local.weights, returned=made)


def prototype_distance(
    embeddings: tf.Tensor, labels: tf.Tensor, shared: Prototypes
) -> tf.Tensor:
    """Mean squared difference to the prototype of the own class, where there is one."""
    targets = tf.gather(shared.values, labels)
    each = tf.reduce_mean(tf.square(embeddings - targets), axis=-1)
    known = tf.cast(tf.gather(shared.present, labels), tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(known * each), tf.reduce_sum(known))
