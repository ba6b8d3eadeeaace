"""Tests of the bank of prototypes: what is kept, chosen, filled in and padded."""

from __future__ import annotations

import warnings
from typing import Any, Optional

import attr
import numpy as np
import pytest

from fl import server
from fl.server import HelperOptions, ServerState
from fl.types import Prototypes

OPTIONS = HelperOptions(
    capacity=3, count=None, eval_count=None, interval=1, fill_absent=False
)


def bank(*numbers: float) -> Prototypes:
    """Sets of two classes in one dimension, told apart by their number."""
    values = np.array(numbers, np.float32).reshape(-1, 1, 1) * np.ones((1, 2, 1))
    return Prototypes(
        values=values.astype(np.float32), present=np.ones((len(numbers), 2), bool)
    )


def sets(values: Any, present: Any) -> Prototypes:
    return Prototypes(np.array(values, np.float32), np.array(present, bool))


def state(kept: Prototypes, helpers: Optional[Prototypes] = None) -> ServerState:
    return ServerState(
        round_num=4,
        model_weights=(np.array([1.0], np.float32),),
        optimizer_state=(np.array([2.0], np.float32),),
        bank=kept,
        helpers=helpers or server.no_prototypes(3, 2, 1),
    )


def numbers(chosen: Prototypes) -> list:
    """The sets' numbers; None for one that has no class."""
    return [
        float(v[0, 0]) if p.all() else None
        for v, p in zip(chosen.values, chosen.present)
    ]


def options(**changes: Any) -> HelperOptions:
    return attr.evolve(OPTIONS, **changes)


# --- Parts -------------------------------------------------------------------
def test_no_prototypes_have_the_shape_and_no_class() -> None:
    empty = server.no_prototypes(4, 3, 2)
    assert (empty.values.shape, empty.values.dtype) == ((4, 3, 2), np.float32)
    assert (empty.present.shape, empty.present.any()) == ((4, 3), False)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(None, [1, 2, 3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3]), (0, [])],
)
def test_newest_are_the_last(count: Optional[int], expected: list) -> None:
    assert numbers(server.newest(bank(1, 2, 3), count)) == expected


def test_join_keeps_the_order_and_the_masks() -> None:
    joined = server.join(bank(1, 2), server.no_prototypes(1, 2, 1))
    assert numbers(joined) == [1, 2, None]
    assert numbers(server.join(server.no_prototypes(0, 2, 1), bank(5))) == [5]


# --- Absent classes ----------------------------------------------------------
def test_absent_class_is_filled_with_the_mean_of_those_that_have_it() -> None:
    """Class 0 is at 1, 2 and 6: mean 3. Class 1 is at 4 once. Class 2 nowhere.

    The 9s stand in absent places and must not count.
    """
    kept = sets(
        [[[1], [9], [9]], [[2], [4], [9]], [[6], [9], [9]], [[9], [9], [9]]],
        [[1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]],
    )
    filled = server.fill_absent(server.newest(kept, 2), kept)
    np.testing.assert_array_equal(filled.values[:, :2], [[[6], [4]], [[3], [4]]])
    np.testing.assert_array_equal(filled.present, [[1, 1, 0], [1, 1, 0]])
    assert filled.values.dtype == np.float32


def test_filling_takes_the_mean_in_float64() -> None:
    """(2^24 + 1 + 1) / 3 is 5592406; float32 loses both ones and gives 5592405.5."""
    kept = sets([[[2.0**24]], [[1.0]], [[1.0]], [[0.0]]], [[1], [1], [1], [0]])
    filled = server.fill_absent(kept, kept)
    assert filled.values[3, 0, 0] == np.float32(5592406.0)
    assert np.float32(2.0**24) + np.float32(1) + np.float32(1) == np.float32(2.0**24)


def test_filling_makes_no_nan_of_a_class_that_nobody_has() -> None:
    kept = sets([[[1], [0]]], [[1, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = server.fill_absent(kept, kept)
    np.testing.assert_array_equal(filled.present, [[True, False]])
    assert np.isfinite(filled.values).all()


# --- Choosing helpers --------------------------------------------------------
def test_bank_is_trimmed_and_all_kept_are_helpers() -> None:
    refreshed = server.refresh_helpers(state(bank(1, 2, 3, 4, 5)), OPTIONS, 1)
    assert numbers(refreshed.bank) == [3, 4, 5]
    assert numbers(refreshed.helpers) == [3, 4, 5]


def test_only_the_newest_train_where_a_count_is_given() -> None:
    refreshed = server.refresh_helpers(
        state(bank(1, 2, 3, 4, 5)), options(count=2), round_index=1
    )
    assert numbers(refreshed.bank) == [3, 4, 5]
    assert numbers(refreshed.helpers) == [4, 5]


@pytest.mark.parametrize(("count", "slots"), [(None, 3), (5, 5), (1, 1)])
def test_missing_helpers_leave_empty_slots(count: Optional[int], slots: int) -> None:
    """The broadcast's shape is the same in every round, the first included."""
    chosen = options(count=count)
    assert chosen.num_helpers == slots
    for kept, there in ((bank(), []), (bank(7), [7])):
        helpers = server.refresh_helpers(state(kept), chosen, 0).helpers
        assert numbers(helpers) == there + [None] * (slots - len(there))
        assert helpers.values.dtype == np.float32
        assert helpers.present.dtype == bool


def test_nothing_else_of_the_state_changes() -> None:
    before = state(bank(1))
    after = server.refresh_helpers(before, OPTIONS, 1)
    assert after.round_num == before.round_num
    assert after.model_weights is before.model_weights
    assert after.optimizer_state is before.optimizer_state
    assert numbers(before.helpers) == [None] * 3


def test_helpers_stay_for_the_interval_and_the_bank_is_trimmed_all_the_same() -> None:
    """With an interval of 3 they are chosen in rounds 1, 4, 7; r counts from 0."""
    chosen = options(interval=3)
    now = state(bank())
    seen = []
    for r in range(8):
        now = server.refresh_helpers(now, chosen, r)
        assert len(now.bank.present) <= 3
        seen.append(numbers(now.helpers))
        now = attr.evolve(now, bank=server.join(now.bank, bank(10 * r, 10 * r + 1)))
    none, first, second, third = [None] * 3, [0, 1, None], [21, 30, 31], [51, 60, 61]
    assert seen == [none] + [first] * 3 + [second] * 3 + [third]


def test_helpers_are_filled_from_all_kept_and_not_only_the_chosen() -> None:
    """The one helper lacks class 1; the mean over the two trimmed-in is 4."""
    kept = sets(
        [[[0], [90]], [[0], [3]], [[0], [5]], [[7], [0]]],
        [[1, 1], [1, 1], [1, 1], [1, 0]],
    )
    refreshed = server.refresh_helpers(
        state(kept), options(count=1, fill_absent=True), 1
    )
    np.testing.assert_array_equal(refreshed.helpers.values, [[[7], [4]]])
    assert refreshed.helpers.present.all()
    masked = server.refresh_helpers(state(kept), options(count=1), 1)
    np.testing.assert_array_equal(masked.helpers.present, [[True, False]])


def test_empty_slots_are_not_filled() -> None:
    refreshed = server.refresh_helpers(state(bank(1)), options(fill_absent=True), 1)
    assert numbers(refreshed.helpers) == [1, None, None]


# --- Evaluation --------------------------------------------------------------
def test_evaluation_sees_the_bank_untrimmed() -> None:
    full = state(bank(1, 2, 3, 4, 5))
    assert numbers(server.evaluation_prototypes(full, OPTIONS)) == [1, 2, 3, 4, 5]
    newest = server.evaluation_prototypes(full, options(eval_count=2))
    assert numbers(newest) == [4, 5]


def test_evaluation_fills_absent_classes_from_the_whole_bank() -> None:
    """The mean over the four older ones, (8 + 0 + 0 + 0) / 4 = 2, not the newest 3."""
    kept = server.join(bank(8, 0, 0, 0), sets([[[1], [0]]], [[1, 0]]))
    chosen = options(eval_count=1, fill_absent=True)
    found = server.evaluation_prototypes(state(kept), chosen)
    np.testing.assert_array_equal(found.values, [[[1], [2]]])
    unfilled = server.evaluation_prototypes(state(kept), options(eval_count=1))
    np.testing.assert_array_equal(unfilled.present, [[True, False]])


def test_class_spread_is_the_mean_over_pairs_that_have_the_class() -> None:
    """Class 0 is at (0,0), (3,4), (0,0): distances 5, 0, 5, mean 10/3.

    Class 1 has two clients, 13 apart. Class 2 has one, class 3 none: no pair, NaN.
    """
    found = server.class_spread(
        sets(
            [
                [[0, 0], [0, 0], [1, 1], [0, 0]],
                [[3, 4], [5, 12], [0, 0], [0, 0]],
                [[0, 0], [99, 99], [0, 0], [0, 0]],
            ],
            [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]],
        )
    )
    np.testing.assert_allclose(found, [10 / 3, 13.0, np.nan, np.nan])
