"""SAGE: its targets and loss against NumPy, and a round."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state

from fl.methods import sage

LOCAL = np.array([[0.97, 0.02, 0.01], [0.6, 0.3, 0.1], [0.01, 0.96, 0.03]], np.float32)
RECEIVED = np.array(
    [[0.02, 0.92, 0.06], [0.1, 0.2, 0.7], [0.02, 0.96, 0.02]], np.float32
)


def test_mixed_targets() -> None:
    """Gap 0.05: lam = exp(-ln 2) = 1/2. Not confident: the received class. Gap 0: 1."""
    targets = sage.mixed_targets(tf.constant(LOCAL), tf.constant(RECEIVED), 0.95)
    expected = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    np.testing.assert_allclose(targets, expected, atol=1e-4)


def test_either_confident() -> None:
    """Rows 1 and 3 by the local model; at a threshold of 0.7 all three."""
    used = sage.either_confident(tf.constant(LOCAL), tf.constant(RECEIVED), 0.95)
    np.testing.assert_array_equal(used, [1, 0, 1])
    used = sage.either_confident(tf.constant(LOCAL), tf.constant(RECEIVED), 0.7)
    np.testing.assert_array_equal(used, [1, 1, 1])


def test_divergence_is_a_mean_over_the_whole_batch() -> None:
    """KL(t || q) = sum t log t - t log q; row 3 is not used, but counts in the mean."""
    logits = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [3.0, 0.0, 0.0]], np.float32)
    log_q = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    targets = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], np.float32)
    loss = sage.target_divergence(targets, logits, tf.constant([1.0, 1.0, 0.0]))
    first = 2 * 0.5 * np.log(0.5) - 0.5 * (log_q[0, 0] + log_q[0, 1])
    second = -log_q[1, 1]
    assert float(loss) == pytest.approx((first + second) / 3, rel=1e-5)


def test_round_repeats_and_uses_the_received_model(
    make_small: Callable[..., Any],
) -> None:
    """Below any confidence all images count, with targets of both models."""
    method = make_small(method="sage", confidence_threshold=0.0)
    state = method.initial_state()
    first, second = method.run_round(state), method.run_round(state)
    assert_same_state(first.state, second.state)
    report = first.report
    np.testing.assert_array_equal(
        report["pseudo_label_used"], report["pseudo_label_count"]
    )
    assert np.all(report["unlabeled_loss"] > 0)
