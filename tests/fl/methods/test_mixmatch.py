"""MixMatch: guess, mixing and error against NumPy, the ramp, and a round."""

from __future__ import annotations

from typing import Any, Callable

import attr
import numpy as np
import pytest
import tensorflow as tf

from fl.methods import mixmatch


def test_label_guess_is_the_sharpened_mean_without_gradient() -> None:
    """Mean of (0.8, 0.2) and (0.4, 0.6): (0.6, 0.4); squared and scaled: 9/13, 4/13."""
    views = [tf.constant([[0.8, 0.2]]), tf.constant([[0.4, 0.6]])]
    with tf.GradientTape() as tape:
        tape.watch(views)
        guess = mixmatch.label_guess(views, 0.5)
    np.testing.assert_allclose(guess, [[9 / 13, 4 / 13]], rtol=1e-5)
    assert tape.gradient(guess, views) == [None, None]


def test_mix_up_keeps_the_larger_part_of_each_and_mixes_labels_alike() -> None:
    """Image i is the constant i and its label i too: both mix to the same number."""
    values = np.arange(50, dtype=np.float32)
    images = np.broadcast_to(values[:, None, None, None], [50, 2, 2, 1])
    mixed, labels = mixmatch.mix_up(
        tf.constant(images), tf.constant(values[:, None]), tf.constant([1, 2])
    )
    np.testing.assert_allclose(mixed[:, 0, 0, 0], labels[:, 0], rtol=1e-5)
    assert np.sum(np.abs(labels[:, 0] - values) > 1e-3) > 20


def test_share_follows_the_folded_beta() -> None:
    """max(l, 1 - l) of Beta(a, a): in [1/2, 1], mean against 200,000 NumPy draws."""
    share = mixmatch.own_share(tf.constant(20000), tf.constant([3, 4])).numpy()
    assert share.min() >= 0.5
    assert share.max() <= 1.0
    draws = np.random.RandomState(0).beta(0.75, 0.75, 200000)
    assert share.mean() == pytest.approx(np.maximum(draws, 1 - draws).mean(), abs=5e-3)


def test_squared_error() -> None:
    """softmax(0, ln 3) = (1/4, 3/4) against (1, 0): mean of 9/16 twice."""
    error = mixmatch.squared_error(
        tf.constant([[1.0, 0.0]]), tf.constant([[0.0, np.log(3.0)]], tf.float32)
    )
    assert float(error) == pytest.approx(9 / 16, rel=1e-5)


def test_weight_ramps_over_the_run(make_small: Callable[..., Any]) -> None:
    """At the start it is 0; with a third of the rounds done the term counts."""
    method = make_small(method="mixmatch")
    state = method.initial_state()
    first = method.run_round(state).report
    assert np.all(first["unlabeled_loss"] == 0)
    later = method.run_round(attr.evolve(state, round_num=1)).report
    assert np.all(later["unlabeled_loss"] > 0)
    np.testing.assert_array_equal(later["pseudo_label_used"], [100] * 3)
