"""Tests that a record of arrays comes back from its flat form as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attr
import numpy as np
import pytest

from fl import checkpoints, server, states
from fl.server import ServerState
from fl.states import StateError


@attr.frozen(eq=False)
class Nest:
    """Tuples in tuples, with a number inside."""

    pairs: Any


def random_state(rounds: int, sets: int) -> ServerState:
    rng = np.random.default_rng(rounds)
    bank = server.no_prototypes(sets, 3, 2)
    bank.values[:], bank.present[:] = rng.normal(size=(sets, 3, 2)), [1, 0, 1]
    return ServerState(
        round_num=rounds,
        model_weights=tuple(
            rng.normal(size=shape).astype(np.float32) for shape in [(2, 3), (3,), ()]
        ),
        optimizer_state=(rng.normal(size=4).astype(np.float32), np.float32(rounds)),
        bank=bank,
        helpers=server.no_prototypes(4, 3, 2),
    )


def test_names_are_the_path_to_each_array() -> None:
    assert sorted(states.to_arrays(random_state(7, 2))) == [
        "bank/present",
        "bank/values",
        "helpers/present",
        "helpers/values",
        "model_weights/000",
        "model_weights/001",
        "model_weights/002",
        "optimizer_state/000",
        "optimizer_state/001",
        "round_num",
    ]


def assert_same(a: ServerState, b: ServerState) -> None:
    flat, other = states.to_arrays(a), states.to_arrays(b)
    assert list(flat) == list(other)
    for name, array in flat.items():
        np.testing.assert_array_equal(array, other[name])
        assert array.dtype == other[name].dtype


def test_round_trip_takes_only_the_structure_from_the_likeness() -> None:
    """A bank of another length and other values in it do not matter."""
    saved = random_state(12, sets=5)
    found = states.from_arrays(random_state(0, sets=0), states.to_arrays(saved))
    assert_same(found, saved)
    assert isinstance(found, ServerState)
    assert found.round_num == 12
    assert type(found.round_num) is int
    assert isinstance(found.model_weights, tuple)


def test_round_trip_through_a_checkpoint_file(tmp_path: Path) -> None:
    saved = random_state(3, sets=2)
    path = checkpoints.save(tmp_path, 3, states.to_arrays(saved))
    read = checkpoints.load(path).arrays
    assert_same(states.from_arrays(random_state(0, sets=0), read), saved)


def test_tuples_nest_and_may_be_empty() -> None:
    saved = Nest(pairs=((np.array([1, 2], np.float32), 5), (), (np.array([True]),)))
    flat = states.to_arrays(saved)
    assert list(flat) == ["pairs/000/000", "pairs/000/001", "pairs/002/000"]
    like = Nest(pairs=((np.zeros(2, np.float32), 0), (), (np.zeros(1, bool),)))
    found = states.from_arrays(like, flat).pairs
    np.testing.assert_array_equal(found[0][0], [1, 2])
    assert found[0][1] == 5
    assert type(found[0][1]) is int
    assert found[1] == ()
    np.testing.assert_array_equal(found[2][0], [True])


def test_ten_and_more_keep_their_order() -> None:
    saved = Nest(pairs=tuple(np.float32(i) for i in range(12)))
    flat = dict(sorted(states.to_arrays(saved).items(), reverse=True))
    found = states.from_arrays(saved, flat).pairs
    assert [float(x) for x in found] == list(range(12))


def test_missing_array_is_named() -> None:
    flat = states.to_arrays(random_state(1, 1))
    del flat["bank/values"]
    with pytest.raises(StateError, match="bank/values is missing"):
        states.from_arrays(random_state(0, 0), flat)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("model_weights/000", np.zeros([3, 2], np.float32)),
        ("model_weights/000", np.zeros([2, 3], np.float64)),
        ("model_weights/001", np.zeros([3, 1], np.float32)),
        ("model_weights/002", np.array("text")),
        ("bank/values", np.zeros([1, 3, 3], np.float32)),
        ("bank/present", np.zeros([1, 3], np.uint8)),
        ("round_num", np.float64(1)),
        ("round_num", np.array([1])),
    ],
)
def test_an_array_of_another_kind_is_refused(name: str, array: Any) -> None:
    flat = {**states.to_arrays(random_state(1, 1)), name: array}
    with pytest.raises(StateError, match=f"^{name} is .*, must be"):
        states.from_arrays(random_state(0, 0), flat)
