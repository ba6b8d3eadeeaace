"""Our client update against a plain eager loop of the same maths."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from conftest import SMALL, tiny_model

from benchmarks.plain import PlainClient, resnet8
from fl import wiring
from flags.resolve import resolve
from models.specs import pool_sizes

Make = Callable[..., Any]
LEARNING_RATE = 1e-5


@pytest.mark.parametrize("network", ["tiny", "res9", "res9 with bn", "res9 with gn"])
def test_our_round_is_the_plain_loop(network: str, make_small: Make) -> None:
    """One client alone, the second round (with helpers): weights and losses agree.

    RMSprop divides by the root of squares that begin at zero, so that rounding in a
    gradient near zero moves its weight by up to a whole step. So steps are small (at
    1e-3 the plain loop itself, started from weights changed in the seventh digit, ends
    with a kernel whose change differs by 4 %), weights are held against each other
    tensor by tensor, and biases that batch norm takes out again not at all.
    """
    method, model = _method_and_model(network, make_small)
    state = method.run_round(method.initial_state()).state
    outcome = method.run_round(state)
    helpers, clients = method.with_helpers(state).helpers, method.clients(state)[1]
    assert clients[0].unlabeled_active.all()
    model.set_weights(list(state.model_weights))
    plain_client = PlainClient(model, LEARNING_RATE)
    losses = plain_client.train(clients[0], helpers)
    assert np.mean(losses) == pytest.approx(float(outcome.report["loss"][0]), rel=1e-4)
    np.testing.assert_allclose(
        plain_client.prototypes(clients[0]),
        outcome.state.bank.values[-1],
        rtol=1e-4,
        atol=1e-4,
    )
    batch_norm = network in ("tiny", "res9 with bn")
    for weight, ours, start in zip(
        model.weights, outcome.state.model_weights, state.model_weights
    ):
        if not (batch_norm and "conv" in weight.name and "bias" in weight.name):
            change = np.linalg.norm(weight - start)
            assert change > 0
            assert np.linalg.norm(ours - weight) < 0.01 * change, weight.name


def _method_and_model(network: str, make_small: Make) -> Any:
    given = {
        "num_active_client": 1,
        "helper_cnt": 1,
        "optimizer_state": "fresh",
        "opt_lr": LEARNING_RATE,
    }
    if network.startswith("tiny"):
        return make_small(**given), tiny_model()
    norm = network.split()[-1] if " with " in network else "none"
    config = resolve({**SMALL, **given, "bn_type": norm}).config
    data = wiring.load_data(config)
    shape = data.images.shape[1:]
    method = wiring.make_method(config, data)
    return method, resnet8(shape, pool_sizes("res9", shape), norm)
