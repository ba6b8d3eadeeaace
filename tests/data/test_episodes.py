"""Tests that the draws are those of the authors' program, value for value.

The expected values are drawn here from the global streams the way their program uses
them; each test puts the global state back.
"""

from __future__ import annotations

import random
from typing import Any, Iterator, List, Sequence

import attr
import numpy as np
import pytest

from data import episodes
from data.episodes import EpisodeOptions, Episodes

OPTIONS = EpisodeOptions(support=1, query=2, unlabeled=4, draw_idle=False)
SEED = 1000


@pytest.fixture(autouse=True)
def _keep_global_streams() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def sample(
    counts: Sequence[int],
    active: Sequence[bool],
    round_index: int = 0,
    num_unlabeled: int = 20,
    **changes: Any,
) -> Episodes:
    return episodes.sample_episodes(
        episodes.round_stream(SEED, round_index),
        np.array(counts),
        num_unlabeled,
        active,
        attr.evolve(OPTIONS, **changes),
    )


# --- Streams -----------------------------------------------------------------
@pytest.mark.parametrize("round_index", [0, 1, 299])
def test_active_clients_are_a_sample_after_seeding(round_index: int) -> None:
    """random.seed(r + seed), then random.sample(range(N), m), in that order."""
    random.seed(round_index + SEED)
    expected = random.sample(range(100), 5)
    found = episodes.active_clients(SEED, round_index, 100, 5)
    assert found == tuple(expected)
    assert len(set(found)) == 5


def test_all_clients_can_be_active() -> None:
    found = episodes.active_clients(SEED, 0, num_client=4, num_active=4)
    assert sorted(found) == [0, 1, 2, 3]


def test_two_clients_of_a_round_follow_each_other_on_one_stream() -> None:
    """Per episode: choice(n_class, 3) for each class, then choice(n_unlabelled, 4)."""
    round_index, counts = 7, [5, 3, 4]
    np.random.seed(round_index + SEED)
    stream = episodes.round_stream(SEED, round_index)
    for num_unlabeled in (20, 30):
        drawn = episodes.sample_episodes(
            stream, np.array(counts), num_unlabeled, [True, True], OPTIONS
        )
        for episode in range(2):
            support: List[int] = []
            query: List[int] = []
            for start, count in zip([0, 5, 8], counts):
                chosen = start + np.random.choice(count, 3, replace=False)
                support += chosen[:1].tolist()
                query += chosen[1:].tolist()
            unlabeled = np.random.choice(num_unlabeled, 4, replace=False)
            assert drawn.support[episode].tolist() == support
            assert drawn.query[episode].tolist() == query
            assert drawn.unlabeled[episode].tolist() == unlabeled.tolist()


def test_global_streams_are_left_alone() -> None:
    """A draw that moved them would change the very next value of each."""
    random.seed(0)
    np.random.seed(0)
    expected = random.random(), np.random.random()
    random.seed(0)
    np.random.seed(0)
    episodes.active_clients(SEED, 3, 10, 2)
    sample([5, 5], [True, False])
    episodes.epoch_order(3, 10)
    assert (random.random(), np.random.random()) == expected


# --- Episodes ----------------------------------------------------------------
def test_support_and_query_are_disjoint_and_of_each_class() -> None:
    found = sample([5, 5, 5], [True] * 50, support=2, query=3)
    labels = np.repeat(np.arange(3), 5)
    np.testing.assert_array_equal(labels[found.support], [[0, 0, 1, 1, 2, 2]] * 50)
    np.testing.assert_array_equal(
        labels[found.query], [[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 50
    )
    together = np.sort(np.concatenate([found.support, found.query], axis=1))
    np.testing.assert_array_equal(together, [np.arange(15)] * 50)
    assert len(np.unique(found.support)) == 15


def test_class_with_too_few_images_is_left_out_and_draws_nothing() -> None:
    """Classes of 5, 2, 0 and 3 images, 3 wanted: draws only for the first and last."""
    np.random.seed(SEED)
    first = np.random.choice(5, 3, replace=False)
    last = 7 + np.random.choice(3, 3, replace=False)
    unlabeled = np.random.choice(20, 4, replace=False)
    found = sample([5, 2, 0, 3], [True])
    np.testing.assert_array_equal(found.support, [[first[0], last[0]]])
    np.testing.assert_array_equal(found.query, [[*first[1:], *last[1:]]])
    np.testing.assert_array_equal(found.unlabeled, [unlabeled])


def test_client_without_enough_of_any_class_has_empty_episodes() -> None:
    found = sample([2, 1], [True, True])
    assert found.support.shape == found.query.shape == (2, 0)
    assert found.unlabeled.shape == (2, 4)


def test_unlabeled_images_are_drawn_without_repeating() -> None:
    found = sample([3], [True] * 30, num_unlabeled=4)
    np.testing.assert_array_equal(np.sort(found.unlabeled), [[0, 1, 2, 3]] * 30)


def test_idle_episodes_draw_nothing_from_the_stream() -> None:
    """Head: episode 1's labelled draw follows episode 0's at once."""
    np.random.seed(SEED)
    expected = [np.random.choice(5, 3, replace=False) for _ in range(2)]
    unlabeled = np.random.choice(20, 4, replace=False)
    found = sample([5], [False, True])
    np.testing.assert_array_equal(found.support, [x[:1] for x in expected])
    np.testing.assert_array_equal(found.query, [x[1:] for x in expected])
    np.testing.assert_array_equal(found.unlabeled[1], unlabeled)
    np.testing.assert_array_equal(found.unlabeled_drawn, [0, 4])
    np.testing.assert_array_equal(found.unlabeled_active, [False, True])


def test_idle_episodes_draw_all_the_same_where_asked() -> None:
    """Release: the same indices as if they counted; only the mark tells."""
    idle = sample([5, 4], [False, False], draw_idle=True)
    counted = sample([5, 4], [True, True])
    for name in ("support", "query", "unlabeled", "unlabeled_drawn"):
        np.testing.assert_array_equal(getattr(idle, name), getattr(counted, name))
    np.testing.assert_array_equal(idle.unlabeled_drawn, [4, 4])
    np.testing.assert_array_equal(idle.unlabeled_active, [False, False])


def test_algorithm_2_has_every_labeled_image_as_query() -> None:
    """No labelled draw either: the first of the stream is the unlabelled one."""
    np.random.seed(SEED)
    unlabeled = [np.random.choice(20, 4, replace=False) for _ in range(2)]
    found = sample([2, 0, 3], [True, True], all_query=True)
    assert found.support.shape == (2, 0)
    np.testing.assert_array_equal(found.query, [np.arange(5)] * 2)
    np.testing.assert_array_equal(found.unlabeled, unlabeled)


def test_types_are_those_of_the_client_data() -> None:
    found = sample([5, 5], [True, False])
    for name in ("support", "query", "unlabeled", "unlabeled_drawn"):
        assert getattr(found, name).dtype == np.int32
    assert found.unlabeled_active.dtype == bool


def test_rounds_and_seeds_differ_and_repeat() -> None:
    again = [sample([50, 50], [True], round_index=r).query.tolist() for r in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


# --- The supervised path -----------------------------------------------------
@pytest.mark.parametrize("round_index", [0, 12])
def test_epoch_order_is_one_permutation_after_seeding(round_index: int) -> None:
    np.random.seed(round_index)
    expected = np.random.permutation(50)
    found = episodes.epoch_order(round_index, 50)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32
