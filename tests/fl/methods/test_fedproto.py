"""FedProto-style regularisation: its term in closed form, and what is shared."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state

from fl.methods import fedproto
from fl.types import Prototypes


def test_distance_to_the_own_class_where_it_is_known() -> None:
    """(1, 2) to (0, 0): mean square 5/2. Class 1 is absent and its image left out."""
    shared = Prototypes(
        values=tf.constant([[0.0, 0.0], [9.0, 9.0]]),
        present=tf.constant([True, False]),
    )
    embeddings = tf.constant([[1.0, 2.0], [3.0, 3.0]])
    distance = fedproto.prototype_distance(embeddings, tf.constant([0, 1]), shared)
    assert float(distance) == pytest.approx(2.5)
    nothing = Prototypes(values=shared.values, present=tf.constant([False, False]))
    distance = fedproto.prototype_distance(embeddings, tf.constant([0, 1]), nothing)
    assert float(distance) == 0.0


def test_first_round_is_fedavg_and_then_prototypes_pull(
    make_small: Callable[..., Any],
) -> None:
    """Nothing is shared before round 1; the mean over clients is afterwards."""
    method = make_small(method="fedproto", num_unlabel=0)
    plain = make_small(method="fedavg", num_unlabel=0)
    one = method.run_round(method.initial_state())
    fedavg_one = plain.run_round(plain.initial_state())
    for ours, theirs in zip(one.state.model_weights, fedavg_one.state.model_weights):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert one.state.shared.present.all()
    two = method.run_round(one.state)
    assert_same_state(two.state, method.run_round(one.state).state)
    weightless = make_small(method="fedproto", num_unlabel=0, prototype_weight=0.0)
    without = weightless.run_round(one.state)
    assert np.all(two.report["loss"] > without.report["loss"])


def test_shared_is_the_mean_over_clients(make_small: Callable[..., Any]) -> None:
    """Counted in bytes: K prototypes of 36 floats go down and up."""
    method = make_small(method="fedproto", num_unlabel=0, optimizer_state="fresh")
    outcome = method.run_round(method.initial_state())
    plain = make_small(method="fedavg", num_unlabel=0, optimizer_state="fresh")
    base = plain.run_round(plain.initial_state())
    assert outcome.bytes_up - base.bytes_up == 3 * (10 * 36 * 4 + 10 * 4)
    assert outcome.bytes_down - base.bytes_down == 3 * (10 * 36 * 4 + 10)
