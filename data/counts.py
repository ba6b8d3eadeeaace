"""How many images of each class a client gets.

Every function returns an int64 matrix [clients, K]. Which images these are is not
decided here.

The skewed tables follow the authors' program. A client has type `i mod 10`; a type
prefers one class (of ten; of a hundred, one block of ten) and has few of the others.
"""

from __future__ import annotations

import numpy as np

from data.sources import DataError

NUM_TYPES = 10

# Shares of a client's images: the preferred class, its two neighbours, the rest, and
# the class opposite.
_MOST, _MORE, _LESS, _LEAST = 0.50, 0.15, 0.03, 0.02
_EXTREME = (0.5, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.0, 0.0)

# The sizes for which the program has fixed counts instead of n * share.
_FIXED = {
    490: {_MOST: 244, _MORE: 73, _LESS: 15, _LEAST: 10},
    540: {_MOST: 249, _MORE: 78, _LESS: 20, _LEAST: 15},
}
_FIXED_HEAD_490 = {**_FIXED[490], _MOST: 243}
_FIXED_EXTREME = {
    50: {0.5: 23, 0.1: 5, 0.05: 3, 0.0: 0},
    490: {0.5: 243, 0.1: 49, 0.05: 25, 0.0: 0},
    540: {0.5: 249, 0.1: 54, 0.05: 27, 0.0: 0},
}
_FIXED_HUNDRED_TOTAL = 4900


def even_counts(num_client: int, per_class: int, num_classes: int) -> np.ndarray:
    """Gives every client the same number of every class."""
    return np.full((num_client, num_classes), per_class, np.int64)


def skewed_counts(
    num_client: int, total: int, num_classes: int, extreme: bool, edition: str
) -> np.ndarray:
    """Gives every client the counts of its type.

    Args:
        num_client: The number of clients.
        total: How many images a client should get, about: the counts are rounded.
        num_classes: 10 or a multiple of it.
        extreme: Whether two classes of ten are absent altogether.
        edition: "release" or "head": 244 or 243 of the preferred class at 490.

    Returns:
        The counts, int64 [num_client, num_classes].

    Raises:
        DataError: The number of classes has no such table.
    """
    if num_classes % NUM_TYPES:
        raise DataError(
            f"--non_iid: the dataset has {num_classes} classes; "
            f"a multiple of {NUM_TYPES} would be right"
        )
    table = np.array(
        [
            _type_counts(kind, total, num_classes, extreme, edition)
            for kind in range(NUM_TYPES)
        ],
        np.int64,
    )
    return table[np.arange(num_client) % NUM_TYPES]


def proportional_counts(
    proportions: np.ndarray, total: int, available: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Gives every client exactly `total` images, close to its own proportions.

    Clients take in turn. What a class can no longer give is taken, by the same
    proportions, from the classes that still have images.

    Args:
        proportions: float [clients, K], rows sum to 1.
        total: The number of images per client.
        available: int [K], what there is of each class; clients * total in all or
            more.
        order: The order in which the clients take.

    Returns:
        The counts, int64 [clients, K].

    Raises:
        ValueError: The classes have less than the clients are to get.
    """
    wanted = total * len(proportions)
    if available.sum() < wanted:
        raise ValueError(f"{wanted} images wanted, {available.sum()} available")
    left = np.array(available, np.int64)
    counts = np.zeros(proportions.shape, np.int64)
    for client in order:
        counts[client] = _take(proportions[client], total, left)
        left -= counts[client]
    return counts


def largest_remainder(weights: np.ndarray, total: int) -> np.ndarray:
    """Rounds `total * weights / sum(weights)` to integers that sum to `total`."""
    exact = weights * (total / weights.sum())
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    largest = np.argsort(counts - exact, kind="stable")[:missing]
    counts[largest] += 1
    return counts


def _take(proportions: np.ndarray, total: int, left: np.ndarray) -> np.ndarray:
    """Takes `total` images, by proportion as far as the classes have them."""
    taken = np.zeros_like(left)
    while (short := total - int(taken.sum())) > 0:
        room = left - taken
        weights = np.where(room > 0, proportions, 0.0)
        if weights.sum() < np.finfo(np.float64).eps:
            # Nothing is left of the classes that the client has a share of.
            weights = room.astype(np.float64)
        taken += np.minimum(largest_remainder(weights, short), room)
    return taken


def _type_counts(
    kind: int, total: int, num_classes: int, extreme: bool, edition: str
) -> list[int]:
    """Returns the counts per class for one type of client."""
    block = num_classes // NUM_TYPES
    fixed = _fixed_counts(total, block, extreme, edition)
    if extreme:
        shares = [_EXTREME[(c // block - kind) % NUM_TYPES] for c in range(num_classes)]
    elif block == 1:
        shares = [_ring_share((c - kind) % NUM_TYPES) for c in range(num_classes)]
    else:
        shares = [
            _block_share((c // block + kind) % NUM_TYPES) for c in range(num_classes)
        ]
    return [fixed.get(share, int(total * share / block)) for share in shares]


def _fixed_counts(
    total: int, block: int, extreme: bool, edition: str
) -> dict[float, int]:
    """Returns the program's fixed counts by share; empty where it has none."""
    if block > 1:
        known = not extreme and block == 10 and total == _FIXED_HUNDRED_TOTAL
        return _FIXED[490] if known else {}
    if extreme:
        return _FIXED_EXTREME.get(total, {})
    if total == 490 and edition == "head":
        return _FIXED_HEAD_490
    return _FIXED.get(total, {})


def _ring_share(distance: int) -> float:
    """Returns the share of the class `distance` after the preferred one, of ten."""
    if distance == 0:
        return _MOST
    if distance in (1, NUM_TYPES - 1):
        return _MORE
    return _LEAST if distance == NUM_TYPES // 2 else _LESS


def _block_share(position: int) -> float:
    """Returns the share of a block of classes at a position of the base list."""
    if position == 0:
        return _MOST
    if position <= 2:
        return _MORE
    return _LEAST if position == NUM_TYPES - 1 else _LESS
