"""Tests of the client update on networks that NumPy can follow.

The network is mostly z = x W without bias, so that every embedding is linear in the
weights, and the reference below is the algorithm written once more: NumPy in float64,
gradients by central differences.
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import attr
import numpy as np
import pytest
import tensorflow as tf

from fl import client, optimizers
from fl.client import ClientSettings, client_update
from fl.local import LocalModel, Regularization
from fl.types import Broadcast, ClientData, ClientOutput, Prototypes

CLASSES = 3
PIXELS = 3
SIZE = 2
RATE = 0.1
SETTINGS = ClientSettings(
    num_classes=CLASSES,
    distance="mean_squared",
    unlabeled_weight=0.3,
    temperature=0.5,
    unlabeled_loss_type="CE",
    pseudo_label_gradient=True,
    global_prototypes=False,
    noise_stddev=0.0,
    min_share_samples=0,
    weight_by_examples=False,
    share_optimizer=False,
    pass_on_optimizer=False,
)


def linear(size: int = SIZE) -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.Input([1, PIXELS, 1]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(size, use_bias=False),
        ]
    )


def normalized() -> tf.keras.Model:
    """Pixels through a batch norm over each; nothing else."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([1, PIXELS, 1]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.BatchNormalization(),
        ]
    )


def random_images(seed: int, count: int) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 1, PIXELS, 1))
    return pixels.astype(np.uint8)


def images(rows: List[List[int]]) -> np.ndarray:
    """Images of pixels that are 0 or 1 after the division by 255."""
    return (255 * np.array(rows)).astype(np.uint8).reshape(len(rows), 1, PIXELS, 1)


def client_data(**changes: Any) -> ClientData:
    """Three labelled images a class, six unlabelled; two episodes, both active."""
    data = ClientData(
        labeled_x=random_images(1, 9),
        labeled_y=np.repeat(np.arange(3, dtype=np.int32), 3),
        unlabeled_x=random_images(2, 6),
        unlabeled_y=np.array([0, 0, 1, 1, 2, 2], np.int32),
        unlabeled_y_known=np.bool_(True),
        support=np.array([[0, 4, 8], [2, 3, 6]], np.int32),
        query=np.array([[1, 2, 3, 5, 6, 7], [0, 1, 4, 5, 7, 8]], np.int32),
        unlabeled=np.array([[5, 0, 3, 2], [1, 4, 0, 3]], np.int32),
        unlabeled_drawn=np.array([4, 4], np.int32),
        unlabeled_active=np.array([True, True]),
        slot=np.int32(0),
        noise_seed=np.array([1, 2], np.int32),
    )
    return attr.evolve(data, **changes)


def some_helpers() -> Prototypes:
    """Two helpers, the second without class 1, and an empty slot."""
    values = np.random.default_rng(3).normal(0, 1, (3, CLASSES, SIZE))
    present = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], bool)
    return Prototypes(values=np.float32(values * present[..., None]), present=present)


def no_helpers(size: int = SIZE) -> Prototypes:
    return Prototypes(
        values=np.zeros((3, CLASSES, size), np.float32),
        present=np.zeros((3, CLASSES), bool),
    )


def start_weights() -> np.ndarray:
    return np.random.default_rng(4).normal(0, 1.5, (PIXELS, SIZE)).astype(np.float32)


def broadcast(**changes: Any) -> Broadcast:
    message = Broadcast(
        model_weights=(start_weights(),),
        optimizer_state=(),
        helpers=some_helpers(),
        learning_rate=np.float32(RATE),
    )
    return attr.evolve(message, **changes)


def update(
    message: Broadcast,
    data: ClientData,
    model_fn: Callable[[], tf.keras.Model] = linear,
    optimizer: str = "sgd",
    graph: bool = False,
    **changes: Any,
) -> ClientOutput:
    """A client update on fresh variables, as NumPy values.

    Tracing a graph takes longer than all else here, so only tests that ask for it do.
    """
    rule = optimizers.make_optimizer(optimizer, 0.0)
    local = LocalModel(model_fn, rule, Regularization())
    settings = attr.evolve(SETTINGS, **changes)
    inputs = tf.nest.map_structure(tf.constant, (message, data))
    run = tf.function(client_update) if graph else client_update
    output = run(local, settings, *inputs)
    return tf.nest.map_structure(lambda x: x.numpy(), output)


def kernel(output: ClientOutput) -> np.ndarray:
    return output.averaged.model_weights[0]


# --- The reference -----------------------------------------------------------
def numpy_probs(z: np.ndarray, sets: Prototypes, distance: str) -> np.ndarray:
    """Eq. (6) for one set of prototypes; zeros if it is empty."""
    difference = z[:, None, :] - sets.values[None]
    if distance == "mean_squared":
        d = np.mean(difference**2, axis=-1)
    else:
        d = np.sqrt(np.sum(difference**2, axis=-1))
    powers = np.exp(-d) * sets.present
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)


def numpy_prototypes(z: np.ndarray, labels: np.ndarray) -> Prototypes:
    present = np.array([k in labels for k in range(CLASSES)])
    values = [z[labels == k].mean(0) if present[k] else 0 * z[0] for k in range(3)]
    return Prototypes(values=np.array(values), present=present)


def numpy_pseudo_labels(
    z: np.ndarray, helpers: Prototypes, settings: ClientSettings
) -> np.ndarray:
    opinions = [
        numpy_probs(z, Prototypes(v, p), settings.distance)
        for v, p in zip(helpers.values.astype(np.float64), helpers.present)
        if p.any()
    ]
    powered = np.mean(opinions, axis=0) ** (1.0 / settings.temperature)
    return powered / powered.sum(axis=-1, keepdims=True)


def numpy_terms(
    weights: np.ndarray,
    frozen: np.ndarray,
    data: ClientData,
    settings: ClientSettings,
    episode: int,
) -> Tuple[float, float, float]:
    """Labelled loss, weighted unlabelled loss and query accuracy of an episode.

    Where the pseudo-label is a constant it is made with `frozen` instead of `weights`.
    """
    labeled = data.labeled_x.reshape(-1, PIXELS) / 255.0
    drawn = data.unlabeled[episode, : data.unlabeled_drawn[episode]]
    unlabeled = data.unlabeled_x.reshape(-1, PIXELS)[drawn] / 255.0
    support, query = data.support[episode], data.query[episode]
    own = numpy_prototypes(labeled[support] @ weights, data.labeled_y[support])
    probs = numpy_probs(labeled[query] @ weights, own, settings.distance)
    truth = data.labeled_y[query]
    loss = -np.mean(np.log(probs[np.arange(len(query)), truth]))
    made_with = weights if settings.pseudo_label_gradient else frozen
    target = numpy_pseudo_labels(unlabeled @ made_with, some_helpers(), settings)
    guess = numpy_probs(unlabeled @ weights, own, settings.distance)
    if settings.unlabeled_loss_type == "CE":
        clipped = np.clip(guess, 1e-7, 1 - 1e-7)
        term = np.mean(np.sum(-target * np.log(clipped), axis=-1))
    else:
        term = np.mean((target - guess) ** 2)
    right = np.mean(np.argmax(probs, axis=-1) == truth)
    return loss, settings.unlabeled_weight * term, right


def numpy_update(data: ClientData, **changes: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Weights after all episodes of SGD, and the mean terms told of them."""
    settings = attr.evolve(SETTINGS, **changes)
    weights, told = start_weights().astype(np.float64), []
    for episode in range(len(data.query)):
        told.append(numpy_terms(weights, weights, data, settings, episode))
        gradient = np.zeros_like(weights)
        for place in np.ndindex(*weights.shape):
            step = np.zeros_like(weights)
            step[place] = 1e-5
            up, down = (
                sum(numpy_terms(w, weights, data, settings, episode)[:2])
                for w in (weights + step, weights - step)
            )
            gradient[place] = (up - down) / 2e-5
        weights = weights - RATE * gradient
    return weights, np.mean(told, axis=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pseudo_label_gradient": False},
        {"distance": "euclidean", "pseudo_label_gradient": False, "temperature": 1.0},
        {"distance": "euclidean", "unlabeled_loss_type": "MSE"},
        {"unlabeled_loss_type": "MSE", "unlabeled_weight": 10.0, "temperature": 2.0},
        {
            "unlabeled_loss_type": "MSE",
            "unlabeled_weight": 10.0,
            "pseudo_label_gradient": False,
        },
    ],
    ids=str,
)
def test_update_is_the_algorithm_written_in_numpy(changes: Any) -> None:
    """Weights after two episodes, and the report, of eqs. (2), (3), (5)-(8)."""
    output = update(broadcast(), client_data(), graph=True, **changes)
    weights, (labeled, unlabeled, right) = numpy_update(client_data(), **changes)
    np.testing.assert_allclose(kernel(output), weights, rtol=2e-4, atol=2e-5)
    report = output.own.report
    np.testing.assert_allclose(report.loss, labeled + unlabeled, rtol=1e-5)
    np.testing.assert_allclose(report.unlabeled_loss, unlabeled, rtol=1e-5)
    np.testing.assert_allclose(report.accuracy, right, rtol=1e-6)


def test_the_reference_tells_the_pseudo_label_gradient_apart() -> None:
    """Otherwise the test above would pass with the switch ignored."""
    data = client_data()
    through, _ = numpy_update(data)
    constant, _ = numpy_update(data, pseudo_label_gradient=False)
    assert np.abs(through - constant).max() > 1e-3


def test_class_without_support_costs_16_and_pulls_through_the_pseudo_label() -> None:
    """The client has no image of class 2; its prediction of it is 0, clipped.

    With a constant pseudo-label its mass there is a constant cost; where a gradient
    flows through it, the weights also move to make that mass less.
    """
    data = client_data(
        labeled_y=np.repeat(np.arange(3, dtype=np.int32), [4, 5, 0]),
        support=np.array([[0, 4]], np.int32),
        query=np.array([[1, 2, 5, 6]], np.int32),
        unlabeled_active=np.array([True]),
    )
    kernels = []
    for through in (True, False):
        output = update(broadcast(), data, pseudo_label_gradient=through)
        weights, terms = numpy_update(data, pseudo_label_gradient=through)
        np.testing.assert_allclose(kernel(output), weights, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(output.own.report.unlabeled_loss, terms[1], 1e-5)
        assert terms[1] > 0.3
        np.testing.assert_array_equal(
            output.own.prototypes.present, [True, True, False]
        )
        np.testing.assert_array_equal(output.own.prototypes.values[2], [0, 0])
        kernels.append(kernel(output))
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01


def test_support_set_gets_a_gradient() -> None:
    """Query and prototype differ in pixel 0 of the support alone: W row 0 moves.

    All queries are dark, so their embeddings are 0 whatever W is; the loss depends on
    W through the prototypes only. Class 0 at W_0 = (1, 0), class 1 and 2 at 0:
    d_0 = |W_0|^2 / 2, and for the one query of class 0 p_0 = a / (a + 2) with
    a = e^-1/2, loss -log p_0, dL/dW_0 = (1 - p_0) W_0.
    """
    data = client_data(
        labeled_x=images([[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        labeled_y=np.array([0, 0, 1, 2], np.int32),
        support=np.array([[0, 2, 3]], np.int32),
        query=np.array([[1]], np.int32),
        unlabeled_drawn=np.array([0], np.int32),
        unlabeled_active=np.array([False]),
    )
    start = np.array([[1, 0], [0, 0], [0, 0]], np.float32)
    output = update(broadcast(model_weights=(start,)), data)
    a = np.exp(-0.5)
    p = a / (a + 2)
    expected = start - RATE * (1 - p) * start
    np.testing.assert_allclose(kernel(output), expected, rtol=1e-6)
    np.testing.assert_allclose(output.own.report.loss, -np.log(p), rtol=1e-6)


# --- When unlabelled images count --------------------------------------------
def test_lambda_zero_is_supervised_training() -> None:
    supervised = update(broadcast(), client_data(unlabeled_active=np.zeros(2, bool)))
    weightless = update(broadcast(), client_data(), unlabeled_weight=0.0)
    np.testing.assert_array_equal(kernel(weightless), kernel(supervised))
    assert weightless.own.report.loss == supervised.own.report.loss
    assert weightless.own.report.unlabeled_loss == 0.0
    both = update(broadcast(), client_data())
    assert np.abs(kernel(both) - kernel(supervised)).max() > 1e-3


def test_idle_images_do_not_touch_the_loss() -> None:
    """Drawn and inactive is the same as not drawn, in a network without batch norm."""
    idle = client_data(unlabeled_active=np.zeros(2, bool))
    none = attr.evolve(idle, unlabeled_drawn=np.zeros(2, np.int32))
    passed, skipped = update(broadcast(), idle), update(broadcast(), none)
    np.testing.assert_allclose(kernel(passed), kernel(skipped), rtol=1e-6)
    np.testing.assert_allclose(
        passed.own.report.loss, skipped.own.report.loss, rtol=1e-6
    )
    for output in (passed, skipped):
        assert output.own.report.unlabeled_loss == 0.0
        assert output.own.report.pseudo_label_count == 0.0


@pytest.mark.parametrize("drawn", [4, 0])
def test_idle_images_shape_the_statistics_of_batch_norm(drawn: int) -> None:
    """The moving mean goes from 0 to 0.01 times the mean of all that passes."""
    data = client_data(
        support=np.array([[0, 4, 8]], np.int32),
        query=np.array([[1, 2, 3, 5, 6, 7]], np.int32),
        unlabeled=np.array([[5, 0, 3, 2]], np.int32),
        unlabeled_drawn=np.array([drawn], np.int32),
        unlabeled_active=np.array([False]),
    )
    model = normalized()
    message = broadcast(
        model_weights=tuple(model.get_weights()),
        helpers=no_helpers(PIXELS),
        learning_rate=np.float32(0.0),
    )
    output = update(message, data, normalized, graph=True)
    passed = np.concatenate([data.labeled_x, data.unlabeled_x[[5, 0, 3, 2][:drawn]]])
    expected = 0.01 * passed.reshape(-1, PIXELS).mean(axis=0) / 255.0
    np.testing.assert_allclose(output.averaged.model_weights[2], expected, rtol=1e-5)
    assert output.own.report.unlabeled_loss == 0.0


def test_unlabeled_images_count_from_the_episode_that_says_so() -> None:
    """One active episode of two: its term, halved by the mean over both."""
    data = client_data(unlabeled_active=np.array([False, True]))
    message = broadcast(learning_rate=np.float32(0.0))
    output = update(message, data)
    _, term, _ = numpy_terms(start_weights(), start_weights(), data, SETTINGS, 1)
    np.testing.assert_allclose(output.own.report.unlabeled_loss, term / 2, rtol=1e-5)
    assert output.own.report.pseudo_label_count == 4.0


def test_without_helpers_there_is_no_unlabeled_loss() -> None:
    active = update(broadcast(helpers=no_helpers()), client_data())
    idle = update(broadcast(), client_data(unlabeled_active=np.zeros(2, bool)))
    np.testing.assert_allclose(kernel(active), kernel(idle), rtol=1e-6)
    report = active.own.report
    assert report.unlabeled_loss == 0.0
    assert report.pseudo_label_count == report.pseudo_label_known == 0.0
    assert report.pseudo_label_confidence == report.pseudo_label_correct == 0.0


# --- Figures of the pseudo-labels --------------------------------------------
def pseudo_label_case(**changes: Any) -> ClientOutput:
    """W keeps the first two pixels; one helper has class 0 at (0,0), 1 at (1,0)."""
    data = client_data(
        unlabeled_x=images([[0, 0, 1], [1, 0, 0], [1, 0, 1]]),
        unlabeled_y=np.array([0, 0, 1], np.int32),
        unlabeled=np.array([[0, 1, 2], [2, 1, 0]], np.int32),
        unlabeled_drawn=np.array([3, 1], np.int32),
    )
    helpers = no_helpers()
    helpers.values[0, 1], helpers.present[0, :2] = [1, 0], True
    message = broadcast(
        model_weights=(np.array([[1, 0], [0, 1], [0, 0]], np.float32),),
        helpers=helpers,
        learning_rate=np.float32(0.0),
    )
    return update(message, attr.evolve(data, **changes))


def test_pseudo_label_figures() -> None:
    """Every image lies on a helper's prototype, d = 0 and 1/2 to the other.

    p = 1 / (1 + e^-1/2), sharpened at T = 1/2: 1 / (1 + e^-1) = 0.731. Guesses
    0, 1, 1 against 0, 0, 1 in the first episode, then only the image of class 1.
    """
    report = pseudo_label_case().own.report
    assert (report.pseudo_label_correct, report.pseudo_label_known) == (3.0, 4.0)
    assert report.pseudo_label_count == 4.0
    confidence = 4.0 / (1.0 + np.exp(-1.0))
    np.testing.assert_allclose(report.pseudo_label_confidence, confidence, rtol=1e-6)


def test_idle_episodes_have_no_pseudo_label_figures() -> None:
    report = pseudo_label_case(unlabeled_active=np.array([False, True])).own.report
    assert (report.pseudo_label_correct, report.pseudo_label_known) == (1.0, 1.0)
    assert report.pseudo_label_count == 1.0


def test_unknown_classes_give_no_accuracy_but_a_confidence() -> None:
    report = pseudo_label_case(unlabeled_y_known=np.bool_(False)).own.report
    assert (report.pseudo_label_correct, report.pseudo_label_known) == (0.0, 0.0)
    assert report.pseudo_label_count == 4.0
    assert report.pseudo_label_confidence > 2.0


# --- Prototypes that leave the client ----------------------------------------
def test_shared_prototypes_are_of_all_labeled_images_and_the_new_weights() -> None:
    data = client_data()
    output = update(broadcast(), data)
    embeddings = data.labeled_x.reshape(-1, PIXELS) / 255.0 @ kernel(output)
    expected = embeddings.reshape(CLASSES, 3, SIZE).mean(axis=1)
    np.testing.assert_allclose(output.own.prototypes.values, expected, rtol=1e-4)
    assert np.abs(kernel(output) - start_weights()).max() > 0.01


def test_prototypes_of_more_images_than_one_forward_pass_takes() -> None:
    counts = [130, 140, 30]
    assert sum(counts) > 2 * client.EMBEDDING_BATCH
    assert sum(counts) % client.EMBEDDING_BATCH
    data = client_data(
        labeled_x=random_images(5, 300),
        labeled_y=np.repeat(np.arange(3, dtype=np.int32), counts),
    )
    weights = start_weights()
    model = linear()
    model.set_weights([weights])
    inputs = tf.nest.map_structure(tf.constant, data)
    make = tf.function(client.make_prototypes)
    made = make(model, inputs.labeled_x, inputs.labeled_y, CLASSES)
    expected = numpy_prototypes(
        data.labeled_x.reshape(-1, PIXELS) / 255.0 @ weights, data.labeled_y
    )
    np.testing.assert_allclose(made.values, expected.values, rtol=1e-4, atol=1e-6)


def test_shared_prototypes_use_the_moving_statistics() -> None:
    """With gamma 1, beta 0: c = (x - moving mean) / sqrt(moving variance + 1e-3)."""
    model = normalized()
    data = client_data()
    message = broadcast(
        model_weights=tuple(model.get_weights()),
        helpers=no_helpers(PIXELS),
        learning_rate=np.float32(0.0),
    )
    output = update(message, data, normalized)
    _, _, mean, variance = output.averaged.model_weights
    x = data.labeled_x.reshape(CLASSES, 3, PIXELS).mean(axis=1) / 255.0
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(output.own.prototypes.values, expected, rtol=1e-4)


def test_prototype_of_few_images_is_withheld() -> None:
    """Classes of 4, 3 and 2 images with at least 3 asked for: the last stays home.

    The report's norm is of what was made, the withheld one included.
    """
    data = client_data(labeled_y=np.repeat(np.arange(3, dtype=np.int32), [4, 3, 2]))
    message = broadcast(learning_rate=np.float32(0.0))
    everything = update(message, data)
    output = update(message, data, min_share_samples=3)
    np.testing.assert_array_equal(output.own.prototypes.present, [True, True, False])
    np.testing.assert_array_equal(output.own.prototypes.values[2], [0, 0])
    np.testing.assert_array_equal(
        output.own.prototypes.values[:2], everything.own.prototypes.values[:2]
    )
    assert np.abs(everything.own.prototypes.values[2]).max() > 0
    assert output.own.report.prototype_norm == everything.own.report.prototype_norm


def test_noise_is_seeded_and_of_the_right_scale() -> None:
    """1000 dimensions a class, 2 classes: the deviation is known to 1/sqrt(4000).

    An absent class stays zero; the weights do not see the noise.
    """
    data = client_data(
        labeled_y=np.repeat(np.arange(3, dtype=np.int32), [5, 4, 0]),
        support=np.array([[0, 5]], np.int32),
        query=np.array([[1, 6]], np.int32),
        unlabeled_active=np.array([False]),
    )
    message = broadcast(
        model_weights=(np.ones((PIXELS, 1000), np.float32),), helpers=no_helpers(1000)
    )

    def shared(seed: List[int], stddev: float) -> ClientOutput:
        seeded = attr.evolve(data, noise_seed=np.array(seed, np.int32))
        return update(message, seeded, lambda: linear(1000), noise_stddev=stddev)

    clean, noisy = shared([1, 2], 0.0), shared([1, 2], 0.5)
    noise = (noisy.own.prototypes.values - clean.own.prototypes.values)[:2]
    np.testing.assert_allclose(noise.std(), 0.5, rtol=5 / np.sqrt(4000))
    np.testing.assert_allclose(noise.mean(), 0.0, atol=5 * 0.5 / np.sqrt(2000))
    np.testing.assert_array_equal(noisy.own.prototypes.values[2], np.zeros(1000))
    np.testing.assert_array_equal(kernel(noisy), kernel(clean))
    assert noisy.own.report.prototype_norm == clean.own.report.prototype_norm
    np.testing.assert_array_equal(
        noisy.own.prototypes.values, shared([1, 2], 0.5).own.prototypes.values
    )
    other = shared([1, 3], 0.5).own.prototypes.values[:2]
    assert np.abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.2


def test_prototype_norm_of_a_single_class() -> None:
    """W keeps two pixels; the mean image has (1, 0.5): its norm is sqrt(1.25)."""
    data = client_data(
        labeled_x=images([[1, 1, 0], [1, 0, 1]]),
        labeled_y=np.array([1, 1], np.int32),
        support=np.array([[0]], np.int32),
        query=np.array([[1]], np.int32),
        unlabeled_active=np.array([False]),
    )
    message = broadcast(
        model_weights=(np.array([[1, 0], [0, 1], [0, 0]], np.float32),),
        learning_rate=np.float32(0.0),
    )
    output = update(message, data)
    np.testing.assert_allclose(output.own.report.prototype_norm, np.sqrt(1.25), 1e-6)


# --- Algorithm 2 -------------------------------------------------------------
def global_case(**changes: Any) -> ClientOutput:
    """Queries at (0,0), (1,0), (1,1) of classes 0, 1, 2; nothing trains."""
    data = client_data(
        labeled_x=images([[0, 0, 1], [1, 0, 0], [1, 1, 0]]),
        labeled_y=np.array([0, 1, 2], np.int32),
        support=np.zeros((1, 0), np.int32),
        query=np.array([[0, 1, 2]], np.int32),
        unlabeled_active=np.array([False]),
    )
    helpers = no_helpers()
    helpers.values[0, 0], helpers.values[1, 0] = [2, 0], [-2, 0]
    helpers.values[0, 1], helpers.present[:2] = [0, 2], [[1, 1, 0], [1, 0, 0]]
    message = broadcast(
        model_weights=(np.array([[1, 0], [0, 1], [0, 0]], np.float32),),
        helpers=helpers,
        learning_rate=np.float32(0.0),
    )
    return update(attr.evolve(message, **changes), data, global_prototypes=True)


def test_algorithm_2_takes_the_mean_of_the_helpers() -> None:
    """Means: class 0 ((2,0) + (-2,0)) / 2 = (0,0); class 1 (0,2); class 2 none.

    Query (0,0): d = 0 and 2, p_0 = 1 / (1 + e^-2), right. Query (1,0) of class 1:
    d = 1/2 and 5/2, p_1 = 1 / (1 + e^2), wrong. Class 2's query is left out.
    """
    report = global_case().own.report
    expected = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(2.0))) / 2
    np.testing.assert_allclose(report.loss, expected, rtol=1e-6)
    assert report.accuracy == 0.5


def test_algorithm_2_without_any_helper_has_nothing_to_learn() -> None:
    output = global_case(helpers=no_helpers(), learning_rate=np.float32(1.0))
    assert output.own.report.loss == 0.0
    np.testing.assert_array_equal(kernel(output), [[1, 0], [0, 1], [0, 0]])
    assert output.own.prototypes.present.all()


def test_algorithm_2_with_a_support_set_uses_it() -> None:
    """The first round, which has no helpers, is that of Algorithm 1."""
    own = update(broadcast(), client_data())
    with_option = update(broadcast(), client_data(), global_prototypes=True)
    np.testing.assert_allclose(kernel(with_option), kernel(own), rtol=1e-6)


# --- What goes back ----------------------------------------------------------
def test_weight_is_one_or_the_number_of_images() -> None:
    output = update(broadcast(), client_data())
    assert (output.weight, output.own.report.num_examples) == (1.0, 15)
    weighted = update(broadcast(), client_data(), weight_by_examples=True)
    assert (weighted.weight, weighted.own.report.num_examples) == (15.0, 15)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_optimizer_handed_on_makes_two_updates_one(optimizer: str) -> None:
    """Two episodes at once, or one, its weights and state, and then the other."""
    first, second = client_data(), client_data()
    for name in ("support", "query", "unlabeled"):
        first = attr.evolve(first, **{name: getattr(first, name)[:1]})
        second = attr.evolve(second, **{name: getattr(second, name)[1:]})
    whole = update(broadcast(), client_data(), optimizer=optimizer)
    half = update(broadcast(), first, optimizer=optimizer, pass_on_optimizer=True)
    message = broadcast(
        model_weights=half.averaged.model_weights, optimizer_state=half.handed_on
    )
    rest = update(message, second, optimizer=optimizer)
    np.testing.assert_allclose(kernel(rest), kernel(whole), rtol=1e-6)
    fresh = update(
        attr.evolve(message, optimizer_state=()), second, optimizer=optimizer
    )
    assert np.abs(kernel(fresh) - kernel(whole)).max() > 1e-3


def test_optimizer_state_goes_only_where_it_is_asked_for() -> None:
    """The first RMSprop step from v = 0 leaves 0.1 g^2, in one place or none."""
    data = client_data()
    neither = update(broadcast(), data, optimizer="rmsprop")
    assert (neither.averaged.optimizer_state, neither.handed_on) == ((), ())
    shared = update(broadcast(), data, optimizer="rmsprop", share_optimizer=True)
    passed = update(broadcast(), data, optimizer="rmsprop", pass_on_optimizer=True)
    assert shared.handed_on == passed.averaged.optimizer_state == ()
    (a,), (b,) = shared.averaged.optimizer_state, passed.handed_on
    np.testing.assert_array_equal(a, b)
    assert a.shape == (PIXELS, SIZE)
    assert a.min() > 0
