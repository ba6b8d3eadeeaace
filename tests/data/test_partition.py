"""Who gets which images: exact counts, disjoint parts, orders and refusals."""

from __future__ import annotations

import random
import time
from typing import Any

import attr
import numpy as np
import pytest

from data.partition import ClientIndices, FederatedData, PartitionSpec, partition
from data.sources import DATASETS, Cut, DataError, RawDataset

PER_CLASS = 6000


def _raw(
    name: str = "cifar10",
    per_class: int = PER_CLASS,
    num_test: int = 10000,
    num_unlabeled: int = 0,
) -> RawDataset:
    """Returns a dataset whose images are one pixel, in a mixed class order."""
    classes = DATASETS[name].num_classes
    labels = np.tile(np.arange(classes, dtype=np.int32), per_class)
    labels = np.random.default_rng(5).permutation(labels)
    pixels = np.zeros((len(labels), 1, 1, 1), np.uint8)
    split = len(labels) - num_test
    unlabeled = np.zeros((num_unlabeled, 1, 1, 1), np.uint8)
    return RawDataset(
        name,
        classes,
        pixels[:split],
        labels[:split],
        pixels[split:],
        labels[split:],
        x_unlabeled=unlabeled if num_unlabeled else None,
    )


def _spec(**changes: Any) -> PartitionSpec:
    plain = PartitionSpec("cifar10", num_client=100, num_label=5, num_unlabel=490)
    return attr.evolve(plain, **changes)


def _all(data: FederatedData, field: str) -> np.ndarray:
    return np.concatenate([getattr(client, field) for client in data.clients])


def _class_counts(data: FederatedData, indices: np.ndarray) -> np.ndarray:
    return np.bincount(data.labels[indices], minlength=data.num_classes)


def _class_lists(raw: RawDataset, seed: int) -> list[np.ndarray]:
    """Builds the class lists as described: permute each by the seed, join, sort out."""
    np_state = np.random.RandomState(seed)
    train = np_state.permutation(len(raw.y_train))
    np_state = np.random.RandomState(seed)
    test = np_state.permutation(len(raw.y_test)) + len(raw.y_train)
    order = np.concatenate([train, test])
    labels = np.concatenate([raw.y_train, raw.y_test])[order]
    return [order[labels == k] for k in range(raw.num_classes)]


def _assert_class_major(data: FederatedData, client: ClientIndices) -> None:
    for indices in (client.labeled, client.unlabeled):
        assert (np.diff(data.labels[indices]) >= 0).all()


def test_the_permutation_is_that_of_the_seeded_global_stream() -> None:
    """Class 0 is what the permutation puts first among indices 0..39."""
    raw = RawDataset(
        "digits",
        10,
        np.zeros((400, 1, 1, 1), np.uint8),
        np.repeat(np.arange(10, dtype=np.int32), 40),
        np.zeros((0, 1, 1, 1), np.uint8),
        np.zeros(0, np.int32),
    )
    data = partition(raw, PartitionSpec("digits", 1, 2, 0, split_seed=101))
    order = np.random.RandomState(101).permutation(400)
    first_two_of_class_0 = order[order < 40][:2]
    np.testing.assert_array_equal(data.clients[0].labeled[:2], first_two_of_class_0)


def test_iid_release_is_dealt_in_client_order_and_disjoint() -> None:
    raw = _raw()
    data = partition(raw, _spec())
    lists = _class_lists(raw, 1001)
    client = data.clients[3]
    np.testing.assert_array_equal(
        client.labeled, np.concatenate([row[15:20] for row in lists])
    )
    start = 500 + 3 * 49
    np.testing.assert_array_equal(
        client.unlabeled, np.concatenate([row[start : start + 49] for row in lists])
    )
    parts = [_all(data, "labeled"), _all(data, "unlabeled")]
    parts += [data.validation.ravel(), data.test.ravel()]
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything) == 60000
    assert data.notes == ()


def test_validation_and_test_follow_the_train_part() -> None:
    raw = _raw()
    data = partition(raw, _spec())
    for k, row in enumerate(_class_lists(raw, 1001)):
        np.testing.assert_array_equal(data.validation[k], row[5400:5700])
        np.testing.assert_array_equal(data.test[k], row[5700:6000])
    assert data.validation.dtype == data.test.dtype == np.int64


def test_head_shuffles_the_clients_twice_and_deals_unlabeled_from_the_start() -> None:
    raw = _raw()
    changes = {"unlabeled_overlap": True, "deal_order": "shuffled", "split_seed": 101}
    data = partition(raw, _spec(**changes))
    lists = _class_lists(raw, 101)
    stream, clients = random.Random(101), list(range(100))
    stream.shuffle(clients)
    labeled_turn = clients.index(8)
    stream.shuffle(clients)
    unlabeled_turn = clients.index(8)
    assert labeled_turn != unlabeled_turn
    for field, turn, size in (
        ("labeled", labeled_turn, 5),
        ("unlabeled", unlabeled_turn, 49),
    ):
        expected = [row[turn * size : (turn + 1) * size] for row in lists]
        np.testing.assert_array_equal(
            getattr(data.clients[8], field), np.concatenate(expected)
        )
    assert set(_all(data, "labeled")) <= set(_all(data, "unlabeled"))


def test_non_iid_skews_the_unlabeled_images_only() -> None:
    data = partition(_raw(), _spec(non_iid=True))
    client = data.clients[12]
    np.testing.assert_array_equal(_class_counts(data, client.labeled), np.full(10, 5))
    np.testing.assert_array_equal(
        _class_counts(data, client.unlabeled),
        np.roll([244, 73, 15, 15, 15, 10, 15, 15, 15, 73], 2),
    )
    _assert_class_major(data, client)
    everything = np.concatenate([_all(data, "labeled"), _all(data, "unlabeled")])
    assert len(np.unique(everything)) == 100 * 540


def test_head_counts_leave_one_image_out_and_say_so() -> None:
    data = partition(_raw(), _spec(non_iid=True, class_counts="head"))
    assert {len(client.unlabeled) for client in data.clients} == {489}
    assert len(data.notes) == 1
    assert "489 unlabelled images" in data.notes[0]


@pytest.mark.parametrize("non_iid", [False, True])
def test_extreme_skews_labeled_and_unlabeled(non_iid: bool) -> None:
    data = partition(_raw(), _spec(non_iid=non_iid, extreme_non_iid=True))
    client = data.clients[9]
    np.testing.assert_array_equal(
        _class_counts(data, client.labeled), np.roll([23, 5, 5, 5, 3, 3, 3, 3, 0, 0], 9)
    )
    np.testing.assert_array_equal(
        _class_counts(data, client.unlabeled),
        np.roll([243, 49, 49, 49, 25, 25, 25, 25, 0, 0], 9),
    )
    _assert_class_major(data, client)


def test_supervised_takes_in_client_order_whatever_the_deal_order() -> None:
    raw = _raw()
    data = partition(raw, _spec(supervised=True, deal_order="shuffled"))
    lists = _class_lists(raw, 1001)
    expected = np.concatenate([row[10:15] for row in lists])
    np.testing.assert_array_equal(data.clients[2].labeled, expected)
    assert len(_all(data, "unlabeled")) == 0
    assert data.notes == ()


@pytest.mark.parametrize(
    ("num_label", "row"),
    [
        (54, [249, 78, 20, 20, 20, 15, 20, 20, 20, 78]),
        (5, [25, 7, 1, 1, 1, 1, 1, 1, 1, 7]),
    ],
)
def test_supervised_non_iid_skews_the_labeled_images(
    num_label: int, row: list[int]
) -> None:
    spec = _spec(supervised=True, non_iid=True, num_label=num_label)
    data = partition(_raw(), spec)
    np.testing.assert_array_equal(_class_counts(data, data.clients[0].labeled), row)
    taken = _all(data, "labeled")
    assert len(np.unique(taken)) == len(taken) == 100 * sum(row)


def test_nothing_is_copied_but_the_join() -> None:
    raw = _raw()
    data = partition(raw, _spec())
    assert data.unlabeled_images is data.images
    assert data.unlabeled_labels is data.labels
    np.testing.assert_array_equal(
        data.labels, np.concatenate([raw.y_train, raw.y_test])
    )
    alone = _raw(num_test=0)
    assert partition(alone, _spec()).images is alone.x_train


def test_the_seed_decides_and_the_global_state_does_not() -> None:
    raw = _raw()
    np.random.seed(1)
    first = partition(raw, _spec(deal_order="shuffled"))
    before = np.random.get_state(legacy=True)[1].tolist(), random.getstate()
    again = partition(raw, _spec(deal_order="shuffled"))
    after = np.random.get_state(legacy=True)[1].tolist(), random.getstate()
    other = partition(raw, _spec(deal_order="shuffled", split_seed=1002))
    assert before == after
    np.testing.assert_array_equal(_all(first, "labeled"), _all(again, "labeled"))
    np.testing.assert_array_equal(first.test, again.test)
    assert (first.test != other.test).any()


def test_an_uneven_number_of_unlabeled_images_is_said() -> None:
    data = partition(_raw(), _spec(num_unlabel=487))
    assert {len(client.unlabeled) for client in data.clients} == {480}
    assert data.notes[0].startswith("--num_unlabel=487:")


def test_cifar100_non_iid_fits_ten_clients_and_refuses_eleven() -> None:
    """Ten clients take 10 * 5 + 490 = 540 of each class: all there is."""
    spec = PartitionSpec("cifar100", 10, 5, 4900, non_iid=True)
    data = partition(_raw("cifar100", per_class=600), spec)
    assert {len(client.unlabeled) for client in data.clients} == {4900}
    assert data.test.shape == (100, 30)
    with pytest.raises(DataError, match="--num_client=10 is the most that fits"):
        partition(_raw("cifar100", per_class=600), attr.evolve(spec, num_client=20))


def test_more_clients_than_the_train_part_holds_are_refused() -> None:
    """54 images of a class per client; 5400 / 54 = 100 clients."""
    with pytest.raises(DataError) as caught:
        partition(_raw(), _spec(num_client=101))
    assert str(caught.value) == (
        "--num_client=101: the clients need 5454 images of a class, cifar10 has 5400 "
        "to deal; --num_client=100 is the most that fits"
    )


def test_a_small_dataset_shrinks_validation_and_test_alike() -> None:
    """Ten clients need 540 of a class; of 620 the rest, 80, is halved."""
    raw = _raw("svhn", per_class=620, num_test=6200)
    data = partition(raw, PartitionSpec("svhn", 10, 5, 490))
    assert {(len(c.labeled), len(c.unlabeled)) for c in data.clients} == {(50, 490)}
    assert data.validation.shape == data.test.shape == (10, 40)
    for k in range(10):
        assert (data.labels[data.validation[k]] == k).all()
    used = [_all(data, "labeled"), _all(data, "unlabeled")]
    used += [data.validation.ravel(), data.test.ravel()]
    assert len(np.unique(np.concatenate(used))) == 6200
    assert len(data.notes) == 1
    assert "validation has 40 and test 40" in data.notes[0]


def test_the_smallest_class_decides_and_the_cut_is_the_limit() -> None:
    """Class 0 has 5799 images, one fewer than the cut: 200 each, not (5799 - 54) / 2.

    With 599 images and 540 needed, 59 // 2 = 29 each.
    """
    raw = _raw("svhn", per_class=5800, num_test=0)
    drop = np.flatnonzero(raw.y_train == 0)[0]
    keep = np.arange(58000) != drop
    smaller = attr.evolve(raw, x_train=raw.x_train[keep], y_train=raw.y_train[keep])
    data = partition(smaller, PartitionSpec("svhn", 1, 5, 490))
    assert data.validation.shape == data.test.shape == (10, 200)
    assert "smallest class has 5799" in data.notes[0]
    raw = _raw("svhn", per_class=599, num_test=0)
    data = partition(raw, PartitionSpec("svhn", 10, 5, 490))
    assert data.validation.shape == data.test.shape == (10, 29)


def test_overlap_needs_only_the_larger_of_both() -> None:
    """With overlap ten clients need max(50, 490) = 490 of a class, else 540."""
    raw = _raw("svhn", per_class=500, num_test=0)
    spec = PartitionSpec("svhn", 10, 5, 490, unlabeled_overlap=True)
    assert partition(raw, spec).test.shape == (10, 5)
    with pytest.raises(DataError, match="--num_client=9 is the most that fits"):
        partition(raw, attr.evolve(spec, unlabeled_overlap=False))


def test_one_image_each_must_remain_for_validation_and_test() -> None:
    spec = PartitionSpec("svhn", 10, 5, 490)
    data = partition(_raw("svhn", per_class=542, num_test=0), spec)
    assert data.validation.shape == data.test.shape == (10, 1)
    with pytest.raises(DataError, match="--num_client=9 is the most that fits"):
        partition(_raw("svhn", per_class=541, num_test=0), spec)


def test_not_one_client_fits() -> None:
    with pytest.raises(DataError, match="not one client fits: lower --num_label"):
        partition(
            _raw("svhn", per_class=50, num_test=0), PartitionSpec("svhn", 1, 50, 0)
        )


def test_a_class_without_images_is_refused_not_crashed_on() -> None:
    raw = _raw("digits", per_class=180, num_test=0)
    keep = raw.y_train != 9
    raw = attr.evolve(raw, x_train=raw.x_train[keep], y_train=raw.y_train[keep])
    with pytest.raises(DataError, match="not one client fits"):
        partition(raw, PartitionSpec("digits", 2, 1, 10))


def _stl(num_unlabeled: int = 2000) -> RawDataset:
    return _raw("stl10", per_class=1300, num_test=8000, num_unlabeled=num_unlabeled)


def test_stl10_unlabeled_images_are_slices_of_their_own_permutation() -> None:
    raw = _stl()
    spec = PartitionSpec("stl10", 20, 10, 98, deal_order="shuffled")
    data = partition(raw, spec)
    order = np.random.RandomState(1001).permutation(2000)
    for i, client in enumerate(data.clients):
        np.testing.assert_array_equal(client.unlabeled, order[i * 98 : (i + 1) * 98])
    expected = [row[20:30] for row in _class_lists(raw, 1001)]
    np.testing.assert_array_equal(data.clients[2].labeled, np.concatenate(expected))
    assert data.unlabeled_images is raw.x_unlabeled
    assert data.unlabeled_labels is None
    assert data.test.shape == (10, 150)
    assert data.notes == ()


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"non_iid": True}, ["--non_iid"]),
        ({"extreme_non_iid": True}, ["--extreme_non_iid", "--extreme_non_iid"]),
        ({"dirichlet_alpha": 0.5}, ["--dirichlet_alpha"]),
    ],
)
def test_stl10_says_what_has_no_meaning(changes: Any, flags: list[str]) -> None:
    data = partition(_stl(), PartitionSpec("stl10", 20, 10, 98, **changes))
    assert [note.split()[0].rstrip(":") for note in data.notes] == flags
    assert {len(client.labeled) for client in data.clients} == {100}
    assert {len(client.unlabeled) for client in data.clients} == {98}


def test_stl10_refusal_names_the_clients_that_both_parts_allow() -> None:
    """1000 / 10 = 100 clients by label, but 2000 // 980 = 2 by unlabelled images."""
    for num_client in (100, 101):
        with pytest.raises(DataError, match="--num_client=2 is the most that fits"):
            partition(_stl(), PartitionSpec("stl10", num_client, 10, 980))


def test_stl10_supervised_uses_no_unlabeled_image() -> None:
    spec = PartitionSpec("stl10", 100, 10, 980, supervised=True, non_iid=True)
    data = partition(_stl(), spec)
    assert len(_all(data, "unlabeled")) == 0
    row = [50, 15, 3, 3, 3, 2, 3, 3, 3, 15]
    np.testing.assert_array_equal(_class_counts(data, data.clients[0].labeled), row)


@pytest.mark.parametrize("overlap", [False, True])
def test_dirichlet_sizes_are_exact_and_clients_disjoint(overlap: bool) -> None:
    """100 clients use all 54,000 images, so that classes must run out on the way."""
    spec = _spec(dirichlet_alpha=0.1, unlabeled_overlap=overlap)
    data = partition(_raw(), spec)
    assert {len(client.labeled) for client in data.clients} == {50}
    assert {len(client.unlabeled) for client in data.clients} == {490}
    for field in ("labeled", "unlabeled"):
        taken = _all(data, field)
        assert len(np.unique(taken)) == len(taken)
    both = np.intersect1d(_all(data, "labeled"), _all(data, "unlabeled"))
    assert bool(len(both)) == overlap
    _assert_class_major(data, data.clients[0])


def test_dirichlet_proportions_are_shared_by_labeled_and_unlabeled() -> None:
    """With room to spare both follow the same draw, up to one image of rounding."""
    data = partition(_raw(), _spec(num_client=5, num_label=49, dirichlet_alpha=0.5))
    for client in data.clients:
        labeled = _class_counts(data, client.labeled)
        np.testing.assert_array_equal(labeled, _class_counts(data, client.unlabeled))


def test_dirichlet_alpha_sets_the_skew() -> None:
    """Large alpha: every share is 1/10. Small alpha: one class has nearly all."""
    even = partition(_raw(), _spec(num_client=3, dirichlet_alpha=1e7))
    one = partition(_raw(), _spec(num_client=3, dirichlet_alpha=1e-3))
    for client in even.clients:
        assert np.ptp(_class_counts(even, client.unlabeled)) <= 1
    for client in one.clients:
        assert _class_counts(one, client.unlabeled).max() >= 480


def test_dirichlet_draws_follow_the_split_seed() -> None:
    def counts(seed: int) -> np.ndarray:
        spec = _spec(num_client=4, dirichlet_alpha=0.3, split_seed=seed)
        data = partition(_raw(), spec)
        return _class_counts(data, data.clients[1].unlabeled)

    np.testing.assert_array_equal(counts(7), counts(7))
    assert (counts(7) != counts(8)).any()


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_ten_thousand_clients_take_seconds(
    monkeypatch: pytest.MonkeyPatch, alpha: float
) -> None:
    """No table of ours is that large, so the registry gets a larger dataset."""
    entry = attr.evolve(DATASETS["cifar10"], cut=Cut(60000, 100, 100))
    monkeypatch.setitem(DATASETS, "large", entry)
    raw = _raw("large", per_class=60200, num_test=0)
    spec = PartitionSpec(
        "large", 10000, 1, 50, deal_order="shuffled", dirichlet_alpha=alpha
    )
    start = time.perf_counter()
    data = partition(raw, spec)
    assert time.perf_counter() - start < 5
    assert {(len(c.labeled), len(c.unlabeled)) for c in data.clients} == {(10, 50)}
    everything = np.concatenate([_all(data, "labeled"), _all(data, "unlabeled")])
    assert len(np.unique(everything)) == 600000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_client": 0}, "--num_client=0: at least 1"),
        ({"num_label": 0}, "--num_label=0: at least 1"),
        ({"num_unlabel": -1}, "--num_unlabel=-1: at least 0"),
        ({"split_seed": -1}, "--split_seed=-1: at least 0"),
        ({"split_seed": 2**32}, "--split_seed=4294967296: at most 4294967295"),
        ({"deal_order": "random"}, "--deal_order=random: client or shuffled"),
        ({"class_counts": "paper"}, "--class_counts=paper: release or head"),
        ({"dirichlet_alpha": -1.0}, "--dirichlet_alpha=-1.0: a positive number"),
        ({"dirichlet_alpha": float("nan")}, "--dirichlet_alpha=nan: a positive"),
        (
            {"dirichlet_alpha": 0.1, "non_iid": True},
            "--dirichlet_alpha=0.1 and --non_iid exclude",
        ),
        (
            {"dirichlet_alpha": 0.1, "extreme_non_iid": True},
            "--dirichlet_alpha=0.1 and --extreme_non_iid exclude",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(changes: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        _spec(**changes)
    assert "\n" not in str(caught.value)


def test_a_specification_for_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="svhn was to be partitioned, got cifar10"):
        partition(_raw(), _spec(dataset="svhn"))


def test_digest_names_images_labels_and_who_has_them() -> None:
    first, again = (partition(_raw(), _spec()) for _ in range(2))
    assert first.digest() == again.digest()
    changed = [
        attr.evolve(first, images=first.images + 1),
        attr.evolve(first, labels=(first.labels + 1) % 10),
        attr.evolve(first, clients=first.clients[::-1]),
        attr.evolve(first, test=first.validation, validation=first.test),
    ]
    assert len({data.digest() for data in (first, *changed)}) == 5
