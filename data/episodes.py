"""Who trains in a round, and on which images: indices from seeded streams.

The draws follow the authors' program one for one (its head edition), so that a seed
means the same there and here.
"""

from __future__ import annotations

import random
from typing import Sequence, Tuple

import attr
import numpy as np


@attr.frozen(eq=False)
class EpisodeOptions:
    """How a client's episodes are drawn.

    Attributes:
        support: support images per class.
        query: query images per class.
        unlabeled: unlabelled images per episode.
        draw_idle: whether unlabelled images are drawn where they do not count.
        all_query: Algorithm 2: no support set, every labelled image is a query.
    """

    support: int
    query: int
    unlabeled: int
    draw_idle: bool
    all_query: bool = False


@attr.frozen(eq=False)
class Episodes:
    """Indices of E episodes; see `fl.types.ClientData` for the shapes."""

    support: np.ndarray
    query: np.ndarray
    unlabeled: np.ndarray
    unlabeled_drawn: np.ndarray
    unlabeled_active: np.ndarray


def active_clients(
    seed: int, round_index: int, num_client: int, num_active: int
) -> Tuple[int, ...]:
    """The clients of a round, in the order they train; rounds count from 0."""
    stream = random.Random(seed + round_index)
    return tuple(stream.sample(range(num_client), num_active))


def round_stream(seed: int, round_index: int) -> np.random.RandomState:
    """The stream that all episodes of a round are drawn from, client by client."""
    return np.random.RandomState(seed + round_index)


def sample_episodes(
    stream: np.random.RandomState,
    class_counts: np.ndarray,
    num_unlabeled: int,
    active: Sequence[bool],
    options: EpisodeOptions,
) -> Episodes:
    """Draws the episodes of one client.

    A class with fewer than support + query images is left out of the episodes.

    Args:
        stream: the round's stream; it moves on.
        class_counts: int [K], labelled images per class; they lie class-major.
        num_unlabeled: how many unlabelled images the client has.
        active: for each episode, whether unlabelled images count.
        options: sizes.
    """
    starts = np.concatenate([[0], np.cumsum(class_counts)[:-1]])
    rows = [
        _sample_episode(stream, class_counts, starts, num_unlabeled, counts, options)
        for counts in active
    ]
    support, query, unlabeled, drawn = zip(*rows)
    return Episodes(
        support=np.stack(support).astype(np.int32),
        query=np.stack(query).astype(np.int32),
        unlabeled=np.stack(unlabeled).astype(np.int32),
        unlabeled_drawn=np.array(drawn, np.int32),
        unlabeled_active=np.array(active, bool),
    )


def _sample_episode(
    stream: np.random.RandomState,
    class_counts: np.ndarray,
    starts: np.ndarray,
    num_unlabeled: int,
    active: bool,
    options: EpisodeOptions,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    support, query = _sample_labeled(stream, class_counts, starts, options)
    if not (active or options.draw_idle):
        return support, query, np.zeros(options.unlabeled, np.int64), 0
    unlabeled = stream.choice(num_unlabeled, options.unlabeled, replace=False)
    return support, query, unlabeled, options.unlabeled


def _sample_labeled(
    stream: np.random.RandomState,
    class_counts: np.ndarray,
    starts: np.ndarray,
    options: EpisodeOptions,
) -> Tuple[np.ndarray, np.ndarray]:
    if options.all_query:
        return np.zeros(0, np.int64), np.arange(class_counts.sum())
    size = options.support + options.query
    support, query = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for count, start in zip(class_counts, starts):
        if count < size:
            continue
        chosen = start + stream.choice(count, size, replace=False)
        support.append(chosen[: options.support])
        query.append(chosen[options.support :])
    return np.concatenate(support), np.concatenate(query)


def epoch_order(round_index: int, num_images: int) -> np.ndarray:
    """The order of a supervised client's images in a round, as in their program.

    It depends on the round and the number of images alone, not on the seed.
    """
    return np.random.RandomState(round_index).permutation(num_images).astype(np.int32)


@attr.frozen(eq=False)
class Steps:
    """The images of each step of a client; a step uses the first `count` of its row.

    Attributes:
        labeled: int32 [S, b], indices into the labelled images.
        labeled_count: int32 [S].
        unlabeled: int32 [S, c], indices into the unlabelled images.
        unlabeled_count: int32 [S].
    """

    labeled: np.ndarray
    labeled_count: np.ndarray
    unlabeled: np.ndarray
    unlabeled_count: np.ndarray


def make_steps(
    labeled: Sequence[np.ndarray], unlabeled: Sequence[np.ndarray] = ()
) -> Steps:
    """Steps from a list of index arrays each; none unlabelled by default."""
    first = _padded(labeled)
    second = _padded(unlabeled or [np.zeros(0, np.int64)] * len(labeled))
    return Steps(*first, *second)


def shuffled_batches(
    stream: np.random.RandomState, num_images: int, size: int
) -> list[np.ndarray]:
    """One pass over the images in random order; the last batch may be short."""
    order = stream.permutation(num_images)
    return [order[start : start + size] for start in range(0, num_images, size)]


def client_words(seed: int, round_index: int, client: int) -> np.ndarray:
    """Four words that seed what one client draws in one round, uint32 [4]."""
    return np.random.SeedSequence([seed, round_index, client]).generate_state(4)


def _padded(rows: Sequence[np.ndarray]) -> Tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows], np.int32)
    table = np.zeros([len(rows), counts.max(initial=0)], np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table, counts


def paired_epoch(
    stream: np.random.RandomState,
    sizes: Tuple[int, int],
    batch_sizes: Tuple[int, int],
) -> Tuple[list[np.ndarray], list[np.ndarray]]:
    """One epoch of steps that take labelled and unlabelled images side by side.

    There are as many steps as the longer of the two passes takes; the labelled images
    are cycled through, the unlabelled ones spread over the steps where they are fewer.

    Args:
        stream: a client's stream; it moves on.
        sizes: how many labelled and unlabelled images there are.
        batch_sizes: how many of each a step takes; the last may take fewer.
    """
    needed = [-(-size // batch) for size, batch in zip(sizes, batch_sizes)]
    steps = max(needed)
    labeled = shuffled_batches(stream, sizes[0], batch_sizes[0])
    size = batch_sizes[1] if needed[1] == steps else -(-sizes[1] // steps)
    unlabeled = shuffled_batches(stream, sizes[1], size)
    while len(unlabeled) < steps:  # Too few to give every step one.
        unlabeled.append(unlabeled[len(unlabeled) % needed[1]])
    return [labeled[i % needed[0]] for i in range(steps)], unlabeled


def paired_epochs(
    stream: np.random.RandomState,
    sizes: Tuple[int, int],
    batch_sizes: Tuple[int, int],
    epochs: int,
) -> Steps:
    """So many epochs of `paired_epoch`, as steps."""
    pairs = [paired_epoch(stream, sizes, batch_sizes) for _ in range(epochs)]
    return make_steps(
        [batch for labeled, _ in pairs for batch in labeled],
        [batch for _, unlabeled in pairs for batch in unlabeled],
    )


def cycled_batches(
    stream: np.random.RandomState, num_images: int, size: int, count: int
) -> list[np.ndarray]:
    """So many batches of one size, from passes in random order joined end to end."""
    passes = -(-size * count // num_images)
    order = np.concatenate([stream.permutation(num_images) for _ in range(passes)])
    return list(order[: size * count].reshape(count, size))
