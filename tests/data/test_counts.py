"""The tables of counts, against the numbers of the authors' program."""

from __future__ import annotations

import numpy as np
import pytest

from data.counts import (
    even_counts,
    largest_remainder,
    proportional_counts,
    skewed_counts,
)
from data.sources import DataError


def _skewed(total: int, extreme: bool = False, edition: str = "release") -> np.ndarray:
    return skewed_counts(20, total, 10, extreme, edition)


def test_even_counts_are_the_same_everywhere() -> None:
    np.testing.assert_array_equal(even_counts(3, 7, 4), np.full((3, 4), 7))


@pytest.mark.parametrize(
    ("total", "edition", "most", "more", "less", "least"),
    [
        (490, "release", 244, 73, 15, 10),
        (490, "head", 243, 73, 15, 10),
        (540, "release", 249, 78, 20, 15),
        (540, "head", 249, 78, 20, 15),
    ],
)
def test_fixed_counts(
    total: int, edition: str, most: int, more: int, less: int, least: int
) -> None:
    """Type 0: class 0 most, neighbours 1 and 9 more, class 5 least."""
    row = [most, more, less, less, less, least, less, less, less, more]
    np.testing.assert_array_equal(_skewed(total, edition=edition)[0], row)


def test_a_type_is_the_first_one_turned_around() -> None:
    """Client i has type i mod 10; class t + d of type t has the count of class d."""
    table = _skewed(490)
    for client in range(20):
        np.testing.assert_array_equal(table[client], np.roll(table[0], client % 10))


def test_other_totals_take_the_whole_part_of_the_share() -> None:
    """At 50: int(25.0), int(7.5), int(1.5), int(1.0)."""
    row = [25, 7, 1, 1, 1, 1, 1, 1, 1, 7]
    np.testing.assert_array_equal(_skewed(50)[0], row)


@pytest.mark.parametrize(
    ("total", "row"),
    [
        (50, [23, 5, 5, 5, 3, 3, 3, 3, 0, 0]),
        (490, [243, 49, 49, 49, 25, 25, 25, 25, 0, 0]),
        (540, [249, 54, 54, 54, 27, 27, 27, 27, 0, 0]),
        (100, [50, 10, 10, 10, 5, 5, 5, 5, 0, 0]),
    ],
)
def test_extreme_counts(total: int, row: list[int]) -> None:
    table = _skewed(total, extreme=True)
    np.testing.assert_array_equal(table[0], row)
    np.testing.assert_array_equal(table[13], np.roll(row, 3))


def test_a_hundred_classes_at_4900() -> None:
    """Base list 10 x 244, 20 x 73, 60 x 15, 10 x 10; class c takes base[c + 10 t].

    Ten clients, one of each type, then take 244 + 2 * 73 + 6 * 15 + 10 = 490 of
    every class.
    """
    base = [244] * 10 + [73] * 20 + [15] * 60 + [10] * 10
    table = skewed_counts(10, 4900, 100, False, "head")
    for kind in range(10):
        expected = [base[(c + 10 * kind) % 100] for c in range(100)]
        np.testing.assert_array_equal(table[kind], expected)
    np.testing.assert_array_equal(table.sum(axis=0), np.full(100, 490))


def test_a_hundred_classes_at_other_totals() -> None:
    """A block's share is spread over its ten classes: int(2000 * 0.5 / 10)."""
    row = skewed_counts(1, 2000, 100, False, "release")[0]
    np.testing.assert_array_equal(row[[0, 10, 29, 30, 89, 90]], [100, 30, 30, 6, 6, 4])


def test_extreme_hundred_classes_lack_two_blocks() -> None:
    row = skewed_counts(2, 1000, 100, True, "release")[1]
    np.testing.assert_array_equal(row[10:20], np.full(10, 50))
    np.testing.assert_array_equal(np.flatnonzero(row == 0) // 10, [0] * 10 + [9] * 10)


def test_classes_that_are_no_multiple_of_ten_are_refused() -> None:
    with pytest.raises(DataError, match="--non_iid: the dataset has 7 classes"):
        skewed_counts(3, 100, 7, False, "release")


def test_largest_remainder_by_hand() -> None:
    """10 * (9, 7, 4) / 20 = 4.5, 3.5, 2: floors 4, 3, 2; of a tie the first gains.

    10 * (26, 35, 39) / 100 = 2.6, 3.5, 3.9: floors 2, 3, 3; 0.9 and 0.6 gain.
    """
    tied = largest_remainder(np.array([9.0, 7.0, 4.0]), 10)
    np.testing.assert_array_equal(tied, [5, 3, 2])
    counts = largest_remainder(np.array([26.0, 35.0, 39.0]), 10)
    np.testing.assert_array_equal(counts, [3, 3, 4])


def test_largest_remainder_always_sums_to_the_total() -> None:
    generator = np.random.default_rng(3)
    for total in (0, 1, 7, 490):
        counts = largest_remainder(generator.dirichlet(np.full(10, 0.1)), total)
        assert counts.sum() == total
        assert counts.min() >= 0


def test_proportions_are_met_where_there_is_room() -> None:
    proportions = np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    counts = proportional_counts(
        proportions, 10, np.array([99, 99, 99]), np.array([0, 1])
    )
    np.testing.assert_array_equal(counts, [[5, 3, 2], [0, 0, 10]])


def test_a_class_that_runs_out_is_made_up_for_by_the_others() -> None:
    """Client 1 takes first and empties class 0 to 1; client 0 wants 5, 3, 2 of it.

    It gets the 1, and the 4 that are missing by 3 : 2 of classes 1 and 2, which is
    2.4 and 1.6, so 2 and 2.
    """
    proportions = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    counts = proportional_counts(
        proportions, 10, np.array([11, 99, 99]), np.array([1, 0])
    )
    np.testing.assert_array_equal(counts, [[1, 5, 4], [10, 0, 0]])


def test_the_last_image_is_dealt() -> None:
    proportions = np.tile([1.0, 0.0, 0.0], (3, 1))
    available = np.array([4, 5, 3])
    counts = proportional_counts(proportions, 4, available, np.arange(3))
    np.testing.assert_array_equal(counts.sum(axis=0), available)
    np.testing.assert_array_equal(counts.sum(axis=1), [4, 4, 4])


def test_too_few_images_for_the_proportions_are_an_error() -> None:
    with pytest.raises(ValueError, match="12 images wanted, 11 available"):
        proportional_counts(np.full((3, 2), 0.5), 4, np.array([5, 6]), np.arange(3))
