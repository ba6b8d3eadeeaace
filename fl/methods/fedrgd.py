"""FedRGD (Zhang et al. 2020): FixMatch's consistency with averages inside groups.

1. The m active clients form S groups (`--num_group`); a client starts from the model of
   its group.
2. It takes E steps on 64 labelled and 64 unlabelled images each, of

       loss = CE(labelled) + mean over the batch of
              1[max p(weak) >= 0.95] CE(argmax p(weak), strong)

   with weak = flip and crop, strong = weak, RandAugment and cutout.
3. The server averages inside each group. The mean over the groups is the global model:
   it is evaluated, and every `--group_mix_every` rounds the groups go on from it.

SGD with Nesterov momentum 0.9, weight decay 1e-4, rate 0.0075 cos(7 pi r / 16 R), group
norm. Mixed every round, as published, groups differ from one average only in weighing
groups of unequal size equally; with a longer interval they go separate ways meanwhile.

Departures: its published branch with labels at the clients does not run, so steps 1 to
3 follow its other branch. Labelled images are weakly augmented, as in FixMatch. Who is
in which group follows the order in which clients were drawn, anew each round. Each
client starts with zero momentum: theirs trains all clients always and keeps it. The
rate falls by rounds, not by steps.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import attr
import numpy as np
import tensorflow as tf

from data import episodes
from fl import augment, losses
from fl.local import LocalModel
from fl.methods.classifier import ClassifierMethod, State
from fl.methods.fixmatch import pseudo_label_loss
from fl.methods.steps import (
    Batch,
    Client,
    Figures,
    LossStep,
    Message,
    Own,
    Step,
    at_least,
    labeled_figures,
    pseudo_label_figures,
)
from fl.process import Exchange
from fl.types import Averaged, Weights

BATCH = 64


class FedRGD(ClassifierMethod):
    """See the module's docstring."""

    def plan(
        self, stream: np.random.RandomState, round_index: int, sizes: Tuple[int, int]
    ) -> episodes.Steps:
        """E steps, cycling through both kinds of images."""
        del round_index
        steps = self.setup.config.local_episode
        labeled, unlabeled = (
            episodes.cycled_batches(stream, size, BATCH, steps) for size in sizes
        )
        return episodes.make_steps(labeled, unlabeled)

    def make_step(self, local: LocalModel) -> Step:
        """The loss of the module's docstring."""
        config = self.setup.config
        return FedRGDStep(local, config.confidence_threshold, config.unlabeled_weight)

    def initial_shared(self) -> Tuple[Weights, ...]:
        """The groups' models: all the initial one."""
        weights = tuple(self.setup.initial_weights)
        return (weights,) * self.setup.config.num_group

    def next_shared(
        self, state: State, active: Sequence[int], exchange: Exchange
    ) -> Tuple[Weights, ...]:
        """The groups' models after a round, mixed if it is time to."""
        config = self.setup.config
        if (state.round_num + 1) % config.group_mix_every == 0:
            return (tuple(exchange.mean.model_weights),) * config.num_group
        groups: Tuple[Weights, ...] = exchange.own.returned
        return groups

    def broadcast(self, state: State) -> Any:
        """Nothing: a client receives the weights of its group only."""
        return ()

    def clients_a_call(self) -> int:
        """The size of the largest group."""
        config = self.setup.config
        return -(-config.num_active_client // config.num_group)

    def exchange(self, state: State, clients: Sequence[Client]) -> Exchange:
        """One federated computation a group; `returned` are the groups' models."""
        message = self.message(state)
        exchanges = [
            self._train_group(attr.evolve(message, model_weights=weights), group)
            for weights, group in zip(state.shared, in_groups(clients, self._groups))
        ]
        reports = [in_call.own.report for in_call in exchanges]
        return Exchange(
            mean=tf.nest.map_structure(_mean, *[e.mean for e in exchanges]),
            own=Own(
                report={k: interleaved([r[k] for r in reports]) for k in reports[0]},
                returned=tuple(tuple(e.mean.model_weights) for e in exchanges),
            ),
            handed_on=(),
            kept=(),
            bytes_down=sum(e.bytes_down for e in exchanges),
            bytes_up=sum(e.bytes_up for e in exchanges),
            used=interleaved([in_call.used for in_call in exchanges]),
        )

    def _train_group(self, message: Message, group: Sequence[Client]) -> Exchange:
        """A group of which no client counts keeps its model."""
        exchange = self.train(message, group)
        if exchange.used.any():
            return exchange
        before = Averaged(message.model_weights, message.optimizer_state)
        return attr.evolve(exchange, mean=before)

    @property
    def _groups(self) -> int:
        return self.setup.config.num_group


def in_groups(clients: Sequence[Client], num_groups: int) -> List[List[Client]]:
    """Deals clients to groups in turn; a client's slot is its place in its group."""
    return [
        [
            attr.evolve(client, slot=np.int32(slot))
            for slot, client in enumerate(clients[group::num_groups])
        ]
        for group in range(num_groups)
    ]


def interleaved(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Undoes `in_groups` for one row a client."""
    everyone = np.zeros([sum(map(len, rows)), *rows[0].shape[1:]], rows[0].dtype)
    for group, part in enumerate(rows):
        everyone[group :: len(rows)] = part
    return everyone


def _mean(*values: np.ndarray) -> np.ndarray:
    return np.mean(np.stack(values), axis=0, dtype=np.float64).astype(values[0].dtype)


class FedRGDStep(LossStep):
    """A step on a client's network."""

    def __init__(self, local: LocalModel, threshold: float, weight: float):
        super().__init__(local)
        self._threshold = threshold
        self._weight = weight

    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """Cross entropy on labelled images and on confident pseudo-labels."""
        labeled_seed, weak_seed, strong_seed = tf.unstack(
            tf.random.experimental.stateless_split(batch.seed, 3)
        )
        model = self.local.model
        weak = augment.weak_crop(batch.unlabeled_x, weak_seed)
        probs = tf.stop_gradient(tf.nn.softmax(model(weak, training=True)))
        labeled = augment.weak_crop(batch.labeled_x, labeled_seed)
        strong = augment.strong_fedrgd(batch.unlabeled_x, strong_seed)
        logits = model(tf.concat([labeled, strong], axis=0), training=True)
        count = tf.shape(labeled)[0]
        used = at_least(probs, self._threshold)
        unlabeled = self._weight * pseudo_label_loss(
            probs, logits[count:], used, mean_over_all=True
        )
        figures = Figures(
            **labeled_figures(logits[:count], batch.labeled_y),
            **pseudo_label_figures(batch, probs, used, unlabeled),
        )
        return losses.labeled_loss(logits[:count], batch.labeled_y) + unlabeled, figures
