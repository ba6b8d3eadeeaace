"""The binding to TensorFlow Federated: a round as federated computations.

    message@SERVER -> broadcast -> client update -> weighted sum, slots -> mean@SERVER

A method gives a client update in plain TensorFlow; this module turns it into

* `ParallelRound`: all clients at once, and the weighted mean of what they return;
* `SequentialRound`: one client after another, where each must wait for the one before;
  the server adds up the weighted sums and takes the mean at the end.

A client that drops out, or that returns values that are not finite, does not count: it
adds nothing to the sums, hands on what it was handed, and the server is told.

What the server keeps of each client apart travels in slots: TFF only sums, so a client
places its values in a zero-padded array with one row a client, at its own row, and the
sum of these arrays is the list. Weighted sums and slots go through a single
`federated_sum`, so that a round can be spread over several workers.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import attr
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl import held
from fl.types import ClientOutput

# Makes, while a computation is traced, the update: (message, client) -> ClientOutput.
MakeUpdate = Callable[[], Callable[[Any, Any], ClientOutput]]


# What TFF's messages, which are protocol buffers, can hold.
MESSAGE_BYTES = 2**31 - 1


class MessageTooLarge(Exception):
    """What the clients of a round return is more than a message holds.

    Attributes:
        most_clients: how many of them would fit.
    """

    def __init__(self, most_clients: int):
        super().__init__(f"a message holds the rows of {most_clients} clients")
        self.most_clients = most_clients


@attr.frozen(eq=False)
class Totals:
    """Sums over clients: of weight times what is averaged, and of the weights."""

    weighted: Any
    weight: Any


@attr.frozen(eq=False)
class Slots:
    """What each client returns apart, and whether it counts; one row a client."""

    own: Any
    used: Any


@attr.frozen(eq=False)
class Returned:
    """What a client's update gives: parts of the sums, what it hands on and keeps."""

    totals: Totals
    slots: Any
    handed_on: Any
    kept: Any


@attr.frozen(eq=False)
class Apart:
    """What the server gets of a client apart from the sums."""

    slots: Any
    kept: Any


@attr.frozen(eq=False)
class Turn:
    """What a turn leaves: for the next one, for the end, and of its client apart."""

    message: Any
    totals: Any
    handed_on: Any
    apart: Apart


@attr.frozen(eq=False)
class Exchange:
    """What a round brought.

    Attributes:
        mean: the weighted mean over the clients, eq. (1).
        own: what each client returned apart, one row a client.
        handed_on: what the last client handed on; nothing where all train at once.
        kept: for each client what it keeps. It stays at the client and does not count
            as sent.
        bytes_down: bytes broadcast to all clients.
        bytes_up: bytes that all clients returned.
        used: bool, one a client: whether it counts. Without one the mean is none.
    """

    mean: Any
    own: Any
    handed_on: Any
    kept: Sequence[Any]
    bytes_down: int
    bytes_up: int
    used: np.ndarray

    def counted(self, rows: Any) -> Any:
        """Of rows of clients those that count."""
        return tf.nest.map_structure(lambda x: x[self.used], rows)


class ParallelRound:
    """All clients of a round in one federated computation."""

    def __init__(
        self,
        make_update: MakeUpdate,
        message_spec: Any,
        client_spec: Any,
        num_clients: int,
    ):
        """Binds a method's client update to TFF.

        Args:
            make_update: called while tracing; makes the variables and the update.
            message_spec: structure of `tf.TensorSpec` of what is broadcast.
            client_spec: the same of a client's input; it has a field `slot`.
            num_clients: how many clients take part in a round.

        Raises:
            MessageTooLarge: if they return more than a message holds.
        """
        message_type, clients_type = _placed_types(message_spec, client_spec)
        train = _client_computation(
            make_update, message_type.member, clients_type.member, num_clients
        )
        _check_size(train.type_signature.result, num_clients)
        divide = tff.tensorflow.computation(
            _weighted_mean, train.type_signature.result.totals
        )

        @tff.federated_computation(message_type, clients_type)
        def run_round(message, clients):  # type: ignore[no-untyped-def]
            returned = tff.federated_sum(
                tff.federated_map(train, (tff.federated_broadcast(message), clients))
            )
            mean = tff.federated_map(divide, returned.totals)
            return mean, returned.slots, returned.kept

        self.computation = run_round

    def __call__(self, message: Any, clients: Sequence[Any]) -> Exchange:
        """Runs the round in TFF's runtime; the clients may be fewer than the slots."""
        mean, slots, kept = self.computation(message, list(clients))
        rows = tf.nest.map_structure(lambda x: x[: len(clients)], slots)
        return Exchange(
            mean=mean,
            own=rows.own,
            handed_on=(),
            kept=[_row(kept, slot) for slot in range(len(clients))],
            bytes_down=len(clients) * num_bytes(message),
            bytes_up=_bytes_up(clients, mean, rows.own),
            used=rows.used.astype(bool),
        )


class SequentialRound:
    """One client after another, each waiting for something of the one before.

    Each turn is a federated computation with one client. What the next turn wants, the
    weights, the sums so far and what was handed on, stays at the worker. (A single
    computation of all turns would do that too, but the worker would compile every turn
    apart and hold the memory of all of them.)
    """

    def __init__(
        self,
        make_update: MakeUpdate,
        message_spec: Any,
        client_spec: Any,
        hand_on: Callable[[Any, Any], Any],
    ):
        """Binds a method's client update to TFF.

        Args:
            make_update: see `ParallelRound`.
            message_spec: see there.
            client_spec: see there.
            hand_on: (message, what the client handed on) -> the message for the next.
        """
        self._message_type, self._clients_type = _placed_types(
            message_spec, client_spec
        )
        message_type = self._message_type.member
        train = _client_computation(
            make_update, message_type, self._clients_type.member, 1
        )
        returned_type = train.type_signature.result
        totals_type = returned_type.totals
        pass_on = tff.tensorflow.computation(
            hand_on, [message_type, returned_type.handed_on]
        )
        add = tff.tensorflow.computation(_sum, [totals_type, totals_type])
        divide = tff.tensorflow.computation(_weighted_mean, totals_type)
        no_totals = tff.tensorflow.computation(lambda: _zeros(totals_type))

        @tff.federated_computation
        def begin():  # type: ignore[no-untyped-def]
            return tff.federated_eval(no_totals, tff.SERVER)

        @tff.federated_computation(
            self._message_type,
            tff.FederatedType(totals_type, tff.SERVER),
            self._clients_type,
        )
        def run_turn(message, totals, clients):  # type: ignore[no-untyped-def]
            returned = tff.federated_sum(
                tff.federated_map(train, (tff.federated_broadcast(message), clients))
            )
            return Turn(
                message=tff.federated_map(pass_on, (message, returned.handed_on)),
                totals=tff.federated_map(add, (totals, returned.totals)),
                handed_on=returned.handed_on,
                apart=Apart(returned.slots, returned.kept),
            )

        turn_type = run_turn.type_signature.result

        @tff.federated_computation(turn_type.apart)
        def fetch(apart):  # type: ignore[no-untyped-def]
            return apart

        @tff.federated_computation(turn_type.totals, turn_type.handed_on)
        def end(totals, handed_on):  # type: ignore[no-untyped-def]
            return tff.federated_map(divide, totals), handed_on

        self.computation = run_turn
        self._begin, self._run_turn = (
            held.function(begin, 1),
            held.function(run_turn, 1),
        )
        self._fetch, self._end = fetch, end

    def __call__(self, message: Any, clients: Sequence[Any]) -> Exchange:
        """Runs the turns in TFF's runtime, in the order given."""
        given = held.sent(message, self._message_type, 1)
        totals = held.called(self._begin)
        apart = []
        for client in clients:
            data = held.sent([client], self._clients_type, 1)
            turn = held.called(self._run_turn, given, totals, data)
            given, totals, handed_on, own = (turn[i] for i in range(4))
            apart.append(self._fetch(own))
            turn.forget_sources()
        mean, last = self._end(totals, handed_on)
        slots = tf.nest.map_structure(
            lambda *x: np.concatenate(x), *(one.slots for one in apart)
        )
        return Exchange(
            mean=mean,
            own=slots.own,
            handed_on=last,
            kept=[_row(one.kept, 0) for one in apart],
            bytes_down=len(clients) * num_bytes(message),
            bytes_up=_bytes_up(clients, (mean, last), slots.own),
            used=slots.used.astype(bool),
        )


class CollectRound:
    """Something of each client apart, made with the weights broadcast; no mean."""

    def __init__(
        self,
        make_work: Callable[[], Callable[[Any, Any], Any]],
        weights_spec: Any,
        client_spec: Any,
        num_clients: int,
    ):
        """Binds the clients' work to TFF.

        Args:
            make_work: called while tracing; makes the variables and the function
                (weights, client) -> what the client returns.
            weights_spec: structure of `tf.TensorSpec` of the weights.
            client_spec: the same of a client's input; it has a field `slot`.
            num_clients: how many clients take part in a round.
        """
        weights_type, clients_type = _placed_types(weights_spec, client_spec)

        @tff.tensorflow.computation(weights_type.member, clients_type.member)
        def work(weights, client):  # type: ignore[no-untyped-def]
            made = _traced(make_work())(weights, client)
            return _in_slots(made, client.slot, num_clients)

        @tff.federated_computation(weights_type, clients_type)
        def collect(weights, clients):  # type: ignore[no-untyped-def]
            return tff.federated_sum(
                tff.federated_map(work, (tff.federated_broadcast(weights), clients))
            )

        self.computation = collect

    def __call__(self, weights: Any, clients: Sequence[Any]) -> Exchange:
        """Runs it in TFF's runtime; there is no mean in what it brings."""
        own = self.computation(weights, list(clients))
        return Exchange(
            mean=None,
            own=own,
            handed_on=(),
            kept=(),
            bytes_down=len(clients) * num_bytes(weights),
            bytes_up=_bytes_up(clients, (), own),
            used=np.array([_returns(client) for client in clients]),
        )


def num_bytes(structure: Any) -> int:
    """The bytes of all arrays of a structure."""
    return sum(np.asarray(x).nbytes for x in tf.nest.flatten(structure))


def _bytes_up(clients: Sequence[Any], each: Any, rows: Any) -> int:
    """What those send who do not drop out: something each, and a row each."""
    sent = sum(_returns(client) for client in clients)
    return sent * (num_bytes(each) + num_bytes(rows) // len(clients))


def _returns(client: Any) -> bool:
    """Whether a client's values come back; only some methods' clients drop out."""
    return bool(getattr(client, "returns", True))


def _placed_types(message_spec: Any, client_spec: Any) -> Tuple[Any, Any]:
    return (
        tff.FederatedType(tff.types.tensorflow_to_type(message_spec), tff.SERVER),
        tff.FederatedType(tff.types.tensorflow_to_type(client_spec), tff.CLIENTS),
    )


def _client_computation(
    make_update: MakeUpdate,
    message_type: Any,
    client_type: Any,
    num_slots: int,
) -> tff.Computation:
    """A client's part: its shares of the sums, and what is its own in slots."""

    @tff.tensorflow.computation(message_type, client_type)
    def train(message, client):  # type: ignore[no-untyped-def]
        output = _traced(make_update())(message, client)
        used = _counts(output, client)
        return Returned(
            totals=Totals(
                weighted=tf.nest.map_structure(
                    lambda x: _if(used, output.weight * x), output.averaged
                ),
                weight=_if(used, output.weight),
            ),
            slots=_in_slots(Slots(output.own, used), client.slot, num_slots),
            handed_on=_handed_on(used, output),
            kept=_in_slots(output.kept, client.slot, num_slots),
        )

    return train


def _check_size(returned: Any, num_clients: int) -> None:
    """Whether sums, and a row each of what is apart, fit into a message."""
    rows = _type_bytes(returned.slots) + _type_bytes(returned.kept)
    space = MESSAGE_BYTES - _type_bytes(returned.totals)
    if rows > space:
        raise MessageTooLarge(space * num_clients // rows)


def _type_bytes(type_: Any) -> int:
    specs = tf.nest.flatten(tff.types.type_to_tf_tensor_specs(type_))
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a graph; loops over tensors are explicit, and rewriting code takes seconds."""
    return tf.function(function, autograph=False)


def _counts(output: ClientOutput, client: Any) -> tf.Tensor:
    """Whether a client enters the mean: it is there, and its values are finite."""
    values = tf.nest.flatten(
        (output.averaged, output.vital, output.handed_on, output.kept)
    )
    conditions = [
        tf.reduce_all(tf.math.is_finite(x)) for x in values if x.dtype.is_floating
    ]
    return tf.reduce_all([getattr(client, "returns", True), *conditions])


def _if(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The value or zeros; 0 times the value would leave NaN what it is."""
    return tf.where(condition, value, tf.zeros([], value.dtype))


def _handed_on(used: tf.Tensor, output: ClientOutput) -> Any:
    if not tf.nest.flatten(output.received):
        return output.handed_on
    return tf.nest.map_structure(
        lambda new, old: tf.where(used, new, old), output.handed_on, output.received
    )


def _sum(first: Any, second: Any) -> Any:
    return tf.nest.map_structure(tf.add, first, second)


def _zeros(type_: Any) -> Any:
    specs = tff.types.type_to_tf_tensor_specs(type_)
    return tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), specs)


def _row(structure: Any, slot: int) -> Any:
    return tf.nest.map_structure(lambda rows: rows[slot], structure)


def _in_slots(structure: Any, slot: tf.Tensor, num_slots: int) -> Any:
    return tf.nest.map_structure(lambda x: _in_slot(x, slot, num_slots), structure)


def _in_slot(value: tf.Tensor, slot: tf.Tensor, num_slots: int) -> tf.Tensor:
    """[...] -> [num_slots, ...], zero but for the row `slot`; booleans as int32."""
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.int32)
    if num_slots == 1:
        return value[tf.newaxis]
    row = tf.reshape(
        tf.equal(tf.range(num_slots), slot), [num_slots] + [1] * len(value.shape)
    )
    return _if(row, value[tf.newaxis])


def _weighted_mean(totals: Totals) -> Any:
    """Eq. (1) of Kim et al. 2022: sum_i w_i x_i / sum_i w_i."""
    return tf.nest.map_structure(lambda x: x / totals.weight, totals.weighted)
