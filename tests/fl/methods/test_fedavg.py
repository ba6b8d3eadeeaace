"""The supervised method in TFF's real runtime, against plain NumPy and Keras."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state, tiny_classifier

from fl.methods.classifier import learning_rate
from flags.resolve import resolve

Make = Callable[..., Any]
SUPERVISED = {"method": "fedavg", "num_unlabel": 0}


def first_round(make_small: Make, **given: Any) -> Any:
    method = make_small(**SUPERVISED, **given)
    return method, method.run_round(method.initial_state())


def test_one_client_one_step_is_plain_sgd(make_small: Make) -> None:
    """m = 1, E = 1, all images in one batch: w - lr * gradient of the mean loss."""
    method, outcome = first_round(
        make_small,
        num_active_client=1,
        local_episode=1,
        sl_batch_size=0,
        optimizer="sgd",
        opt_lr=0.1,
    )
    data = method.setup.data
    indices = data.clients[outcome.clients[0]].labeled
    model = tiny_classifier()
    model.set_weights(list(method.setup.initial_weights))
    with tf.GradientTape() as tape:
        logits = model(data.images[indices] / np.float32(255), training=True)
        loss = tf.reduce_mean(
            tf.keras.losses.sparse_categorical_crossentropy(
                data.labels[indices], logits, from_logits=True
            )
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(0.1 * gradient)
    assert outcome.report["loss"][0] == pytest.approx(float(loss), rel=1e-5)
    for ours, plain in zip(outcome.state.model_weights, model.get_weights()):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)


def test_batches_are_consecutive_and_the_last_is_short(make_small: Make) -> None:
    """50 images in batches of 32: two steps an epoch, so not one step of 50."""
    one = first_round(make_small, local_episode=1, sl_batch_size=32)[1]
    whole = first_round(make_small, local_episode=1, sl_batch_size=0)[1]
    same = first_round(make_small, local_episode=1, sl_batch_size=50)[1]
    assert not np.array_equal(one.state.model_weights[0], whole.state.model_weights[0])
    assert_same_state(whole.state, same.state)


def test_cosine_rate() -> None:
    """max(lr cos(15 pi r / (32 R)), 1e-6) at r = 0, R/2 and far beyond."""
    given = {"method": "fedavg", "num_round": 8, "opt_lr": 0.1}
    cosine = resolve({**given, "baseline_lr": "cosine"}).config
    assert learning_rate(cosine, 0) == 0.1
    assert learning_rate(cosine, 4) == pytest.approx(0.1 * math.cos(15 * math.pi / 64))
    assert learning_rate(cosine, 9) == 1e-6
    constant = resolve({**given, "baseline_lr": "constant"}).config
    assert learning_rate(constant, 7) == 0.1


def test_proximal_term_of_weight_zero_is_fedavg(make_small: Make) -> None:
    """mu = 0 equals FedAvg bit for bit; a real mu with its gradient does not."""
    plain = first_round(make_small)[1].state
    prox = {"fl_framework": "fedprox", "proximal_gradient": True}
    assert_same_state(plain, first_round(make_small, mu=0.0, **prox)[1].state)
    pulled = first_round(make_small, mu=10.0, **prox)[1].state
    assert not np.array_equal(plain.model_weights[0], pulled.model_weights[0])


def test_inert_proximal_term_shows_in_the_loss_only(make_small: Make) -> None:
    """release and head: same weights as FedAvg, a larger reported loss."""
    plain = first_round(make_small)[1]
    inert = first_round(make_small, fl_framework="fedprox", mu=10.0)[1]
    assert_same_state(plain.state, inert.state)
    assert np.all(inert.report["loss"] > plain.report["loss"])


def test_reports_no_prototypes(make_small: Make) -> None:
    report = first_round(make_small)[1].report
    assert set(report) == {"accuracy", "loss", "num_examples"}
    np.testing.assert_array_equal(report["num_examples"], [50, 50, 50])
