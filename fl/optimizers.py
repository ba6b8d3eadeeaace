"""The optimizers of TensorFlow 2.6, which the authors' numbers stem from.

Keras has since moved RMSprop's epsilon inside the root and refuses to have its state
broadcast and averaged, so the update rules stand here, on plain variables. A state is
a flat tuple of arrays: it can be sent, averaged and saved like weights.
"""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence, Tuple

import attr
import numpy as np
import tensorflow as tf

EPSILON = 1e-7
RMSPROP_DECAY = 0.9
ADAM_BETA_1 = 0.9
ADAM_BETA_2 = 0.999

Shapes = Sequence[Tuple[int, ...]]
# (state, weights, gradients, learning rate): changes state and weights in place.
Step = Callable[
    [Sequence[tf.Variable], Sequence[tf.Variable], Sequence[tf.Tensor], tf.Tensor],
    None,
]


@attr.frozen
class Optimizer:
    """An update rule and the shape of what it remembers.

    Attributes:
        num_slots: arrays remembered per trainable weight, slot-major in the state.
        counts_steps: whether a scalar step count ends the state.
        step: the update rule.
    """

    num_slots: int
    counts_steps: bool
    step: Step

    def initial_state(self, shapes: Shapes) -> Tuple[np.ndarray, ...]:
        """Zeros for weights of the given shapes."""
        slots = [np.zeros(s, np.float32) for _ in range(self.num_slots) for s in shapes]
        return tuple(slots + [np.zeros((), np.float32)] * self.counts_steps)


def make_optimizer(name: str, momentum: float) -> Optimizer:
    """One of `_MAKERS`; Adam ignores the momentum, as theirs does."""
    return _MAKERS[name](momentum)


def _rmsprop(momentum: float) -> Optimizer:
    """Tieleman and Hinton's; epsilon inside the root only when there is momentum."""

    def step_plain(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        for v, w, g in zip(state, weights, gradients):
            v.assign(RMSPROP_DECAY * v + (1.0 - RMSPROP_DECAY) * tf.square(g))
            # w -= learning_rate * g / (sqrt(v) + EPSILON), in one pass over the memory:
            # Adagrad's kernel, told to leave v as it is.
            tf.raw_ops.ResourceApplyAdagradV2(
                var=w.handle,
                accum=v.handle,
                lr=learning_rate,
                epsilon=EPSILON,
                grad=g,
                update_slots=False,
            )

    def step_momentum(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        squares, velocities = _halves(state)
        for v, m, w, g in zip(squares, velocities, weights, gradients):
            v.assign(RMSPROP_DECAY * v + (1.0 - RMSPROP_DECAY) * tf.square(g))
            m.assign(momentum * m + learning_rate * g / tf.sqrt(v + EPSILON))
            w.assign_sub(m)

    if momentum > 0:
        return Optimizer(num_slots=2, counts_steps=False, step=step_momentum)
    return Optimizer(num_slots=1, counts_steps=False, step=step_plain)


def _sgd(momentum: float) -> Optimizer:
    def step_plain(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        for w, g in zip(weights, gradients):
            w.assign_sub(learning_rate * g)

    def step_momentum(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        for m, w, g in zip(state, weights, gradients):
            m.assign(momentum * m - learning_rate * g)
            w.assign_add(m)

    if momentum > 0:
        return Optimizer(num_slots=1, counts_steps=False, step=step_momentum)
    return Optimizer(num_slots=0, counts_steps=False, step=step_plain)


def _nesterov(momentum: float) -> Optimizer:
    """SGD that looks ahead: the step is momentum times the new velocity and -lr g."""

    def step(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        for m, w, g in zip(state, weights, gradients):
            m.assign(momentum * m - learning_rate * g)
            w.assign_add(momentum * m - learning_rate * g)

    return Optimizer(num_slots=1, counts_steps=False, step=step)


def _adam(momentum: float) -> Optimizer:
    del momentum

    def step(state, weights, gradients, learning_rate):  # type: ignore[no-untyped-def]
        slots, count = state[:-1], state[-1]
        count.assign_add(1.0)
        bias = tf.sqrt(1.0 - ADAM_BETA_2**count) / (1.0 - ADAM_BETA_1**count)
        means, squares = _halves(slots)
        for m, v, w, g in zip(means, squares, weights, gradients):
            m.assign(ADAM_BETA_1 * m + (1.0 - ADAM_BETA_1) * g)
            v.assign(ADAM_BETA_2 * v + (1.0 - ADAM_BETA_2) * tf.square(g))
            w.assign_sub(learning_rate * bias * m / (tf.sqrt(v) + EPSILON))

    return Optimizer(num_slots=2, counts_steps=True, step=step)


def _halves(
    state: Sequence[tf.Variable],
) -> Tuple[List[tf.Variable], List[tf.Variable]]:
    middle = len(state) // 2
    return list(state[:middle]), list(state[middle:])


_MAKERS: Mapping[str, Callable[[float], Optimizer]] = {
    "rmsprop": _rmsprop,
    "sgd": _sgd,
    "nesterov": _nesterov,
    "adam": _adam,
}
