"""The binding to TFF, on updates small enough to compute by hand."""

from __future__ import annotations

from typing import Any

import attr
import numpy as np
import pytest
import tensorflow as tf

from fl import process
from fl.types import ClientOutput


@attr.frozen(eq=False)
class Message:
    base: Any
    carried: Any


@attr.frozen(eq=False)
class Client:
    value: Any
    weight: Any
    slot: Any


MESSAGE = Message(tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32))
CLIENT = Client(
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([], tf.int32),
)


def make_update() -> Any:
    """Each client adds its value; it hands on what it was handed, plus its value."""

    def update(message: Message, client: Client) -> ClientOutput:
        return ClientOutput(
            averaged=message.base + client.value + message.carried,
            weight=client.weight,
            own={"value": client.value, "large": client.value > 1.5},
            handed_on=message.carried + client.value,
        )

    return update


def make_parallel_update() -> Any:
    update = make_update()
    return lambda message, client: attr.evolve(update(message, client), handed_on=())


def clients(values: Any, weights: Any) -> Any:
    return [
        Client(np.float32(v), np.float32(w), np.int32(i))
        for i, (v, w) in enumerate(zip(values, weights))
    ]


def message(carried: float = 0.0) -> Message:
    return Message(np.array([10.0, 20.0], np.float32), np.float32(carried))


@pytest.fixture(scope="module")
def parallel(worker: Any) -> process.ParallelRound:
    return process.ParallelRound(make_parallel_update, MESSAGE, CLIENT, 3)


@pytest.fixture(scope="module")
def sequential(worker: Any) -> process.SequentialRound:
    return process.SequentialRound(
        make_update,
        MESSAGE,
        CLIENT,
        lambda message, handed: attr.evolve(message, carried=handed),
    )


def test_type_of_the_parallel_round(parallel: process.ParallelRound) -> None:
    """Message at the server, clients at the clients; all results at the server."""
    assert parallel.computation.type_signature.compact_representation() == (
        "(<message=<base=float32[2],carried=float32>@SERVER,"
        "clients={<value=float32,weight=float32,slot=int32>}@CLIENTS> -> "
        "<float32[2]@SERVER,"
        "<own=<value=float32[3],large=int32[3]>,used=int32[3]>@SERVER,<>@SERVER>)"
    )


def test_clients_that_keep_too_much_for_a_message_are_refused(worker: Any) -> None:
    """4 MiB kept and three numbers a client: 511 of them stay under 2 GiB, 512 not."""

    def make_keeping_update() -> Any:
        update = make_parallel_update()
        return lambda message, client: attr.evolve(
            update(message, client), kept=tf.zeros([2**20])
        )

    process.ParallelRound(make_keeping_update, MESSAGE, CLIENT, 511)
    with pytest.raises(process.MessageTooLarge) as refused:
        process.ParallelRound(make_keeping_update, MESSAGE, CLIENT, 512)
    assert refused.value.most_clients == 511


def test_type_of_a_turn(sequential: process.SequentialRound) -> None:
    """Message and sums go in and come out; and a client's row and what it hands on."""
    assert sequential.computation.type_signature.compact_representation() == (
        "(<message=<base=float32[2],carried=float32>@SERVER,"
        "totals=<weighted=float32[2],weight=float32>@SERVER,"
        "clients={<value=float32,weight=float32,slot=int32>}@CLIENTS> -> "
        "<message=<base=float32[2],carried=float32>@SERVER,"
        "totals=<weighted=float32[2],weight=float32>@SERVER,"
        "handed_on=float32@SERVER,"
        "apart=<slots=<own=<value=float32[1],large=int32[1]>,used=int32[1]>@SERVER,"
        "kept=<>@SERVER>>)"
    )


def test_weighted_mean(parallel: process.ParallelRound) -> None:
    """(1*11 + 2*12 + 5*13) / 8 = 12.5, and 10 more for the second component."""
    result = parallel(message(), clients([1, 2, 3], [1, 2, 5]))
    np.testing.assert_allclose(result.mean, [12.5, 22.5], rtol=1e-6)


def test_slots_keep_the_order_of_clients(parallel: process.ParallelRound) -> None:
    result = parallel(message(), clients([3, 1, 2], [1, 1, 1]))
    np.testing.assert_array_equal(result.own["value"], [3, 1, 2])
    np.testing.assert_array_equal(result.own["large"], [1, 0, 1])


def test_turns_hand_on(sequential: process.SequentialRound) -> None:
    """Carried: 100, 101, 103, at the end 106.

    So the clients return 10 + 1 + 100 = 111, 10 + 2 + 101 = 113, 10 + 3 + 103 = 116;
    with weights 1, 2, 1 their mean is (111 + 226 + 116) / 4 = 113.25.
    """
    result = sequential(message(100.0), clients([1, 2, 3], [1, 2, 1]))
    np.testing.assert_allclose(result.mean, [113.25, 123.25], rtol=1e-6)
    assert result.handed_on == pytest.approx(106.0)
    np.testing.assert_array_equal(result.own["value"], [1, 2, 3])


def test_bytes_are_those_of_the_values(
    parallel: process.ParallelRound, sequential: process.SequentialRound
) -> None:
    """Down: 3 clients times (2 + 1) floats. Up: 3 times 2 floats, and 3 + 3 in slots.

    In turns each client also returns the float it hands on.
    """
    given = clients([1, 2, 3], [1, 1, 1])
    result = parallel(message(), given)
    assert (result.bytes_down, result.bytes_up) == (36, 48)
    result = sequential(message(), given)
    assert (result.bytes_down, result.bytes_up) == (36, 60)


def test_collect_brings_one_row_a_client(worker: Any) -> None:
    """Weights 2 times values 5, 7."""
    collect = process.CollectRound(
        lambda: lambda weights, client: weights * client.value,
        tf.TensorSpec([], tf.float32),
        CLIENT,
        2,
    )
    result = collect(np.float32(2), clients([5, 7], [1, 1]))
    np.testing.assert_array_equal(result.own, [10, 14])
    assert result.mean is None


@attr.frozen(eq=False)
class Leaving:
    """A client that may drop out."""

    value: Any
    weight: Any
    slot: Any
    returns: Any


LEAVING = Leaving(
    CLIENT.value, CLIENT.weight, CLIENT.slot, returns=tf.TensorSpec([], tf.bool)
)


def make_careful_update() -> Any:
    """As above, with a vital value: the square root of the client's value."""
    update = make_update()

    def careful(message: Message, client: Client) -> ClientOutput:
        return attr.evolve(
            update(message, client),
            received=message.carried,
            vital=tf.sqrt(client.value),
            kept=(client.value,),
        )

    return careful


def leaving(values: Any, weights: Any, returns: Any) -> Any:
    return [
        Leaving(c.value, c.weight, c.slot, np.bool_(stays))
        for c, stays in zip(clients(values, weights), returns)
    ]


@pytest.fixture(scope="module")
def careful_parallel(worker: Any) -> process.ParallelRound:
    def make() -> Any:
        update = make_careful_update()
        return lambda message, client: attr.evolve(
            update(message, client), handed_on=(), received=()
        )

    return process.ParallelRound(make, MESSAGE, LEAVING, 3)


@pytest.fixture(scope="module")
def careful_sequential(worker: Any) -> process.SequentialRound:
    return process.SequentialRound(
        make_careful_update,
        MESSAGE,
        LEAVING,
        lambda message, handed: attr.evolve(message, carried=handed),
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_client_that_is_not_finite_is_left_out(
    careful_parallel: process.ParallelRound, bad: float
) -> None:
    """(1*11 + 5*13) / 6 = 12.667; -1 is finite itself, its square root is not."""
    given = leaving([1, bad, 3], [1, 2, 5], [True] * 3)
    result = careful_parallel(message(), given)
    np.testing.assert_array_equal(result.used, [True, False, True])
    np.testing.assert_allclose(result.mean, [76 / 6, 136 / 6], rtol=1e-6)
    np.testing.assert_array_equal(result.own["value"], np.float32([1, bad, 3]))
    np.testing.assert_array_equal(result.counted(result.own["value"]), [1, 3])
    assert [float(kept[0]) for kept in result.kept][::2] == [1, 3]


def test_a_client_that_drops_out_is_left_out(
    careful_parallel: process.ParallelRound,
) -> None:
    """(2*12 + 5*13) / 7; the other two send 2 floats each, and 2 in slots."""
    given = leaving([1, 2, 3], [1, 2, 5], [False, True, True])
    result = careful_parallel(message(), given)
    np.testing.assert_array_equal(result.used, [False, True, True])
    np.testing.assert_allclose(result.mean, [89 / 7, 159 / 7], rtol=1e-6)
    assert result.bytes_up == 2 * 4 * (2 + 2)
    assert result.bytes_down == 36


def test_nobody_left(careful_parallel: process.ParallelRound) -> None:
    result = careful_parallel(message(), leaving([1, -1, 3], [1] * 3, [0, 1, 0]))
    assert not result.used.any()


@pytest.mark.parametrize(
    ("values", "returns"), [([1, np.nan, 3], [1, 1, 1]), ([1, 2, 3], [1, 0, 1])]
)
def test_turns_hand_on_past_one_that_is_left_out(
    careful_sequential: process.SequentialRound, values: Any, returns: Any
) -> None:
    """Carried: 100, 101, 101, at the end 104; they return 111 and 10 + 3 + 101."""
    given = leaving(values, [1, 2, 1], returns)
    result = careful_sequential(message(100.0), given)
    np.testing.assert_array_equal(result.used, [True, False, True])
    np.testing.assert_allclose(result.mean, [112.5, 122.5], rtol=1e-6)
    assert result.handed_on == pytest.approx(104.0)


def test_turns_hand_on_past_the_last_one(
    careful_sequential: process.SequentialRound,
) -> None:
    given = leaving([1, 2, np.inf], [1, 1, 1], [1, 1, 1])
    result = careful_sequential(message(100.0), given)
    assert result.handed_on == pytest.approx(103.0)


def test_one_that_hands_on_what_is_not_finite_is_left_out(worker: Any) -> None:
    """Its own values are finite, its optimizer's are not; the next gets the old."""

    def make() -> Any:
        update = make_update()
        return lambda message, client: attr.evolve(
            update(message, client),
            handed_on=message.carried + 1.0 / (client.value - 2.0),
            received=message.carried,
        )

    turns = process.SequentialRound(
        make,
        MESSAGE,
        CLIENT,
        lambda message, handed: attr.evolve(message, carried=handed),
    )
    result = turns(message(100.0), clients([2, 3], [1, 1]))
    np.testing.assert_array_equal(result.used, [False, True])
    assert result.handed_on == pytest.approx(101.0)


def test_turns_with_nobody_left(careful_sequential: process.SequentialRound) -> None:
    result = careful_sequential(message(100.0), leaving([1, 2], [1, 1], [0, 0]))
    assert not result.used.any()
    assert result.handed_on == pytest.approx(100.0)
    assert [float(kept[0]) for kept in result.kept] == [1, 2]
