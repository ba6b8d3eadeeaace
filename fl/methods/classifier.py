"""The frame of all methods with a dense classifier: FedAvg with a step of their own.

1. The server broadcasts its weights, the learning rate and what the method shares.
2. Each active client goes through the steps planned for it; a step takes the loss that
   the method defines on a batch of labelled and unlabelled images.
3. The weighted mean of all weights becomes the server's.

A method says how many steps there are and on which images (`plan`), what the loss of a
step is (`make_step`), and, where there is more than weights to it: what the server and
all clients share, what it sends to single clients, and what clients keep.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Callable, Sequence, Tuple

import attr
import numpy as np
import tensorflow as tf

from data import episodes
from data.episodes import Steps
from fl import evaluation, states
from fl.evaluation import ScoreFn
from fl.local import LocalModel
from fl.methods import base
from fl.methods.steps import Client, Kept, Message, Settings, Step, client_update
from fl.process import Exchange
from fl.types import Array, ClientOutput, Weights
from flags.config import ExperimentConfig

LOWEST_RATE = 1e-6
COSINE_SHARES = {"cosine": 15 / 32, "cosine_7_16": 7 / 16}
LABELED_BATCH = 10
UNLABELED_BATCH = 100


@attr.frozen(eq=False)
class State:
    """All that survives a round at the server.

    Attributes:
        round_num: rounds completed.
        model_weights: the global weights.
        optimizer_state: empty unless the optimizer's state is shared.
        client_versions: int [N], the round that made what each client keeps; 0 for
            none. Empty where clients keep nothing.
        shared: what the method shares beside weights; nothing by default.
    """

    round_num: int
    model_weights: Weights
    optimizer_state: Weights
    client_versions: Array
    shared: Any = ()


class ClassifierMethod(base.Method):
    """See the module's docstring."""

    semi_supervised: bool = True
    # Whether clients keep more than an optimizer's state (`Finish.kept`).
    clients_keep: bool = False

    def __init__(self, setup: base.Setup):
        super().__init__(setup)
        config = setup.config
        settings = Settings(
            weight_by_examples=config.aggregation == "examples",
            optimizer_state=config.optimizer_state,
            semi_supervised=self.semi_supervised,
        )

        def make_update(local: LocalModel) -> Callable[[Any, Any], ClientOutput]:
            step = self.make_step(local)
            return lambda message, data: client_update(
                local, step, settings, message, data
            )

        state = self.initial_state()
        self.train = base.bind_round(
            setup,
            self.optimizer,
            make_update,
            base.specs_of(self.message(state)),
            attr.evolve(
                _client_spec(setup.data.images.shape[1:]),
                optimizer_state=base.specs_of(self._own_optimizer_state()),
                personal=self.personal_spec(),
            ),
            self.clients_a_call(),
        )
        self._score = tf.function(
            lambda images, labels: evaluation.score_with_logits(
                self.model, images, labels
            ),
            autograph=False,
            reduce_retracing=True,
        )

    @abc.abstractmethod
    def plan(
        self, stream: np.random.RandomState, round_index: int, sizes: Tuple[int, int]
    ) -> Steps:
        """The steps of a client in a round.

        Args:
            stream: a stream of (seed, round, client).
            round_index: the round, counted from 0.
            sizes: how many labelled and unlabelled images the client has.
        """

    @abc.abstractmethod
    def make_step(self, local: LocalModel) -> Step:
        """The step, for a client's copy of the network; called while tracing."""

    def initial_shared(self) -> Any:
        """What the method shares beside weights, before the first round."""
        return ()

    def next_shared(
        self, state: State, active: Sequence[int], exchange: Exchange
    ) -> Any:
        """The same after a round in which those clients counted."""
        del active, exchange
        return state.shared

    def personal_spec(self) -> Any:
        """The `tf.TensorSpec` of what `personal` gives."""
        return ()

    def personal(self, state: State, number: int) -> Any:
        """What a client alone has kept or is sent, beside an optimizer's state."""
        del state, number
        return ()

    def clients_a_call(self) -> int:
        """How many clients at most train in one federated computation."""
        return self.setup.config.num_active_client

    def exchange(self, state: State, clients: Sequence[Client]) -> Exchange:
        """Has the clients train."""
        return self.train(self.message(state), clients)

    def num_bytes(
        self, state: State, clients: Sequence[Client], exchange: Exchange
    ) -> Tuple[int, int]:
        """What a round sends down and up; by default all of what passes."""
        del state, clients
        return exchange.bytes_down, exchange.bytes_up

    def initial_state(self) -> State:
        """The initial weights."""
        keeps = self.clients_keep or self.setup.config.optimizer_state == "client"
        return State(
            round_num=0,
            model_weights=tuple(self.setup.initial_weights),
            optimizer_state=self.initial_optimizer_state(),
            client_versions=np.zeros(
                self.setup.config.num_client if keeps else 0, np.int64
            ),
            shared=self.initial_shared(),
        )

    def run_round(self, state: State) -> base.RoundOutcome:
        """Steps 1 to 3 of the module's docstring."""
        active, clients = self.clients(state)
        exchange = self.exchange(state, clients)
        bytes_down, bytes_up = self.num_bytes(state, clients, exchange)
        counted = [number for number, used in zip(active, exchange.used) if used]
        kept = {n: states.to_arrays(k) for n, k in zip(active, exchange.kept)}
        kept = {n: arrays for n, arrays in kept.items() if arrays and n in counted}
        versions = state.client_versions.copy()
        versions[list(kept)] = state.round_num + 1
        return base.RoundOutcome(
            state=State(
                round_num=state.round_num + 1,
                model_weights=tuple(exchange.mean.model_weights),
                optimizer_state=base.next_optimizer_state(self.setup.config, exchange),
                client_versions=versions,
                shared=self.next_shared(state, counted, exchange),
            ),
            clients=active,
            **base.left_out(self.setup.config, state.round_num, active, exchange),
            report=dict(exchange.own.report),
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            kept=kept,
        )

    def score_fn(self, state: State) -> ScoreFn:
        """Classification by the dense layer."""
        self.load_weights(self.classifier_weights(state))
        return self._score

    def exports(self, state: State) -> dict[str, np.ndarray]:
        """Nothing beside the weights."""
        return {}

    def check_kept(self, state: State) -> None:
        """See `Method`."""
        for number in np.flatnonzero(state.client_versions):
            self._kept_optimizer(state, int(number))

    def message(self, state: State) -> Message:
        """What the clients of the next round receive."""
        config = self.setup.config
        return Message(
            model_weights=state.model_weights,
            optimizer_state=state.optimizer_state,
            learning_rate=np.float32(learning_rate(config, state.round_num)),
            progress=np.float32(state.round_num / config.num_round),
            shared=self.broadcast(state),
        )

    def broadcast(self, state: State) -> Any:
        """What all clients receive of what is shared; by default all."""
        return state.shared

    def clients(self, state: State) -> Tuple[Tuple[int, ...], Sequence[Client]]:
        """Who trains, on what."""
        active = self.active(state)
        return active, [
            self._client(state, slot, number) for slot, number in enumerate(active)
        ]

    def active(self, state: State) -> Tuple[int, ...]:
        """Who trains in the coming round."""
        config = self.setup.config
        return episodes.active_clients(
            config.seed, state.round_num, config.num_client, config.num_active_client
        )

    def _client(self, state: State, slot: int, number: int) -> Client:
        data, round_index = self.setup.data, state.round_num
        indices = data.clients[number]
        words = episodes.client_words(self.setup.config.seed, round_index, number)
        truth = data.unlabeled_labels
        known = truth is not None
        sizes = len(indices.labeled), len(indices.unlabeled)
        return Client(
            labeled_x=data.images[indices.labeled],
            labeled_y=data.labels[indices.labeled].astype(np.int32),
            unlabeled_x=data.unlabeled_images[indices.unlabeled],
            unlabeled_y=(
                np.zeros(sizes[1], np.int32)
                if truth is None
                else truth[indices.unlabeled].astype(np.int32)
            ),
            unlabeled_y_known=np.bool_(known),
            steps=self.plan(np.random.RandomState(words), round_index, sizes),
            seed=words[:2].astype(np.int32),
            slot=np.int32(slot),
            optimizer_state=self._kept_optimizer(state, number),
            personal=self.personal(state, number),
            returns=base.returning(self.setup.config, round_index)[slot],
        )

    def _own_optimizer_state(self) -> Weights:
        if self.setup.config.optimizer_state != "client":
            return ()
        shapes = [tuple(w.shape) for w in self.model.trainable_variables]
        return self.optimizer.initial_state(shapes)

    def _kept_optimizer(self, state: State, number: int) -> Weights:
        fresh = self._own_optimizer_state()
        if not fresh or not state.client_versions[number]:
            return fresh
        version = int(state.client_versions[number])
        kept = self.client_states.get(number, version)
        found: Kept = states.from_arrays(Kept(optimizer_state=fresh), kept)
        return found.optimizer_state


class PairedMethod(ClassifierMethod):
    """A method whose steps take labelled and unlabelled images side by side."""

    def batch_sizes(self, sizes: Tuple[int, int]) -> Tuple[int, int]:
        """Labelled and unlabelled images a step, of so many that there are."""
        del sizes
        return LABELED_BATCH, UNLABELED_BATCH

    def plan(
        self, stream: np.random.RandomState, round_index: int, sizes: Tuple[int, int]
    ) -> Steps:
        """E epochs of paired batches."""
        del round_index
        epochs = self.setup.config.local_episode
        return episodes.paired_epochs(stream, sizes, self.batch_sizes(sizes), epochs)


def learning_rate(config: ExperimentConfig, round_index: int) -> float:
    """The rate of a round: constant, or max(lr cos(share pi r / R), 1e-6)."""
    if config.baseline_lr == "constant":
        return config.opt_lr
    share = COSINE_SHARES[config.baseline_lr]
    angle = share * math.pi * round_index / config.num_round
    return max(config.opt_lr * math.cos(angle), LOWEST_RATE)


def _client_spec(image_shape: Tuple[int, ...]) -> Client:
    images = tf.TensorSpec([None, *image_shape], tf.uint8)
    vector = tf.TensorSpec([None], tf.int32)
    table = tf.TensorSpec([None, None], tf.int32)
    return Client(
        labeled_x=images,
        labeled_y=vector,
        unlabeled_x=images,
        unlabeled_y=vector,
        unlabeled_y_known=tf.TensorSpec([], tf.bool),
        steps=Steps(
            labeled=table,
            labeled_count=vector,
            unlabeled=table,
            unlabeled_count=vector,
        ),
        seed=tf.TensorSpec([2], tf.int32),
        slot=tf.TensorSpec([], tf.int32),
        optimizer_state=(),
        returns=tf.TensorSpec([], tf.bool),
    )
