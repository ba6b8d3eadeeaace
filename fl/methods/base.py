"""What a method is to the loop that runs it, and what all methods share."""

from __future__ import annotations

import abc
from typing import Any, Callable, Mapping, Sequence, Tuple, Union

import attr
import numpy as np
import tensorflow as tf

from data.partition import FederatedData
from fl.client_states import Arrays, ClientStates, StatesInMemory
from fl.evaluation import ScoreFn
from fl.local import LocalModel, ModelFn, Regularization
from fl.optimizers import Optimizer, make_optimizer
from fl.process import MessageTooLarge, ParallelRound, SequentialRound
from fl.types import ClientOutput, Weights
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.workers import parse_workers

Round = Union[ParallelRound, SequentialRound]

_DROPOUT_STREAM = 4


@attr.frozen(eq=False)
class Setup:
    """What a method is made from.

    Attributes:
        config: the run's configuration.
        data: images and who has which.
        model_fn: builds the network, headless if the method wants it so.
        initial_weights: in the order of `model.get_weights()`.
    """

    config: ExperimentConfig
    data: FederatedData
    model_fn: ModelFn
    initial_weights: Tuple[np.ndarray, ...]


@attr.frozen(eq=False)
class RoundOutcome:
    """A round's new state and what there is to record of it.

    Attributes:
        state: the server's new state.
        clients: the active clients in the order they trained.
        report: figures by name, one row a client; absent where the method has none.
        bytes_down: broadcast to all clients.
        bytes_up: returned by all clients.
        kept: for each client that keeps something until it trains again, what it is.
        dropped: those of the clients of whom nothing came back.
        not_finite: those whose values were not finite; neither count in the mean.
    """

    state: Any
    clients: Tuple[int, ...]
    report: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: int
    kept: Mapping[int, Arrays] = attr.field(factory=dict)
    dropped: Tuple[int, ...] = ()
    not_finite: Tuple[int, ...] = ()


class Method(abc.ABC):
    """A way to train in federated rounds."""

    # Whether the network keeps its last dense layer.
    has_head: bool = True

    def __init__(self, setup: Setup):
        self.setup = setup
        # Where clients find what they kept; the loop puts a folder here.
        self.client_states: ClientStates = StatesInMemory()
        self.model = setup.model_fn()
        self.optimizer = make_optimizer(
            setup.config.optimizer, setup.config.opt_momentum
        )

    @abc.abstractmethod
    def initial_state(self) -> Any:
        """The server's state before the first round."""

    @abc.abstractmethod
    def run_round(self, state: Any) -> RoundOutcome:
        """One round: a function of the state (with its round) and the seed."""

    @abc.abstractmethod
    def score_fn(self, state: Any) -> ScoreFn:
        """How the state's model classifies images and what that costs."""

    @abc.abstractmethod
    def exports(self, state: Any) -> dict[str, np.ndarray]:
        """The arrays beside the weights that classification needs."""

    def initial_optimizer_state(self) -> Weights:
        """Zeros where the server has one; nothing where clients have their own."""
        if self.setup.config.optimizer_state in ("fresh", "client"):
            return ()
        shapes = [tuple(w.shape) for w in self.model.trainable_variables]
        return self.optimizer.initial_state(shapes)

    def classifier_weights(self, state: Any) -> Weights:
        """The weights of the network that classifies."""
        weights: Weights = state.model_weights
        return weights

    def rounds_read(self, round_num: int) -> Tuple[int, ...]:
        """Rounds, in order, whose clients' states a run resumed after one may read.

        A state is as it was at the end of such a round, or newer than the last.
        """
        return (round_num,)

    def check_kept(self, state: Any) -> None:
        """Reads all that clients kept and the rounds to come may want.

        Raises:
            CheckpointError: if something is missing or damaged.
            StateError: if something is not what such a client keeps.
        """
        del state  # By default clients keep nothing.

    def load_weights(self, weights: Weights) -> None:
        """Sets the weights of the model that evaluates."""
        self.model.set_weights(list(weights))


def regularization(config: ExperimentConfig) -> Regularization:
    """The terms that the configuration adds to any loss."""
    return Regularization(
        l2_factor=config.l2_factor if config.l2_in_loss else 0.0,
        mu=config.mu if config.fl_framework == "fedprox" else 0.0,
        proximal_gradient=config.proximal_gradient,
        weight_decay=config.weight_decay,
    )


def bind_round(
    setup: Setup,
    optimizer: Optimizer,
    make_update: Callable[[LocalModel], Callable[[Any, Any], ClientOutput]],
    message_spec: Any,
    client_spec: Any,
    num_clients: int,
) -> Round:
    """The TFF round for an update, with the configured optimizer treatment.

    Clients train in turns where one hands its optimizer on to the next, and on a single
    worker where each keeps its own: that is as large as the weights, and turns need no
    slots for it.

    Raises:
        UsageError: if there are more clients than a message has room for.
    """
    config = setup.config
    several = parse_workers(config.workers).number > 1

    def trace_update() -> Any:
        local = LocalModel(setup.model_fn, optimizer, regularization(config))
        return make_update(local)

    made: Round
    if config.optimizer_state in ("sequential", "client") and not several:
        hand_on = _HAND_ON[config.optimizer_state]
        made = SequentialRound(trace_update, message_spec, client_spec, hand_on)
    else:
        try:
            made = ParallelRound(trace_update, message_spec, client_spec, num_clients)
        except MessageTooLarge as error:
            raise UsageError(
                f"--num_active_client: found {config.num_active_client}; what so many "
                "keep and return is more than one of TFF's messages holds; must be at "
                f"most {error.most_clients} here"
            ) from None
    back_to_eager(setup.model_fn)
    return made


def back_to_eager(model_fn: ModelFn) -> None:
    """Mends what tracing does to Keras models made before.

    TFF traces in a graph of the old kind. A Keras model made there switches Keras's
    layer classes to that mode, and models made eagerly before no longer run. Making
    one eagerly switches the classes back.
    """
    model_fn()


_HAND_ON: Mapping[str, Callable[[Any, Any], Any]] = {
    "sequential": lambda message, state: attr.evolve(message, optimizer_state=state),
    "client": lambda message, nothing: message,
}


def next_optimizer_state(config: ExperimentConfig, exchange: Any) -> Weights:
    """The server's optimizer state after a round."""
    if config.optimizer_state == "averaged":
        return tuple(exchange.mean.optimizer_state)
    return tuple(exchange.handed_on)


def returning(config: ExperimentConfig, round_index: int) -> np.ndarray:
    """Which of a round's active clients do not drop out of it; at least one, bool [m].

    A stream of (seed, round) of its own, so that it changes nothing else.
    """
    words = np.random.SeedSequence([config.seed, round_index, _DROPOUT_STREAM])
    draws = np.random.default_rng(words).uniform(size=config.num_active_client)
    returns = draws >= config.client_dropout
    returns[np.argmax(draws)] = True
    return returns


def left_out(
    config: ExperimentConfig, round_index: int, active: Sequence[int], exchange: Any
) -> dict[str, Any]:
    """The clients of a round that do not count, by reason."""
    returns = returning(config, round_index)
    fates = list(zip(active, returns, exchange.used))
    return {
        "dropped": tuple(n for n, returned, _ in fates if not returned),
        "not_finite": tuple(n for n, returned, used in fates if returned > used),
    }


def specs_of(arrays: Any) -> Any:
    """The `tf.TensorSpec` of each array of a structure."""
    return tf.nest.map_structure(
        lambda x: tf.TensorSpec(np.shape(x), np.asarray(x).dtype), arrays
    )


def class_counts(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """How many labels there are of each class, [K]."""
    return np.bincount(labels, minlength=num_classes)


def shares_optimizer(config: ExperimentConfig) -> dict[str, bool]:
    """The two switches of a client update that concern the optimizer's state."""
    return {
        "share_optimizer": config.optimizer_state == "averaged",
        "pass_on_optimizer": config.optimizer_state == "sequential",
    }
