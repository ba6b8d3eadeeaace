"""A client's copy of the network and its optimizer, inside a TFF computation."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import attr
import tensorflow as tf

from fl import losses
from fl.optimizers import Optimizer
from fl.types import Weights

ModelFn = Callable[[], tf.keras.Model]
# Gives the loss to minimise and whatever else the step wants to report.
LossFn = Callable[[], Tuple[tf.Tensor, Any]]


@attr.frozen
class Regularization:
    """The terms that any method's loss may carry; 0 leaves a term out.

    Attributes:
        l2_factor: weight of the squared convolution kernels.
        mu: weight of FedProx's proximal term.
        proximal_gradient: whether that term is differentiated (over the trainable
            weights), or only shows in the reported loss (over all weights), as in
            the authors' program.
        weight_decay: share of every trainable weight that is added to its gradient;
            it does not show in the loss.
    """

    l2_factor: float = 0.0
    mu: float = 0.0
    proximal_gradient: bool = False
    weight_decay: float = 0.0


class LocalModel:
    """Variables for the weights and the optimizer's state of one client.

    It is made while a computation is traced: TFF runs the traced graph afresh for
    each client, so nothing of one client is left when the next one trains.
    """

    def __init__(
        self, model_fn: ModelFn, optimizer: Optimizer, regularization: Regularization
    ):
        self.model = model_fn()
        self._optimizer = optimizer
        self._regularization = regularization
        shapes = [tuple(w.shape) for w in self.model.trainable_variables]
        self._state = [
            tf.Variable(tf.zeros_like(x), trainable=False)
            for x in optimizer.initial_state(shapes)
        ]
        self._kernels = [
            layer.kernel
            for layer in self.model.layers
            if isinstance(layer, tf.keras.layers.Conv2D)
        ]

    def receive(self, weights: Weights, optimizer_state: Weights) -> None:
        """Takes over the server's weights, and its optimizer state if it has one."""
        for variable, value in zip(self.model.weights, weights):
            variable.assign(value)
        for variable, value in zip(self._state, optimizer_state):
            variable.assign(value)

    @property
    def weights(self) -> Weights:
        """The weights as they are now."""
        return tuple(tf.identity(w) for w in self.model.weights)

    @property
    def optimizer_state(self) -> Weights:
        """The optimizer's state as it is now."""
        return tuple(tf.identity(x) for x in self._state)

    def minimize(
        self, loss_fn: LossFn, start: Weights, learning_rate: tf.Tensor
    ) -> Tuple[tf.Tensor, Any]:
        """One step down the loss and its regularization.

        Args:
            loss_fn: the method's own loss.
            start: the weights the server sent, for the proximal term.
            learning_rate: float32 [].

        Returns:
            The loss with all terms, before the step, and what `loss_fn` reports.
        """
        trainable = self.model.trainable_variables
        with tf.GradientTape() as tape:
            own_loss, report = loss_fn()
            objective = own_loss + self._differentiated_terms(start)
        reported = objective + self._shown_terms(start)
        gradients = tape.gradient(
            objective, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        decay = self._regularization.weight_decay
        if decay > 0:
            gradients = [g + decay * w for g, w in zip(gradients, trainable)]
        with tf.control_dependencies([reported]):
            self._optimizer.step(self._state, trainable, gradients, learning_rate)
        return reported, report

    def _differentiated_terms(self, start: Weights) -> tf.Tensor:
        options = self._regularization
        terms = tf.constant(0.0)
        if options.l2_factor > 0:
            terms += losses.l2_penalty(self._kernels, options.l2_factor)
        if options.mu > 0 and options.proximal_gradient:
            start_of_trainable = [
                w0 for w, w0 in zip(self.model.weights, start) if w.trainable
            ]
            terms += losses.proximal_term(
                self.model.trainable_variables, start_of_trainable, options.mu
            )
        return terms

    def _shown_terms(self, start: Weights) -> tf.Tensor:
        options = self._regularization
        if options.mu > 0 and not options.proximal_gradient:
            return losses.proximal_term(self.model.weights, start, options.mu)
        return tf.constant(0.0)


def sum_in_turn(step: Callable[[tf.Tensor], Any], count: tf.Tensor, zeros: Any) -> Any:
    """The sum of what steps 0 to `count` - 1 return, each taken after the one before.

    Args:
        step: from its number, int32 [], to a structure of tensors.
        count: int32 [].
        zeros: a structure like that, of zeros.
    """

    def add(number: tf.Tensor, sums: Any) -> Tuple[tf.Tensor, Any]:
        return number + 1, tf.nest.map_structure(tf.add, sums, step(number))

    _, sums = tf.while_loop(
        lambda number, _: number < count, add, (tf.constant(0), zeros)
    )
    return sums


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Images uint8 -> float32 in [0, 1], the only preprocessing there is."""
    return tf.cast(images, tf.float32) / 255.0
