"""FedMatch: its terms against NumPy, its two parts, its helpers and what is sent."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np
import pytest
import tensorflow as tf
from conftest import assert_same_state, make_batch, tiny_kernels

from data.episodes import Steps
from fl import augment, checkpoints, optimizers
from fl.local import LocalModel, Regularization
from fl.methods import fedmatch
from fl.methods.fedmatch import FedMatchStep, Personal, Rate
from fl.methods.steps import Batch, Client, Message

Make = Callable[..., Any]
RATE = 0.05
OWN = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]], np.float32)
OPINIONS = np.array(
    [
        [[0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.5, 0.3, 0.2]],
        [[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]],
    ],
    np.float32,
)
LOGITS = np.array([[2.0, 0.0, -1.0], [0.1, 0.2, 0.3], [-1.0, 4.0, 0.0]], np.float32)


# --- Terms --------------------------------------------------------------------
def test_majority_wins_and_the_lowest_class_of_several() -> None:
    """Of the choices (0, 1, 1) it is 1, of (1, 1, 2) 1, of (2, 0, 1) 0."""
    votes = fedmatch.vote(tf.constant(OWN), tf.constant(OPINIONS))
    np.testing.assert_array_equal(votes, [1, 1, 0])


def test_without_helpers_the_own_vote_counts() -> None:
    votes = fedmatch.vote(tf.constant(OWN), tf.zeros([0, 3, 3]))
    np.testing.assert_array_equal(votes, [0, 1, 2])


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_divergence_from_the_helpers() -> None:
    """Mean over 2 helpers and 3 images of sum p log(p / q)."""
    expected = np.mean(np.sum(OPINIONS * np.log(OPINIONS / softmax(LOGITS)), -1))
    found = fedmatch.helper_divergence(tf.constant(OPINIONS), tf.constant(LOGITS))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    none = fedmatch.helper_divergence(tf.zeros([0, 3, 3]), tf.constant(LOGITS))
    assert float(none) == 0.0


def test_divergence_moves_the_model_towards_the_helpers() -> None:
    """d/dlogits of the mean over 3 images is (q - mean of p over helpers) / 3."""
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = fedmatch.helper_divergence(tf.constant(OPINIONS), logits)
    expected = (softmax(LOGITS) - OPINIONS.mean(0)) / 3
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, atol=1e-6)


def test_terms_on_the_parts() -> None:
    """sigma (1, 2), psi (-3, 0.5): 1e-4 * 3.5 + 10 * (16 + 2.25)."""
    sigma, psi = [tf.constant([1.0, 2.0])], [tf.Variable([-3.0, 0.5])]
    with tf.GradientTape() as tape:
        value = fedmatch.part_terms(sigma, psi)
    assert float(value) == pytest.approx(182.50035, rel=1e-6)
    gradient = tape.gradient(value, psi)[0]
    np.testing.assert_allclose(gradient, [-1e-4 - 80, 1e-4 - 30], rtol=1e-6)


def test_small_entries_and_small_changes_are_not_sent() -> None:
    """5e-6 counts as zero, a change of 5e-5 or less is left at the server's value."""
    psi = tf.constant([5e-6, -4e-6, 6e-6, 1.0])
    np.testing.assert_array_equal(fedmatch.without_small(psi) != 0, [0, 0, 1, 1])
    old = tf.constant([1.0, 1.0, 1.0, 0.0])
    new = tf.constant([1.0, 1.00004, 0.9999, 6e-5])
    known, counts = fedmatch.sent_parts([new], [old])
    np.testing.assert_array_equal(known[0], np.array([1, 1, 0.9999, 6e-5], np.float32))
    assert [int(count) for count in counts] == [2]


def test_bytes_of_a_sparse_kernel() -> None:
    """A bit for each of 80 entries and 4 bytes for each value; never above plain."""
    assert fedmatch.sparse_bytes(80, 0) == 10
    assert fedmatch.sparse_bytes(80, 3) == 22
    assert fedmatch.sparse_bytes(81, 3) == 23
    assert fedmatch.sparse_bytes(80, 79) == fedmatch.sparse_bytes(80, 80) == 320


def test_rate_falls_after_five_validations_without_gain() -> None:
    """The first of (3, 3, ...) sets the mark; the fifth that is not below it counts."""
    rate = Rate(np.float32(0.9), np.float32(np.inf), np.int32(0))
    seen: List[float] = []
    for loss in [3.0, 3.0, 4.0, 5.0, 3.5, 3.0, 2.0, 2.5]:
        rate = fedmatch.next_rate(rate, tf.constant(loss))
        seen.append(float(rate.learning_rate))
    np.testing.assert_allclose(seen, [0.9] * 5 + [0.3] * 3, rtol=1e-6)
    assert (float(rate.best_loss), int(rate.stale)) == (2.0, 1)


# --- Helpers --------------------------------------------------------------------
def test_helpers_are_the_nearest_by_euclidean_distance() -> None:
    """By squared distances in two dimensions, counted by hand; client 3 is unseen.

    0: (0, 0), 1: (3, 0), 2: (2, 2.1), 4: (0, 1). From 0: 4 is at 1, 2 at sqrt 8.41, 1
    at 3 (by the sum of differences 1 would come before 2).
    """
    outputs = np.array([[0, 0], [3, 0], [2, 2.1], [0, 0], [0, 1]], np.float32)
    seen = np.array([True, True, True, False, True])
    found = fedmatch.nearest(outputs, seen, 2)
    np.testing.assert_array_equal(found, [[4, 2], [2, 0], [4, 1], [-1, -1], [0, 2]])


def test_no_client_helps_itself_even_among_equals() -> None:
    found = fedmatch.nearest(np.ones([6, 3], np.float32), np.ones(6, bool), 2)
    for number, row in enumerate(found):
        assert number not in row
        assert len(set(row)) == 2
        assert -1 not in row


def test_fewer_others_than_wanted() -> None:
    outputs = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], np.float32)
    alone = fedmatch.nearest(outputs, np.array([False, True, False]), 2)
    np.testing.assert_array_equal(alone, -np.ones([3, 2]))
    pair = fedmatch.nearest(outputs, np.array([True, True, False]), 2)
    np.testing.assert_array_equal(pair, [[1, -1], [0, -1], [-1, -1]])


# --- A step, outside TFF --------------------------------------------------------
def make_step(threshold: float) -> FedMatchStep:
    local = LocalModel(
        tiny_kernels, optimizers.make_optimizer("sgd", 0.0), Regularization()
    )
    image = fedmatch.random_image(3, (8, 8, 1))
    return FedMatchStep(local, tiny_kernels, threshold, weight=0.7, image=image)


def random_weights(seed: int, scale: float = 0.3) -> List[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [
        rng.normal(0, scale, w.shape).astype(np.float32)
        for w in tiny_kernels().get_weights()
    ]


def make_message(sigma: Sequence[np.ndarray], psi: Sequence[np.ndarray]) -> Message:
    return Message(
        model_weights=(*sigma, *psi),
        optimizer_state=(),
        learning_rate=np.float32(99),
        progress=np.float32(0),
    )


def make_client(helpers: Sequence[List[np.ndarray]]) -> Client:
    rng = np.random.RandomState(0)
    nothing = np.zeros([0], np.int32)
    rate = Rate(np.float32(RATE), np.float32(np.inf), np.int32(0))
    stacked = tuple(
        np.array([psi[i] for psi in helpers], np.float32).reshape(-1, *w.shape)
        for i, w in enumerate(random_weights(0))
    )
    return Client(
        labeled_x=rng.randint(0, 256, [4, 8, 8, 1]).astype(np.uint8),
        labeled_y=np.array([1, 3, 5, 7], np.int32),
        unlabeled_x=np.zeros([0, 8, 8, 1], np.uint8),
        unlabeled_y=nothing,
        unlabeled_y_known=np.bool_(True),
        steps=Steps(nothing, nothing, nothing, nothing),
        seed=np.zeros(2, np.int32),
        slot=np.int32(0),
        optimizer_state=(),
        personal=Personal(rate=rate, helpers=stacked),
    )


def finished(step: FedMatchStep, message: Message, client: Client) -> Any:
    sigma, psi = fedmatch.parts(step.finish(message, client).weights)
    return [s.numpy() for s in sigma], [p.numpy() for p in psi]


def gradients_at(
    weights: Sequence[np.ndarray], loss: Callable[[Any], tf.Tensor]
) -> List[np.ndarray]:
    model = tiny_kernels()
    model.set_weights(list(weights))
    with tf.GradientTape() as tape:
        value = loss(model)
    return [g.numpy() for g in tape.gradient(value, model.trainable_variables)]


def sum_of(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Any:
    return [a + b for a, b in zip(first, second)]


def labeled_gradients(weights: Sequence[np.ndarray], batch: Batch) -> List[np.ndarray]:
    return gradients_at(
        weights,
        lambda model: (
            10.0
            * tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    batch.labeled_y, model(batch.labeled_x)
                )
            )
        ),
    )


def assert_close(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Up to what is not sent."""
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, atol=fedmatch.SENT_ABOVE + 1e-6)


def test_labelled_images_train_sigma_alone() -> None:
    """No image is sure: sigma takes 10 CE at sigma + psi, psi only its own terms."""
    sigma, psi = random_weights(1), random_weights(2)
    step, client, batch = make_step(threshold=1.1), make_client([]), make_batch()
    message = make_message(sigma, psi)
    step.begin(message, client)
    _, figures = step.take(message, batch)
    moved_sigma, moved_psi = finished(step, message, client)
    slopes = labeled_gradients(sum_of(sigma, psi), batch)
    after = [s - RATE * g for s, g in zip(sigma, slopes)]
    assert_close(moved_sigma, after)
    pulls = [1e-4 * np.sign(p) + 20 * (p - s) for p, s in zip(psi, after)]
    assert_close(moved_psi, [p - RATE * g for p, g in zip(psi, pulls)])
    assert float(figures.pseudo_label_used) == 0.0
    assert float(figures.unlabeled_loss) == 0.0


def unlabeled_gradients(
    sigma: List[np.ndarray], psi: List[np.ndarray], helpers: Any, batch: Batch
) -> List[np.ndarray]:
    """Of 0.7 (KL + CE) at sigma + psi, with helpers sigma + their psi."""
    model = tiny_kernels()
    opinions = []
    for helper in helpers:
        model.set_weights(sum_of(sigma, helper))
        opinions.append(tf.nn.softmax(model(batch.unlabeled_x)))
    model.set_weights(sum_of(sigma, psi))
    own = tf.nn.softmax(model(batch.unlabeled_x)).numpy()
    everyone = np.stack([own, *opinions]).argmax(-1)  # [1 + h, B]
    votes = [np.bincount(column, minlength=10).argmax() for column in everyone.T]
    strong = augment.strong_fedmatch(batch.unlabeled_x, batch.seed)

    def loss(model: Any) -> tf.Tensor:
        log_probs = tf.nn.log_softmax(model(batch.unlabeled_x))
        terms = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(votes, model(strong))
        )
        for p in opinions:
            gap = tf.reduce_sum(p * (tf.math.log(p) - log_probs), -1)
            terms += tf.reduce_mean(gap) / len(opinions)
        return 0.7 * terms

    return gradients_at(sum_of(sigma, psi), loss)


@pytest.mark.parametrize("num_helpers", [0, 1, 2])
def test_unlabelled_images_train_psi_alone(num_helpers: int) -> None:
    """Every image is sure: psi takes both terms as well, sigma the same as before."""
    sigma, psi = random_weights(1), random_weights(2)
    helpers = [random_weights(3 + i) for i in range(num_helpers)]
    step, client, batch = make_step(0.0), make_client(helpers), make_batch()
    message = make_message(sigma, psi)
    step.begin(message, client)
    _, figures = step.take(message, batch)
    moved_sigma, moved_psi = finished(step, message, client)
    slopes = labeled_gradients(sum_of(sigma, psi), batch)
    after = [s - RATE * g for s, g in zip(sigma, slopes)]
    assert_close(moved_sigma, after)
    learned = unlabeled_gradients(after, psi, helpers, batch)
    pulls = [1e-4 * np.sign(p) + 20 * (p - s) for p, s in zip(psi, after)]
    expected = [p - RATE * (g + h) for p, g, h in zip(psi, learned, pulls)]
    assert_close(moved_psi, expected)
    assert max(np.abs(RATE * g).max() for g in learned) > 100 * fedmatch.SENT_ABOVE
    assert float(figures.pseudo_label_used) == 5.0


def test_output_tells_models_apart_and_repeats() -> None:
    outputs = []
    for seed in (2, 2, 5):
        message = make_message(random_weights(1), random_weights(seed))
        step, client = make_step(1.1), make_client([])
        step.begin(message, client)
        outputs.append(step.finish(message, client).returned.output.numpy())
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-3
    assert outputs[0].sum() == pytest.approx(1, rel=1e-5)


# --- Rounds in TFF ----------------------------------------------------------------
FEDMATCH = {
    "method": "fedmatch",
    "helper_cnt": 2,
    "helper_interval": 2,
    "local_episode": 1,
    "opt_lr": 1e-3,
}


def run_rounds(method: Any, count: int) -> List[Any]:
    """Outcomes of so many rounds; what clients keep goes where they will find it."""
    state, outcomes = method.initial_state(), []
    for _ in range(count):
        outcome = method.run_round(state)
        for client, arrays in outcome.kept.items():
            method.client_states.put(client, outcome.state.round_num, arrays)
        outcomes.append(outcome)
        state = outcome.state
    return outcomes


def test_psi_starts_at_a_fifth_of_sigma(make_small: Make) -> None:
    method = make_small(**FEDMATCH)
    state = method.initial_state()
    sigma, psi = fedmatch.parts(state.model_weights)
    for s, p, w in zip(sigma, psi, method.classifier_weights(state)):
        np.testing.assert_allclose(p, 0.2 * s, rtol=1e-6)
        np.testing.assert_allclose(w, 1.2 * s, rtol=1e-6)


def test_helpers_come_with_the_refresh_and_stay(make_small: Make) -> None:
    """All six clients train each round; round 3 is the first with helpers."""
    method = make_small(**FEDMATCH, num_active_client=6)
    outcomes = run_rounds(method, 3)
    states = [method.initial_state()] + [o.state for o in outcomes]
    counts = [
        [len(method.personal(state, n).helpers[0]) for n in range(6)]
        for state in states
    ]
    assert counts == [[0] * 6, [0] * 6, [2] * 6, [2] * 6]
    chosen = states[2].shared.chosen
    np.testing.assert_array_equal(
        chosen, fedmatch.nearest(states[2].shared.outputs, np.ones(6, bool), 2)
    )
    assert not states[2].shared.handed_out.any()
    assert states[3].shared.handed_out.all()
    # Kept: in round 4 the same psi, though the helpers have trained since.
    first, second = (method.personal(state, 0).helpers[0] for state in states[2:])
    np.testing.assert_array_equal(first, second)
    kept = outcomes[1].kept[int(chosen[0, 0])]
    np.testing.assert_array_equal(first[0], kept["own/psi/000"])


def test_published_handout_is_for_one_round(make_small: Make) -> None:
    method = make_small(**FEDMATCH, num_active_client=6, helper_handout="refresh")
    outcomes = run_rounds(method, 3)
    after_two, after_three = outcomes[1].state, outcomes[2].state
    assert len(method.personal(after_two, 0).helpers[0]) == 2
    assert len(method.personal(after_three, 0).helpers[0]) == 0


def test_bytes_count_what_is_sent(make_small: Make) -> None:
    """Round 1: both parts to six strangers. Round 3: helpers; round 4: none again."""
    method = make_small(**FEDMATCH, num_active_client=6)
    outcomes = run_rounds(method, 4)
    plain = sum(4 * w.size for w in method.setup.initial_weights)
    down = [outcome.bytes_down for outcome in outcomes]
    assert down[0] == 6 * 2 * plain
    assert down[1] <= 6 * 2 * plain
    helper_bytes = 6 * 2 * plain
    assert down[3] + 0.5 * helper_bytes < down[2] <= 4 * 6 * plain
    for outcome in outcomes:
        assert 0 < outcome.bytes_up < 6 * 2 * plain + 1000


def test_unchanged_entries_are_not_counted(make_small: Make) -> None:
    """At a rate of 1e-9 nothing changes by 5e-5: only bits and the report go up.

    The mean of two equal values is exact, so that nothing of psi goes down again.
    """
    given = {"opt_lr": 1e-9, "helper_cnt": 1, "num_client": 2, "num_active_client": 2}
    method = make_small(**{**FEDMATCH, **given})
    outcome = run_rounds(method, 1)[0]
    sizes = [w.size for w in method.setup.initial_weights]
    bits = 2 * sum((size + 7) // 8 for size in sizes)
    report = sum(np.asarray(v).nbytes for v in outcome.report.values())
    assert outcome.bytes_up == 2 * bits + report
    assert_same_state(outcome.state.model_weights, method.initial_state().model_weights)
    second = method.run_round(outcome.state)
    assert second.bytes_down == 2 * sum(4 * size for size in sizes) + bits


def test_server_takes_the_plain_mean(make_small: Make) -> None:
    """Of what each client kept as the server's knowledge of its psi."""
    method = make_small(**FEDMATCH)
    outcome = run_rounds(method, 1)[0]
    _, psi = fedmatch.parts(outcome.state.model_weights)
    for i, mean in enumerate(psi):
        kept = [arrays[f"own/psi/{i:03d}"] for arrays in outcome.kept.values()]
        assert len(kept) == 3
        np.testing.assert_allclose(mean, np.mean(kept, axis=0), atol=1e-6)


def test_rates_are_the_clients_own(make_small: Make) -> None:
    """All six train; one of them is at its fifth round without gain and lowers its own.

    A loss below 0 cannot be reached, so 0 as the best so far is never beaten.
    """
    method = make_small(**FEDMATCH, num_active_client=6)
    outcome = run_rounds(method, 1)[0]
    arrays = dict(outcome.kept[3])
    arrays["own/rate/learning_rate"] = np.float32(0.003)
    arrays["own/rate/stale"] = np.int32(4)
    arrays["own/rate/best_loss"] = np.float32(0)
    method.client_states.put(3, 1, arrays)
    kept = method.run_round(outcome.state).kept
    rates = {n: float(kept[n]["own/rate/learning_rate"]) for n in kept}
    assert rates[3] == pytest.approx(0.001)
    assert all(rates[n] == pytest.approx(1e-3) for n in range(6))
    plain = method.run_round(_restored(method, outcome)).kept
    assert float(plain[3]["own/rate/learning_rate"]) == pytest.approx(1e-3)
    # It trained at three times the rate of before.
    assert not np.array_equal(kept[3]["own/psi/000"], plain[3]["own/psi/000"])
    np.testing.assert_array_equal(kept[2]["own/psi/000"], plain[2]["own/psi/000"])


def _restored(method: Any, outcome: Any) -> Any:
    method.client_states.put(3, 1, outcome.kept[3])
    return outcome.state


def test_figures_of_pseudo_labels(make_small: Make) -> None:
    method = make_small(**FEDMATCH, confidence_threshold=0.0)
    report = method.run_round(method.initial_state()).report
    np.testing.assert_array_equal(report["pseudo_label_count"], [50, 50, 50])
    np.testing.assert_array_equal(report["pseudo_label_used"], [50, 50, 50])
    share = report["pseudo_label_confidence"] / 50
    assert np.all((share > 0.1) & (share < 1.0))


def test_a_resumed_run_is_the_run_uninterrupted(run_small: Any) -> None:
    """Stopped after round 3, with helpers of round 2 in use, and gone on with."""
    given = {**FEDMATCH, "eval_every": 1, "keep_checkpoints": 1}
    whole = run_small("whole", num_round=5, **given)
    run_small("parts", num_round=3, **given)
    parts = run_small("parts", num_round=5, resume=True, **given)
    with np.load(whole.weights_file) as left, np.load(parts.weights_file) as right:
        for name in left.files:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    first, second = (
        checkpoints.load(run.checkpoints / "round_000005.npz").arrays
        for run in (whole, parts)
    )
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
