"""ProtoFSSL (Kim et al. 2022): clients exchange class prototypes beside weights.

A round, r counting from 0:

1. The server trims its bank of prototypes and picks the helpers' among them.
2. It draws the active clients and their episodes from the streams of (seed, r).
3. A federated computation (one a client where they train in turns): broadcast weights
   and helper prototypes; each client trains (`fl.client`); the weighted mean of all
   weights and each client's prototypes come back.
4. The mean becomes the new weights; the prototypes join the bank.

Images are classified by the mean, over prototype sets, of softmax(-distance).
"""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import attr
import numpy as np
import tensorflow as tf
from absl import logging

from data import episodes
from fl import client, evaluation, server
from fl.evaluation import ScoreFn
from fl.methods import base
from fl.process import CollectRound
from fl.server import HelperOptions, ServerState
from fl.types import Broadcast, ClientData, Prototypes
from flags.config import ExperimentConfig

SPREAD_EVERY = 10


class ProtoFSSL(base.Method):
    """See the module's docstring."""

    has_head = False

    def __init__(self, setup: base.Setup):
        super().__init__(setup)
        config = setup.config
        self._settings = client_settings(config, setup.data.num_classes)
        self._helpers = helper_options(config)
        state = self.initial_state()
        message = base.specs_of(self.message(state))
        data = client_spec(setup.data.images.shape[1:])
        self._refine = (
            CollectRound(
                self._make_prototypes,
                message.model_weights,
                data,
                config.num_active_client,
            )
            if config.refine_at_begin
            else None
        )
        self.train = base.bind_round(
            setup,
            self.optimizer,
            lambda local: (
                lambda message, data: client.client_update(
                    local, self._settings, message, data
                )
            ),
            message,
            data,
            config.num_active_client,
        )
        self._score = tf.function(
            lambda sets, images, labels: evaluation.score_with_prototypes(
                self.model, sets, images, labels, config.distance
            ),
            autograph=False,
            reduce_retracing=True,
        )

    def initial_state(self) -> ServerState:
        """No prototypes yet: round 0 is supervised only."""
        num_classes = self.setup.data.num_classes
        size = self.model.output_shape[-1]
        return ServerState(
            round_num=0,
            model_weights=tuple(self.setup.initial_weights),
            optimizer_state=self.initial_optimizer_state(),
            bank=server.no_prototypes(0, num_classes, size),
            helpers=server.no_prototypes(self._helpers.num_helpers, num_classes, size),
        )

    def run_round(self, state: ServerState) -> base.RoundOutcome:
        """Steps 1 to 4 of the module's docstring."""
        config = self.setup.config
        active, clients = self.clients(state)
        early = self._refine(state.model_weights, clients) if self._refine else None
        if early:
            state = _keep_last(state, early.counted(early.own))
        state = self.with_helpers(state)
        exchange = self.train(self.message(state), clients)
        returned = exchange.counted(exchange.own.prototypes)
        shared = Prototypes(
            values=returned.values, present=returned.present.astype(bool)
        )
        if config.comp_dist and state.round_num % SPREAD_EVERY == 0:
            _log_spread(shared, state.round_num)
        bank = state.bank if early else server.join(state.bank, shared)
        return base.RoundOutcome(
            state=attr.evolve(
                state,
                round_num=state.round_num + 1,
                model_weights=tuple(exchange.mean.model_weights),
                optimizer_state=base.next_optimizer_state(config, exchange),
                bank=bank,
            ),
            clients=active,
            **base.left_out(config, state.round_num, active, exchange),
            report={
                **attr.asdict(exchange.own.report),
                "pseudo_label_used": exchange.own.report.pseudo_label_count,
            },
            bytes_down=exchange.bytes_down + (early.bytes_down if early else 0),
            bytes_up=exchange.bytes_up + (early.bytes_up if early else 0),
        )

    def score_fn(self, state: ServerState) -> ScoreFn:
        """Classification by the prototypes that evaluation sees."""
        self.load_weights(state.model_weights)
        sets = tf.nest.map_structure(
            tf.constant, server.evaluation_prototypes(state, self._helpers)
        )
        return lambda images, labels: self._score(sets, images, labels)

    def exports(self, state: ServerState) -> dict[str, np.ndarray]:
        """The prototypes that evaluation sees."""
        sets = server.evaluation_prototypes(state, self._helpers)
        return {"prototypes": sets.values, "prototypes_present": sets.present}

    def with_helpers(self, state: ServerState) -> ServerState:
        """The state with the helpers of the coming round."""
        return server.refresh_helpers(state, self._helpers, state.round_num)

    def message(self, state: ServerState) -> Broadcast:
        """What the clients of a round receive, helpers being chosen."""
        return Broadcast(
            model_weights=state.model_weights,
            optimizer_state=state.optimizer_state,
            helpers=state.helpers,
            learning_rate=np.float32(self.setup.config.opt_lr),
        )

    def _make_prototypes(self) -> Callable[[Any, ClientData], Prototypes]:
        model = self.setup.model_fn()

        def make(weights: Any, data: ClientData) -> Prototypes:
            for variable, value in zip(model.weights, weights):
                variable.assign(value)
            made = client.make_prototypes(
                model, data.labeled_x, data.labeled_y, self._settings.num_classes
            )
            return client.withhold(
                made, data.labeled_y, self._settings.min_share_samples
            )

        return make

    def clients(
        self, state: ServerState
    ) -> Tuple[Tuple[int, ...], Sequence[ClientData]]:
        """Who trains, on what: the streams of (seed, round), client by client."""
        config, round_index = self.setup.config, state.round_num
        active = episodes.active_clients(
            config.seed, round_index, config.num_client, config.num_active_client
        )
        stream = episodes.round_stream(config.seed, round_index)
        return active, [
            self._client_data(stream, round_index, slot, number)
            for slot, number in enumerate(active)
        ]

    def _client_data(
        self, stream: np.random.RandomState, round_index: int, slot: int, number: int
    ) -> ClientData:
        config, data = self.setup.config, self.setup.data
        indices = data.clients[number]
        labels = data.labels[indices.labeled].astype(np.int32)
        drawn = episodes.sample_episodes(
            stream,
            base.class_counts(labels, data.num_classes),
            len(indices.unlabeled),
            unlabeled_counts(config, round_index),
            episode_options(config, round_index),
        )
        known = data.unlabeled_labels is not None
        words = episodes.client_words(config.seed, round_index, number)
        return ClientData(
            labeled_x=data.images[indices.labeled],
            labeled_y=labels,
            unlabeled_x=data.unlabeled_images[indices.unlabeled],
            unlabeled_y=(
                data.unlabeled_labels[indices.unlabeled].astype(np.int32)
                if data.unlabeled_labels is not None
                else np.zeros(len(indices.unlabeled), np.int32)
            ),
            unlabeled_y_known=np.bool_(known),
            slot=np.int32(slot),
            noise_seed=words[:2].astype(np.int32),
            returns=base.returning(config, round_index)[slot],
            **attr.asdict(drawn),
        )


def client_settings(
    config: ExperimentConfig, num_classes: int
) -> client.ClientSettings:
    """The client update's part of the configuration."""
    return client.ClientSettings(
        num_classes=num_classes,
        distance=config.distance,
        unlabeled_weight=config.unlabeled_weight,
        temperature=config.temperature,
        unlabeled_loss_type=config.unlabel_loss_type,
        pseudo_label_gradient=config.pseudo_label_gradient,
        global_prototypes=config.prototype_source == "global",
        noise_stddev=config.stddev if config.use_noise else 0.0,
        min_share_samples=config.min_share_samples,
        weight_by_examples=config.aggregation == "examples",
        **base.shares_optimizer(config),
    )


def helper_options(config: ExperimentConfig) -> HelperOptions:
    """The server's part of the configuration."""
    by_policy = {"all_kept": None, "newest": config.helper_cnt}
    return HelperOptions(
        capacity=config.keep_proto_rounds * config.num_active_client,
        count=by_policy[config.helper_policy],
        eval_count=by_policy[config.eval_prototypes],
        interval=config.helper_interval,
        fill_absent=config.absent_class == "fill",
    )


def unlabeled_counts(config: ExperimentConfig, round_index: int) -> Sequence[bool]:
    """For each episode of a round, whether unlabelled data counts."""
    return [
        round_index > config.unlabel_round and episode >= config.warmup_episode
        for episode in range(config.local_episode)
    ]


def episode_options(
    config: ExperimentConfig, round_index: int
) -> episodes.EpisodeOptions:
    """Sizes of the draws; Algorithm 2 needs the helpers there are from round 1 on."""
    return episodes.EpisodeOptions(
        support=config.s_label,
        query=config.q_label,
        unlabeled=config.q_unlabel,
        draw_idle=config.idle_unlabeled == "pass",
        all_query=config.prototype_source == "global" and round_index > 0,
    )


def client_spec(image_shape: Tuple[int, ...]) -> ClientData:
    """The types of `ClientData` for images of a shape; sizes vary by client."""
    images = tf.TensorSpec([None, *image_shape], tf.uint8)
    vector = tf.TensorSpec([None], tf.int32)
    table = tf.TensorSpec([None, None], tf.int32)
    return ClientData(
        labeled_x=images,
        labeled_y=vector,
        unlabeled_x=images,
        unlabeled_y=vector,
        unlabeled_y_known=tf.TensorSpec([], tf.bool),
        support=table,
        query=table,
        unlabeled=table,
        unlabeled_drawn=vector,
        unlabeled_active=tf.TensorSpec([None], tf.bool),
        slot=tf.TensorSpec([], tf.int32),
        noise_seed=tf.TensorSpec([2], tf.int32),
        returns=tf.TensorSpec([], tf.bool),
    )


def _keep_last(state: ServerState, made: Prototypes) -> ServerState:
    """--refine_at_begin: the last returned set joins the bank, as in theirs."""
    last = Prototypes(values=made.values[-1:], present=made.present[-1:].astype(bool))
    return attr.evolve(state, bank=server.join(state.bank, last))


def _log_spread(shared: Prototypes, round_index: int) -> None:
    spread: Any = server.class_spread(shared)
    text = " ".join(f"{value:.4f}" for value in spread)
    logging.info(
        "round %d: mean distance between clients' prototypes by class: %s",
        round_index + 1,
        text,
    )
