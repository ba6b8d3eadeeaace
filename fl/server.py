"""What ProtoFSSL's server keeps between rounds: weights, and a bank of prototypes.

The bank lists the prototype sets that clients returned, oldest first. It is trimmed
once a round, before training, and grows by the round's clients after it.
"""

from __future__ import annotations

from typing import Optional

import attr
import numpy as np

from fl.types import Prototypes, Weights


@attr.frozen(eq=False)
class ServerState:
    """All that survives a round.

    Attributes:
        round_num: rounds completed.
        model_weights: theta.
        optimizer_state: empty where clients start with a fresh optimizer.
        bank: kept prototypes, [n, K, D] and [n, K], oldest first.
        helpers: those handed out last, [H, K, D] and [H, K].
    """

    round_num: int
    model_weights: Weights
    optimizer_state: Weights
    bank: Prototypes
    helpers: Prototypes


@attr.frozen
class HelperOptions:
    """How helpers are chosen.

    Attributes:
        capacity: sets the bank keeps from earlier rounds.
        count: the newest so many train as helpers; None takes all kept.
        eval_count: the same for evaluation.
        interval: rounds that helpers stay, R_H.
        fill_absent: whether a class that a helper lacks is filled in.
    """

    capacity: int
    count: Optional[int]
    eval_count: Optional[int]
    interval: int
    fill_absent: bool

    @property
    def num_helpers(self) -> int:
        """H, the number of helper slots in a broadcast."""
        return self.capacity if self.count is None else self.count


def no_prototypes(count: int, num_classes: int, size: int) -> Prototypes:
    """So many empty sets."""
    return Prototypes(
        values=np.zeros([count, num_classes, size], np.float32),
        present=np.zeros([count, num_classes], bool),
    )


def newest(bank: Prototypes, count: Optional[int]) -> Prototypes:
    """The newest sets, or all of them for None."""
    start = 0 if count is None else max(len(bank.present) - count, 0)
    return Prototypes(values=bank.values[start:], present=bank.present[start:])


def join(first: Prototypes, second: Prototypes) -> Prototypes:
    """The sets of both, in order."""
    return Prototypes(
        values=np.concatenate([first.values, second.values]),
        present=np.concatenate([first.present, second.present]),
    )


def fill_absent(chosen: Prototypes, kept: Prototypes) -> Prototypes:
    """Gives a set that lacks a class the mean over all kept sets that have it.

    The mean is taken in float64, as in the authors' program. A class that no kept set
    has stays absent (theirs turns to NaN).
    """
    mask = kept.present[..., np.newaxis]
    counts = kept.present.sum(axis=0)  # [K]
    total = np.sum(kept.values, axis=0, where=mask, dtype=np.float64)  # [K, D]
    mean = (total / np.maximum(counts, 1)[:, np.newaxis]).astype(np.float32)
    return Prototypes(
        values=np.where(chosen.present[..., np.newaxis], chosen.values, mean),
        present=chosen.present | (counts > 0),
    )


def refresh_helpers(
    state: ServerState, options: HelperOptions, round_index: int
) -> ServerState:
    """Trims the bank and chooses the round's helpers; the first come in round 1."""
    state = attr.evolve(state, bank=newest(state.bank, options.capacity))
    if (round_index - 1) % options.interval:
        return state
    chosen = newest(state.bank, options.count)
    if options.fill_absent:
        chosen = fill_absent(chosen, state.bank)
    missing = options.num_helpers - len(chosen.present)
    padding = no_prototypes(missing, *chosen.values.shape[1:])
    return attr.evolve(state, helpers=join(chosen, padding))


def evaluation_prototypes(state: ServerState, options: HelperOptions) -> Prototypes:
    """The sets that classify validation and test images after a round."""
    chosen = newest(state.bank, options.eval_count)
    return fill_absent(chosen, state.bank) if options.fill_absent else chosen


def class_spread(shared: Prototypes) -> np.ndarray:
    """For each class, the mean Euclidean distance between clients' prototypes, [K].

    NaN for a class that fewer than two clients have.
    """
    difference = shared.values[:, np.newaxis] - shared.values[np.newaxis]
    distance = np.linalg.norm(difference, axis=-1)  # [m, m, K]
    both = shared.present[:, np.newaxis] & shared.present[np.newaxis]
    first, second = np.triu_indices(len(shared.present), k=1)
    pairs = both[first, second]
    total = np.where(pairs, distance[first, second], 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return total / pairs.sum(axis=0)
