"""FedMatch (Jeong et al. 2021), labels at the clients: kernels as sums of two parts.

Each kernel is sigma + psi. Labelled images train sigma, unlabelled ones psi, and other
clients with a similar model, the helpers, have a say in what an image shows.

1. The server broadcasts sigma and psi. A client that the server has helpers for also
   receives their psi; a helper's model is the own sigma plus that psi.
2. Each step, with plain SGD,

   sigma goes down  10 CE(labelled), psi being constant;
   psi goes down    w mean over helpers of KL(f_helper(u) || f(u))
                    + w CE(vote(u), f(RandAugment(u)))
                    + 1e-4 ||psi||_1 + 10 ||sigma - psi||^2, sigma being constant,

   where u are the images of which the model is sure (max p >= 0.75), means are over
   those, w is `--unlabeled_weight` and vote(u) the class that most of the client and
   its helpers choose (the lowest of several).
3. The client returns the entries of sigma and psi that changed by more than 5e-5; psi
   within 5e-6 of zero counts as zero. The server has its own value for the others.
   The mean over the clients becomes the server's.
4. Every R_H rounds (`--helper_interval`) each client seen so far gets as helpers the H
   (`--helper_cnt`) other clients whose models answer one random image most alike, by
   Euclidean distance between probabilities.

A client divides its learning rate by 3 when the loss on its labelled images, which
serve as its validation set, has not improved for 5 rounds of its own. The loss that
is reported leaves the two terms on the weights alone out: they would drown the rest.

Departures: a client keeps its helpers until the next refresh, as in the paper; in the
published program it has them in the round of a refresh alone
(`--helper_handout=refresh`). A client that no refresh has seen has none, as there.
RandAugment is that of two operations at 10 of 30 for its own mixture of six.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import attr
import numpy as np
import scipy.spatial
import tensorflow as tf

from fl import augment, losses, states
from fl.local import LocalModel, ModelFn, to_float
from fl.methods.base import specs_of
from fl.methods.classifier import PairedMethod, State
from fl.methods.steps import (
    Batch,
    Client,
    Figures,
    Finish,
    Kept,
    Message,
    Step,
    at_least,
    labeled_figures,
    pseudo_label_figures,
)
from fl.process import Exchange, num_bytes
from fl.types import Array, Weights

LABELED_BATCH = 10
UNLABELED_BATCH = 98
PSI_SHARE = 0.2
LABELED_WEIGHT = 10.0
L1_WEIGHT = 1e-4
CLOSENESS_WEIGHT = 10.0
ZERO_BELOW = 5e-6
SENT_ABOVE = 5e-5
RATE_DIVISOR = 3.0
PATIENCE = 5
_IMAGE_STREAM = 0xFED


@attr.frozen(eq=False)
class Helpers:
    """Who helps whom; N clients, H helpers.

    Attributes:
        outputs: float32 [N, K], each client's answer to the random image when it last
            trained.
        chosen: int64 [N, H], its helpers since the last refresh; -1 for none.
        versions: int64 [N], which of a client's states helps: that of the last refresh.
        handed_out: bool [N], whether a client has received its helpers since then.
    """

    outputs: Array
    chosen: Array
    versions: Array
    handed_out: Array


@attr.frozen(eq=False)
class Rate:
    """A client's learning rate and what decides when it falls.

    Attributes:
        learning_rate: float32 [].
        best_loss: float32 [], the lowest on its labelled images so far.
        stale: int32 [], rounds since then.
    """

    learning_rate: Array
    best_loss: Array
    stale: Array


@attr.frozen(eq=False)
class Personal:
    """What a client alone has: its rate, and its helpers' psi, [h, ...] each."""

    rate: Rate
    helpers: Weights


@attr.frozen(eq=False)
class OwnState:
    """What a client keeps: its rate, and psi as the server knows it."""

    rate: Rate
    psi: Weights


@attr.frozen(eq=False)
class Returned:
    """What the server gets of a client apart.

    Attributes:
        output: float32 [K], the model's answer to the random image.
        entries_sent: int32 [2 n], of each sigma and each psi.
    """

    output: Array
    entries_sent: Array


class FedMatch(PairedMethod):
    """See the module's docstring."""

    clients_keep = True

    def batch_sizes(self, sizes: Tuple[int, int]) -> Tuple[int, int]:
        """10 and 98: five steps an epoch over 50 and 490 images."""
        return LABELED_BATCH, UNLABELED_BATCH

    def make_step(self, local: LocalModel) -> Step:
        """Both parts of a step."""
        config = self.setup.config
        shape = self.setup.data.images.shape[1:]
        return FedMatchStep(
            local,
            self.setup.model_fn,
            config.confidence_threshold,
            config.unlabeled_weight,
            random_image(config.seed, shape),
        )

    def initial_state(self) -> State:
        """Sigmas, then psis, in `model_weights`."""
        state = super().initial_state()
        sigma = state.model_weights
        psi = tuple(np.float32(PSI_SHARE) * kernel for kernel in sigma)
        return attr.evolve(state, model_weights=(*sigma, *psi))

    def classifier_weights(self, state: State) -> Weights:
        """Sigma + psi."""
        sigma, psi = parts(state.model_weights)
        return tuple(s + p for s, p in zip(sigma, psi))

    def initial_shared(self) -> Helpers:
        """Nobody has been seen."""
        config = self.setup.config
        count = config.num_client
        return Helpers(
            outputs=np.zeros([count, self.setup.data.num_classes], np.float32),
            chosen=np.full([count, config.helper_cnt], -1, np.int64),
            versions=np.zeros(count, np.int64),
            handed_out=np.zeros(count, bool),
        )

    def next_shared(
        self, state: State, active: Sequence[int], exchange: Exchange
    ) -> Helpers:
        """Notes who was seen; chooses helpers anew when it is time to."""
        round_num = state.round_num + 1
        outputs, handed_out = state.shared.outputs.copy(), state.shared.handed_out
        outputs[list(active)] = exchange.counted(exchange.own.returned.output)
        if round_num % self.setup.config.helper_interval:
            handed_out = handed_out.copy()
            handed_out[[n for n in active if self._helpers(state, n)]] = True
            return attr.evolve(state.shared, outputs=outputs, handed_out=handed_out)
        versions = state.client_versions.copy()
        versions[list(active)] = round_num
        return Helpers(
            outputs=outputs,
            chosen=nearest(outputs, versions > 0, self.setup.config.helper_cnt),
            versions=versions,
            handed_out=np.zeros_like(handed_out),
        )

    def broadcast(self, state: State) -> Any:
        """Nothing: who helps whom is the server's business."""
        return ()

    def personal_spec(self) -> Personal:
        """Any number of helpers."""
        return Personal(
            rate=specs_of(self._first_rate()),
            helpers=tuple(
                tf.TensorSpec([None, *kernel.shape], tf.float32)
                for kernel in self.setup.initial_weights
            ),
        )

    def personal(self, state: State, number: int) -> Personal:
        """The client's rate, and its helpers' psi if it is to have any."""
        kept = [
            self._kept(helper, int(state.shared.versions[helper])).psi
            for helper in self._helpers(state, number)
        ]
        return Personal(rate=self._rate(state, number), helpers=self._stacked(kept))

    def check_kept(self, state: State) -> None:
        """See `Method`: all clients' own states, and those of all that may help."""
        files = {
            (int(number), int(versions[number]))
            for versions in (state.client_versions, state.shared.versions)
            for number in np.flatnonzero(versions)
        }
        for number, version in sorted(files):
            self._kept(number, version)

    def rounds_read(self, round_num: int) -> Tuple[int, ...]:
        """Helpers are as they were at the last refresh."""
        refresh = round_num - round_num % self.setup.config.helper_interval
        return (refresh, round_num) if refresh else (round_num,)

    def num_bytes(
        self, state: State, clients: Sequence[Client], exchange: Exchange
    ) -> Tuple[int, int]:
        """What is really sent: unchanged entries are not, see `sparse_bytes`."""
        active = self.active(state)
        down = sum(map(self._bytes_down, [state] * len(active), active, clients))
        sizes = [kernel.size for kernel in state.model_weights]
        returned = exchange.own.returned
        up = sum(
            sparse_bytes(size, int(sent))
            for row, client in zip(returned.entries_sent, clients)
            for size, sent in zip(sizes, row)
            if client.returns
        )
        rows = num_bytes(exchange.own.report) // len(clients)
        return down, up + rows * sum(bool(client.returns) for client in clients)

    def _bytes_down(self, state: State, number: int, client: Client) -> int:
        """Sigma, what of psi the client lacks, and helpers it has not had yet."""
        sigma, psi = parts(state.model_weights)
        version = int(state.client_versions[number])
        known = self._kept(number, version).psi if version else [None] * len(psi)
        total = num_bytes(sigma)
        for new, old in zip(psi, known):
            lacking = new.size if old is None else np.count_nonzero(new != old)
            total += sparse_bytes(new.size, lacking)
        if not state.shared.handed_out[number]:
            for helpers in client.personal.helpers:
                for kernel in helpers:
                    total += sparse_bytes(kernel.size, np.count_nonzero(kernel))
        return total

    def _helpers(self, state: State, number: int) -> Sequence[int]:
        """The helpers that a client has in the coming round."""
        config = self.setup.config
        between = state.round_num % config.helper_interval > 0
        if between and config.helper_handout == "refresh":
            return ()
        return [int(n) for n in state.shared.chosen[number] if n >= 0]

    def _stacked(self, kept: Sequence[Weights]) -> Weights:
        kernels = self.setup.initial_weights
        return tuple(
            np.array([psi[i] for psi in kept], np.float32).reshape(-1, *kernel.shape)
            for i, kernel in enumerate(kernels)
        )

    def _rate(self, state: State, number: int) -> Rate:
        version = int(state.client_versions[number])
        return self._kept(number, version).rate if version else self._first_rate()

    def _first_rate(self) -> Rate:
        return Rate(
            learning_rate=np.float32(self.setup.config.opt_lr),
            best_loss=np.float32(math.inf),
            stale=np.int32(0),
        )

    def _kept(self, number: int, version: int) -> OwnState:
        like = OwnState(rate=self._first_rate(), psi=tuple(self.setup.initial_weights))
        arrays = self.client_states.get(number, version)
        found: Kept = states.from_arrays(Kept(optimizer_state=(), own=like), arrays)
        own: OwnState = found.own
        return own


def random_image(seed: int, shape: Tuple[int, ...]) -> np.ndarray:
    """The image by whose answers models are compared; normal values, [1, H, W, C]."""
    words = np.random.SeedSequence([seed, _IMAGE_STREAM]).generate_state(4)
    return np.random.RandomState(words).normal(size=[1, *shape]).astype(np.float32)


def parts(weights: Sequence[Any]) -> Tuple[Weights, Weights]:
    """Sigmas and psis, from one list of both."""
    middle = len(weights) // 2
    return tuple(weights[:middle]), tuple(weights[middle:])


def nearest(outputs: np.ndarray, seen: np.ndarray, count: int) -> np.ndarray:
    """For each client seen the others whose outputs lie nearest, nearest first.

    Args:
        outputs: [N, K].
        seen: bool [N].
        count: how many to find.

    Returns:
        int64 [N, count], -1 where there is none.
    """
    found = np.full([len(outputs), count], -1, np.int64)
    numbers = np.flatnonzero(seen)
    if len(numbers) < 2:
        return found
    tree = scipy.spatial.KDTree(outputs[numbers])
    wanted = min(count + 1, len(numbers))
    _, places = tree.query(outputs[numbers], k=wanted)
    for number, row in zip(numbers, numbers[places]):
        others = row[row != number][:count]
        found[number, : len(others)] = others
    return found


def sparse_bytes(size: int, entries: int) -> int:
    """Bytes of so many of `size` float32 entries: a bit for each and the values.

    All are sent plainly where that is no more.
    """
    return min(4 * size, 4 * entries + (size + 7) // 8)


class FedMatchStep(Step):
    """Both parts of a step on a client's network."""

    def __init__(
        self,
        local: LocalModel,
        model_fn: ModelFn,
        threshold: float,
        weight: float,
        image: np.ndarray,
    ):
        super().__init__(local)
        self._helper = model_fn()
        self._threshold = threshold
        self._weight = weight
        self._image = image
        kernels = local.model.trainable_variables
        self._sigma, self._psi = (
            [tf.Variable(tf.zeros_like(k), trainable=True) for k in kernels]
            for _ in range(2)
        )
        self._rate = tf.Variable(0.0, trainable=False)
        self._helpers: Weights = ()

    def begin(self, message: Message, client: Client) -> None:
        """Takes over both parts, the rate and the helpers."""
        sigma, psi = parts(message.model_weights)
        _assign(self._sigma, sigma)
        _assign(self._psi, psi)
        self._rate.assign(client.personal.rate.learning_rate)
        self._helpers = client.personal.helpers
        self._compose()

    def take(self, message: Message, batch: Batch) -> Tuple[tf.Tensor, Figures]:
        """First sigma's part, then psi's."""
        labeled_loss, labeled = self._take_labeled(batch)
        other_loss, unlabeled = self._take_unlabeled(batch)
        return labeled_loss + other_loss, Figures(**labeled, **unlabeled)

    def finish(self, message: Message, client: Client) -> Finish:
        """What the server will know of both parts, and the rate of the next time."""
        logits = self.local.model(to_float(client.labeled_x), training=False)
        loss = losses.labeled_loss(logits, client.labeled_y)
        old_sigma, old_psi = parts(message.model_weights)
        sigma, sigma_sent = sent_parts(self._sigma, old_sigma)
        psi, psi_sent = sent_parts([without_small(p) for p in self._psi], old_psi)
        _assign(self._helper.trainable_variables, map(tf.add, sigma, psi))
        output = tf.nn.softmax(self._helper(self._image, training=False))[0]
        return Finish(
            weights=(*sigma, *psi),
            returned=Returned(
                output=output, entries_sent=tf.stack([*sigma_sent, *psi_sent])
            ),
            kept=OwnState(rate=next_rate(client.personal.rate, loss), psi=psi),
        )

    def _take_labeled(self, batch: Batch) -> Tuple[tf.Tensor, Dict[str, tf.Tensor]]:
        model = self.local.model
        with tf.GradientTape() as tape:
            logits = model(batch.labeled_x, training=True)
            loss = LABELED_WEIGHT * losses.labeled_loss(logits, batch.labeled_y)
        figures = labeled_figures(logits, batch.labeled_y)
        # d/d sigma of f(sigma + psi) is the gradient at the sum; likewise below.
        self._descend(self._sigma, tape.gradient(loss, model.trainable_variables))
        return loss, figures

    def _take_unlabeled(self, batch: Batch) -> Tuple[tf.Tensor, Dict[str, tf.Tensor]]:
        probs = tf.nn.softmax(self.local.model(batch.unlabeled_x, training=True))
        used = at_least(probs, self._threshold)
        sure = tf.where(used > 0)  # [c, 1]
        images = tf.gather_nd(batch.unlabeled_x, sure)
        loss, gradients, votes = tf.cond(
            tf.size(sure) > 0,
            lambda: self._learn_from(images, batch.seed),
            self._learn_nothing,
        )
        with tf.GradientTape() as tape:
            terms = part_terms(self._sigma, self._psi)
        pulls = tape.gradient(terms, self._psi)
        self._descend(self._psi, [g + p for g, p in zip(gradients, pulls)])
        guess = tf.argmax(probs, axis=-1, output_type=tf.int32)
        guess = tf.tensor_scatter_nd_update(guess, sure, votes)
        return loss, pseudo_label_figures(batch, probs, used, loss, guess)

    def _learn_from(
        self, images: tf.Tensor, seed: tf.Tensor
    ) -> Tuple[tf.Tensor, List[tf.Tensor], tf.Tensor]:
        """Loss, gradients and votes on images that the model is sure of."""
        model = self.local.model
        opinions = self._ask(images)
        both = tf.concat([images, augment.strong_fedmatch(images, seed)], axis=0)
        with tf.GradientTape() as tape:
            plain, strong = tf.split(model(both, training=True), 2)
            votes = vote(tf.nn.softmax(plain), opinions)
            agreement = losses.labeled_loss(strong, votes)
            loss = self._weight * (helper_divergence(opinions, plain) + agreement)
        return loss, tape.gradient(loss, model.trainable_variables), votes

    def _learn_nothing(self) -> Tuple[tf.Tensor, List[tf.Tensor], tf.Tensor]:
        zeros = [tf.zeros_like(psi) for psi in self._psi]
        return tf.constant(0.0), zeros, tf.zeros([0], tf.int32)

    def _ask(self, images: tf.Tensor) -> tf.Tensor:
        """The helpers' probabilities, [h, c, K]; one network plays all in turn."""

        def ask(number: tf.Tensor, opinions: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
            psis = [psi[number] for psi in self._helpers]
            _assign(self._helper.trainable_variables, map(tf.add, self._sigma, psis))
            probs = tf.nn.softmax(self._helper(images, training=False))
            return number + 1, tf.concat([opinions, probs[tf.newaxis]], axis=0)

        num_classes = self._helper.output_shape[-1]
        none = tf.zeros([0, tf.shape(images)[0], num_classes])
        _, opinions = tf.while_loop(
            lambda number, _: number < tf.shape(self._helpers[0])[0],
            ask,
            [tf.constant(0), none],
            shape_invariants=[
                tf.TensorShape([]),
                tf.TensorShape([None, None, num_classes]),
            ],
            parallel_iterations=1,
        )
        return opinions

    def _descend(
        self, part: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]
    ) -> None:
        for variable, gradient in zip(part, gradients):
            variable.assign_sub(self._rate * gradient)
        self._compose()

    def _compose(self) -> None:
        kernels = self.local.model.trainable_variables
        _assign(kernels, map(tf.add, self._sigma, self._psi))


def _assign(variables: Iterable[tf.Variable], values: Iterable[tf.Tensor]) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)


def vote(own: tf.Tensor, opinions: tf.Tensor) -> tf.Tensor:
    """The class that most choose, int32 [B]; the lowest of several.

    Args:
        own: [B, K], the client's probabilities.
        opinions: [h, B, K], the helpers'.
    """
    everyone = tf.concat([own[tf.newaxis], opinions], axis=0)
    choices = tf.one_hot(tf.argmax(everyone, axis=-1), own.shape[-1])
    votes = tf.reduce_sum(choices, axis=0)
    return tf.argmax(votes, axis=-1, output_type=tf.int32)


def helper_divergence(opinions: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean over helpers and images of KL(helper || model); 0 without helpers."""
    log_probs = tf.nn.log_softmax(logits)
    gaps = tf.math.xlogy(opinions, opinions) - opinions * log_probs
    return losses.safe_mean(tf.reduce_sum(gaps, axis=-1))


def part_terms(sigma: Sequence[tf.Tensor], psi: Sequence[tf.Tensor]) -> tf.Tensor:
    """1e-4 ||psi||_1 + 10 ||sigma - psi||^2."""
    sparse = tf.add_n([tf.reduce_sum(tf.abs(p)) for p in psi])
    close = tf.add_n([tf.reduce_sum(tf.square(s - p)) for s, p in zip(sigma, psi)])
    return L1_WEIGHT * sparse + CLOSENESS_WEIGHT * close


def without_small(psi: tf.Tensor) -> tf.Tensor:
    """Zero where an entry is within 5e-6 of it."""
    return tf.where(tf.abs(psi) <= ZERO_BELOW, 0.0, psi)


def sent_parts(
    new: Sequence[tf.Tensor], old: Sequence[tf.Tensor]
) -> Tuple[Weights, List[tf.Tensor]]:
    """What the server has after an upload, and how many entries of each were sent."""
    changed = [tf.abs(n - o) > SENT_ABOVE for n, o in zip(new, old)]
    known = tuple(tf.where(c, n, o) for c, n, o in zip(changed, new, old))
    return known, [tf.math.count_nonzero(c, dtype=tf.int32) for c in changed]


def next_rate(rate: Rate, loss: tf.Tensor) -> Rate:
    """Divides the rate by 3 after 5 losses in a row that are no new lowest."""
    better = loss < rate.best_loss
    stale = tf.where(better, 0, rate.stale + 1)
    falls = stale >= PATIENCE
    return Rate(
        learning_rate=tf.where(
            falls, rate.learning_rate / RATE_DIVISOR, rate.learning_rate
        ),
        best_loss=tf.minimum(loss, rate.best_loss),
        stale=tf.where(falls, 0, stale),
    )
