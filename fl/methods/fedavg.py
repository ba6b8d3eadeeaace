"""FedAvg (McMahan et al. 2017) on the labelled images alone.

With all of a client's images labelled these are the paper's "-SL" rows. FedProx adds a
proximal term to the same training (`fl.local.Regularization`). A client runs E epochs
over its labelled images, in one order per round, as the authors' program does.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np
import tensorflow as tf

from data import episodes
from fl import losses
from fl.local import LocalModel
from fl.methods.classifier import ClassifierMethod
from fl.methods.steps import (
    Batch,
    Figures,
    LossStep,
    Message,
    Step,
    labeled_figures,
    no_pseudo_labels,
)


class FedAvg(ClassifierMethod):
    """See the module's docstring."""

    semi_supervised = False

    def plan(
        self, stream: np.random.RandomState, round_index: int, sizes: Tuple[int, int]
    ) -> episodes.Steps:
        """E times the same batches; the last one of an epoch may be short."""
        del stream
        config = self.setup.config
        order = episodes.epoch_order(round_index, sizes[0])
        size = config.sl_batch_size or len(order)
        epoch = [order[start : start + size] for start in range(0, len(order), size)]
        return episodes.make_steps(epoch * config.local_episode)

    def make_step(self, local: LocalModel) -> Step:
        """Cross entropy on the labelled images."""
        return _SupervisedStep(local)


class _SupervisedStep(LossStep):
    def loss(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        logits = self.local.model(batch.labeled_x, training=True)
        figures = Figures(
            **labeled_figures(logits, batch.labeled_y), **no_pseudo_labels()
        )
        return losses.labeled_loss(logits, batch.labeled_y), figures
