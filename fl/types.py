"""The records that pass between server, clients and the loop.

All are frozen and are structures of arrays, so that the same record serves as a
NumPy value outside TFF and as a structure of tensors inside it.
"""

from __future__ import annotations

from typing import Any, Tuple

import attr

Array = Any  # np.ndarray outside TFF, tf.Tensor inside.
Weights = Tuple[Array, ...]


@attr.frozen(eq=False)
class Prototypes:
    """One vector per class, with a mask instead of a value for an absent class.

    Attributes:
        values: float32 [..., K, D]; zero where absent.
        present: bool [..., K].
    """

    values: Array
    present: Array


@attr.frozen(eq=False)
class Broadcast:
    """What the server sends to every active client.

    Attributes:
        model_weights: all weights in the order of `model.get_weights()`.
        optimizer_state: empty where each client starts with a fresh optimizer.
        helpers: the helpers' prototypes, [H, K, D] and [H, K].
        learning_rate: float32 [].
    """

    model_weights: Weights
    optimizer_state: Weights
    helpers: Prototypes
    learning_rate: Array


@attr.frozen(eq=False)
class ClientData:
    """A client's images and the indices of its E episodes.

    Attributes:
        labeled_x: uint8 [n, H, W, C], class-major.
        labeled_y: int32 [n].
        unlabeled_x: uint8 [u, H, W, C].
        unlabeled_y: int32 [u], the true classes: for measuring only.
        unlabeled_y_known: bool []; false where the data set has no such labels.
        support: int32 [E, s], indices into the labelled images.
        query: int32 [E, q].
        unlabeled: int32 [E, b], indices into the unlabelled images.
        unlabeled_drawn: int32 [E], how many of the b go through the network.
        unlabeled_active: bool [E], whether they count in the loss.
        slot: int32 [], the client's place in what the server receives.
        noise_seed: int32 [2], for the noise on the prototypes it shares.
        returns: bool [], whether what it does reaches the server.
    """

    labeled_x: Array
    labeled_y: Array
    unlabeled_x: Array
    unlabeled_y: Array
    unlabeled_y_known: Array
    support: Array
    query: Array
    unlabeled: Array
    unlabeled_drawn: Array
    unlabeled_active: Array
    slot: Array
    noise_seed: Array
    returns: Array = True


@attr.frozen(eq=False)
class ClientReport:
    """What a client tells of its training: means over its episodes.

    The pseudo-label figures are sums with their counts, because a client may have
    had no active unlabelled image, and then has no mean.
    """

    accuracy: Array
    loss: Array
    unlabeled_loss: Array
    pseudo_label_correct: Array
    pseudo_label_known: Array
    pseudo_label_confidence: Array
    pseudo_label_count: Array
    prototype_norm: Array
    num_examples: Array


@attr.frozen(eq=False)
class Averaged:
    """What is averaged over the clients; the optimizer's state only if shared."""

    model_weights: Weights
    optimizer_state: Weights


@attr.frozen(eq=False)
class ClientOutput:
    """What a client returns.

    Attributes:
        averaged: the structure whose weighted mean becomes the server's, eq. (1).
        weight: float32 [], the client's weight in that mean.
        own: what the server keeps of each client apart.
        handed_on: what the next client of the round gets, if they train in turns.
        kept: what the client keeps for the next time it trains.
        received: what it was handed, of the structure of `handed_on`; it goes on to
            the next client if this one does not count.
        vital: what must be finite, beside what is averaged, for the client to count.
    """

    averaged: Any
    weight: Array
    own: Any
    handed_on: Any = ()
    kept: Any = ()
    received: Any = ()
    vital: Any = ()
