"""Deals a dataset out to the clients, as indices.

1. Train and test are permuted, each by the split seed, and joined.
2. Each class's images, in that order, are cut into train, validation and test.
3. Of the train part of each class, every client takes its labelled images, then
   every client its unlabelled ones.

Kim et al. 2022 describe the sizes; orders and counts follow the authors' program,
so that the same seed gives the same images. The images themselves are joined once
and never moved: every part is an array of indices.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Optional

import attr
import numpy as np

from data import counts as counts_lib
from data.sources import Cut, DataError, RawDataset, dataset_info

_LARGEST_SEED = 2**32 - 1
# Keeps the Dirichlet draws apart from other uses of the same seed.
_DIRICHLET_STREAM = 1


@attr.frozen
class PartitionSpec:
    """What is dealt to whom.

    Attributes:
        dataset: The name of the dataset.
        num_client: The number of clients.
        num_label: Labelled images of each class per client.
        num_unlabel: Unlabelled images per client.
        non_iid: Whether the unlabelled images are skewed by the client's type.
        extreme_non_iid: Whether labelled and unlabelled images are skewed so that
            every client lacks two classes of ten; implies `non_iid`.
        supervised: Whether clients have labelled images only. These are then the
            skewed ones.
        split_seed: The seed of the permutations and of the dealing order.
        unlabeled_overlap: Whether unlabelled images are dealt from the same images
            as the labelled ones; otherwise from those that are left.
        deal_order: "client": clients take in the order of their numbers;
            "shuffled": in an order drawn for labelled and again for unlabelled.
        class_counts: "release" or "head": the edition of the authors' program whose
            skewed counts are used.
        dirichlet_alpha: The concentration of each client's class proportions; 0
            turns it off.
    """

    dataset: str
    num_client: int
    num_label: int
    num_unlabel: int
    non_iid: bool = False
    extreme_non_iid: bool = False
    supervised: bool = False
    split_seed: int = 1001
    unlabeled_overlap: bool = False
    deal_order: str = "client"
    class_counts: str = "release"
    dirichlet_alpha: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Refuses values that describe no partition."""
        _at_least("--num_client", self.num_client, 1)
        _at_least("--num_label", self.num_label, 1)
        _at_least("--num_unlabel", self.num_unlabel, 0)
        _at_least("--split_seed", self.split_seed, 0)
        _one_of("--deal_order", self.deal_order, ("client", "shuffled"))
        _one_of("--class_counts", self.class_counts, ("release", "head"))
        if self.split_seed > _LARGEST_SEED:
            raise DataError(
                f"--split_seed={self.split_seed}: at most {_LARGEST_SEED} is right"
            )
        if not (math.isfinite(self.dirichlet_alpha) and self.dirichlet_alpha >= 0):
            raise DataError(
                f"--dirichlet_alpha={self.dirichlet_alpha}: a positive number, or 0 "
                "for none, would be right"
            )
        if self.dirichlet_alpha and self.skewed:
            flag = "--extreme_non_iid" if self.extreme_non_iid else "--non_iid"
            raise DataError(
                f"--dirichlet_alpha={self.dirichlet_alpha} and {flag} exclude each "
                "other; one of them would be right"
            )

    @property
    def skewed(self) -> bool:
        """Whether the counts depend on the client's type."""
        return self.non_iid or self.extreme_non_iid


@attr.frozen(eq=False)
class ClientIndices:
    """The images of one client.

    Attributes:
        labeled: int64 into `FederatedData.images`: all of class 0, then of class 1,
            and so on, each in dealing order.
        unlabeled: int64 into `FederatedData.unlabeled_images`, likewise; in dealing
            order where these have no labels.
    """

    labeled: np.ndarray
    unlabeled: np.ndarray


@attr.frozen(eq=False)
class FederatedData:
    """A dataset and who has what of it.

    Attributes:
        images: uint8 [N, height, width, channels], train and test joined.
        labels: int32 [N].
        unlabeled_images: What `ClientIndices.unlabeled` points into: the same array
            as `images`, or STL-10's own unlabelled images.
        unlabeled_labels: Their labels, for checks; None where they have none.
        clients: The clients' images.
        validation: int64 [K, n] into `images`; row k has class k.
        test: As `validation`.
        num_classes: K.
        notes: Lines that the user should read.
    """

    images: np.ndarray
    labels: np.ndarray
    unlabeled_images: np.ndarray
    unlabeled_labels: Optional[np.ndarray]
    clients: tuple[ClientIndices, ...]
    validation: np.ndarray
    test: np.ndarray
    num_classes: int
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Names the images, their labels and who has which, by a hash of them all."""
        hashed = hashlib.sha256()
        extra = self.unlabeled_images is not self.images
        for array in (
            *(self.images, self.labels),
            *([self.unlabeled_images] if extra else []),
            *(client.labeled for client in self.clients),
            *(client.unlabeled for client in self.clients),
            *(self.validation, self.test),
        ):
            hashed.update(f"{array.dtype} {array.shape}".encode())
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()


def partition(raw: RawDataset, spec: PartitionSpec) -> FederatedData:
    """Deals the dataset out.

    Args:
        raw: The dataset.
        spec: Who gets what.

    Returns:
        The joined images and the indices of each part.

    Raises:
        DataError: There are not enough images; names the flag to change.
        ValueError: The specification is for another dataset.
    """
    if raw.name != spec.dataset:
        raise ValueError(f"{spec.dataset} was to be partitioned, got {raw.name}")
    images = _join(raw.x_train, raw.x_test)
    labels = _join(raw.y_train, raw.y_test)
    by_class = _class_lists(raw, spec.split_seed)
    cut, notes = _fit_cut(raw, spec, min(map(len, by_class)))
    labeled, unlabeled = _deal_all(raw, spec, [row[: cut.train] for row in by_class])
    validation_end = cut.train + cut.validation
    own_pool = raw.x_unlabeled
    return FederatedData(
        images=images,
        labels=labels,
        unlabeled_images=images if own_pool is None else own_pool,
        unlabeled_labels=labels if own_pool is None else None,
        clients=tuple(map(ClientIndices, labeled, unlabeled)),
        validation=np.stack([row[cut.train : validation_end] for row in by_class]),
        test=np.stack([row[validation_end : cut.total] for row in by_class]),
        num_classes=raw.num_classes,
        notes=(*notes, *_notes(raw, spec, len(unlabeled[0]))),
    )


def _join(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Joins two arrays; copies nothing where one is empty."""
    if not len(test):
        return train
    return np.concatenate([train, test]) if len(train) else test


def _class_lists(raw: RawDataset, seed: int) -> list[np.ndarray]:
    """Returns each class's indices into the joined images, permuted."""
    num_train = len(raw.y_train)
    order = np.concatenate(
        [
            _permutation(num_train, seed),
            num_train + _permutation(len(raw.y_test), seed),
        ]
    )
    labels = _join(raw.y_train, raw.y_test)[order]
    sizes = np.bincount(labels, minlength=raw.num_classes)
    grouped = order[np.argsort(labels, kind="stable")]
    return np.split(grouped, np.cumsum(sizes)[:-1])


def _permutation(size: int, seed: int) -> np.ndarray:
    """Returns a permutation that is a function of the size and the seed alone."""
    return np.random.RandomState(seed).permutation(size).astype(np.int64)


def _fit_cut(
    raw: RawDataset, spec: PartitionSpec, smallest: int
) -> tuple[Cut, tuple[str, ...]]:
    """Returns the dataset's cut, or the one that its smallest class allows."""
    full = dataset_info(spec.dataset).cut
    demand = _demand(raw, spec)
    reduced = smallest < full.total
    # A reduced cut leaves one image each for validation and test.
    capacity = max(0, smallest - 2) if reduced else full.train
    _check_room(raw, spec, demand, capacity)
    if not reduced:
        return full, ()
    train = int(demand[-1])
    half = (smallest - train) // 2
    cut = Cut(train, min(half, full.validation), min(half, full.test))
    return cut, (
        f"{spec.dataset}: the smallest class has {smallest} images, fewer than the "
        f"{full.total} of the full split; validation has {cut.validation} and test "
        f"{cut.test} images of each class, training {cut.train}",
    )


def _check_room(
    raw: RawDataset, spec: PartitionSpec, demand: np.ndarray, capacity: int
) -> None:
    """Refuses more clients than there are images for.

    Args:
        raw: The dataset.
        spec: Who gets what.
        demand: int [clients], see `_demand`.
        capacity: How many images of each class can be dealt.
    """
    most = int(np.searchsorted(demand, capacity, side="right"))
    short = f"{demand[-1]} images of a class, {spec.dataset} has {capacity} to deal"
    slice_size = _slice_size(raw, spec)
    if raw.x_unlabeled is not None and slice_size:
        pool_size = len(raw.x_unlabeled)
        if most >= spec.num_client:
            need = slice_size * spec.num_client
            short = f"{need} unlabelled images, {spec.dataset} has {pool_size}"
        most = min(most, pool_size // slice_size)
    if most < spec.num_client:
        advice = (
            f"--num_client={most} is the most that fits"
            if most
            else "not one client fits: lower --num_label or --num_unlabel"
        )
        raise DataError(
            f"--num_client={spec.num_client}: the clients need {short}; {advice}"
        )


def _slice_size(raw: RawDataset, spec: PartitionSpec) -> int:
    """Returns how many images without any label a client gets."""
    return 0 if spec.supervised or raw.x_unlabeled is None else spec.num_unlabel


def _demand(raw: RawDataset, spec: PartitionSpec) -> np.ndarray:
    """Returns what the first 1, 2, ... clients need of the class needed most."""
    if spec.dirichlet_alpha:
        labeled = np.full((spec.num_client, 1), spec.num_label * raw.num_classes)
        unlabeled = np.full_like(labeled, _unlabeled_from_classes(raw, spec))
    else:
        labeled, unlabeled = _table_counts(raw, spec)
    labeled, unlabeled = labeled.cumsum(axis=0), unlabeled.cumsum(axis=0)
    both = (
        np.maximum(labeled, unlabeled)
        if spec.unlabeled_overlap
        else labeled + unlabeled
    )
    most = both.max(axis=1)
    # Dirichlet clients need a total, which the classes have in equal parts.
    return -(-most // raw.num_classes) if spec.dirichlet_alpha else most


def _unlabeled_from_classes(raw: RawDataset, spec: PartitionSpec) -> int:
    """Returns how many unlabelled images a client takes from the class lists."""
    if spec.supervised or raw.x_unlabeled is not None:
        return 0
    return spec.num_unlabel


def _table_counts(
    raw: RawDataset, spec: PartitionSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labelled and unlabelled counts [clients, K], Dirichlet aside."""
    classes = raw.num_classes
    total = _unlabeled_from_classes(raw, spec)
    # STL-10's labelled images are even, as its unlabelled ones cannot be skewed.
    extreme = spec.extreme_non_iid and raw.x_unlabeled is None
    labeled = _counts(
        spec, classes, spec.num_label * classes, extreme or spec.supervised
    )
    return labeled, _counts(spec, classes, total, total > 0)


def _counts(
    spec: PartitionSpec, num_classes: int, total: int, may_skew: bool
) -> np.ndarray:
    """Returns the counts of `total` images per client, skewed if both ask for it."""
    if spec.skewed and may_skew:
        return counts_lib.skewed_counts(
            spec.num_client,
            total,
            num_classes,
            spec.extreme_non_iid,
            spec.class_counts,
        )
    return counts_lib.even_counts(spec.num_client, total // num_classes, num_classes)


def _deal_all(
    raw: RawDataset, spec: PartitionSpec, pools: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Deals labelled, then unlabelled images; returns both for each client."""
    first, second = _deal_orders(raw, spec)
    if spec.dirichlet_alpha:
        labeled, unlabeled = _dirichlet_counts(raw, spec, pools, first, second)
    else:
        labeled, unlabeled = _table_counts(raw, spec)
    start = np.zeros(raw.num_classes, np.int64)
    after = start if spec.unlabeled_overlap else labeled.sum(axis=0)
    dealt = _deal(pools, start, labeled, first)
    if raw.x_unlabeled is not None:
        return dealt, _slices(len(raw.x_unlabeled), _slice_size(raw, spec), spec)
    return dealt, _deal(pools, after, unlabeled, second)


def _deal_orders(raw: RawDataset, spec: PartitionSpec) -> tuple[np.ndarray, np.ndarray]:
    """Returns the orders in which clients take labelled and unlabelled images.

    The authors' program never shuffles STL-10's or a supervised run's clients.
    """
    clients = list(range(spec.num_client))
    if spec.deal_order == "client" or spec.supervised or raw.x_unlabeled is not None:
        return np.array(clients), np.array(clients)
    generator = random.Random(spec.split_seed)
    generator.shuffle(clients)
    first = np.array(clients)
    generator.shuffle(clients)
    return first, np.array(clients)


def _dirichlet_counts(
    raw: RawDataset,
    spec: PartitionSpec,
    pools: list[np.ndarray],
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws each client's class proportions; returns counts that follow them."""
    generator = np.random.default_rng([spec.split_seed, _DIRICHLET_STREAM])
    alphas = np.full(raw.num_classes, spec.dirichlet_alpha)
    proportions = generator.dirichlet(alphas, spec.num_client)
    sizes = np.array([len(pool) for pool in pools])
    labeled = counts_lib.proportional_counts(
        proportions, spec.num_label * raw.num_classes, sizes, first
    )
    left = sizes if spec.unlabeled_overlap else sizes - labeled.sum(axis=0)
    unlabeled = counts_lib.proportional_counts(
        proportions, _unlabeled_from_classes(raw, spec), left, second
    )
    return labeled, unlabeled


def _deal(
    pools: list[np.ndarray], start: np.ndarray, counts: np.ndarray, order: np.ndarray
) -> list[np.ndarray]:
    """Lets the clients take from each class in turn.

    Args:
        pools: The indices of each class.
        start: int [K], the position in each class at which dealing starts.
        counts: int [clients, K].
        order: The order in which the clients take.

    Returns:
        For each client its indices, class by class, in dealing order.
    """
    takers = [np.repeat(order, column[order]) for column in counts.T]
    items = [
        pool[begin : begin + len(taker)]
        for pool, begin, taker in zip(pools, start, takers)
    ]
    # A stable sort by client keeps the classes, and the order within each.
    by_client = np.argsort(np.concatenate(takers), kind="stable")
    ends = np.cumsum(counts.sum(axis=1))
    return np.split(np.concatenate(items)[by_client], ends[:-1])


def _slices(pool_size: int, slice_size: int, spec: PartitionSpec) -> list[np.ndarray]:
    """Gives each client consecutive images of the permuted unlabelled set."""
    order = _permutation(pool_size, spec.split_seed)
    starts = slice_size * np.arange(spec.num_client)
    return [order[start : start + slice_size] for start in starts]


def _notes(raw: RawDataset, spec: PartitionSpec, num_unlabeled: int) -> tuple[str, ...]:
    """Returns what the user asked for and does not get, line by line."""
    notes = []
    if not spec.supervised and num_unlabeled != spec.num_unlabel:
        notes.append(
            f"--num_unlabel={spec.num_unlabel}: whole numbers of each class make "
            f"{num_unlabeled} unlabelled images per client"
        )
    if raw.x_unlabeled is not None and not spec.supervised:
        flags = {
            "--non_iid": spec.non_iid and not spec.extreme_non_iid,
            "--extreme_non_iid": spec.extreme_non_iid,
            "--dirichlet_alpha": bool(spec.dirichlet_alpha),
        }
        notes.extend(
            f"{flag} has no meaning for the unlabelled images of {spec.dataset}: they "
            "have no labels and are dealt in slices"
            for flag, given in flags.items()
            if given
        )
    if raw.x_unlabeled is not None and spec.extreme_non_iid and not spec.supervised:
        notes.append(
            f"--extreme_non_iid: the labelled images of {spec.dataset} stay "
            f"{spec.num_label} per class"
        )
    return tuple(notes)


def _at_least(flag: str, value: int, least: int) -> None:
    """Refuses a number that is too small."""
    if value < least:
        raise DataError(f"{flag}={value}: at least {least} would be right")


def _one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses an unknown word."""
    if value not in choices:
        raise DataError(f"{flag}={value}: {' or '.join(choices)} would be right")
