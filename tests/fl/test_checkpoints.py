"""Tests that a checkpoint comes back exactly, or is known to be damaged."""

from __future__ import annotations

import logging as std_logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Callable, Dict, Optional

import numpy as np
import pytest

from fl import checkpoints


def _arrays(value: float = 1.0) -> Dict[str, np.ndarray]:
    return {
        "weights/0": np.full((3, 4), value, np.float32),
        "file": np.arange(5, dtype=np.int64),
        "present": np.array([True, False]),
        "step": np.array(7, np.int32),
        "name": np.array("protofssl"),
        "none": np.zeros((0, 2), np.float64),
    }


def _assert_same(
    found: checkpoints.Checkpoint, expected: Dict[str, np.ndarray]
) -> None:
    assert list(found.arrays) == list(expected)
    for name, array in expected.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    """Flips a bit of a number: no length and no structure changes."""
    content = bytearray(path.read_bytes())
    at = content.index(np.float32(1.0).tobytes() * 12)
    content[at + 5] ^= 1
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _not_zip(path: Path) -> None:
    path.write_bytes(b"no zip at all" * 100)


def _pickled(path: Path) -> None:
    np.savez(path, thing=np.array([{"a": 1}], dtype=object))


def _not_arrays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


DAMAGES = [_truncate, _flip, _empty, _not_zip, _pickled, _not_arrays]


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path / "new", 12, _arrays())
    assert path == tmp_path / "new" / "round_000012.npz"
    found = checkpoints.load(path)
    assert (found.round_num, found.path) == (12, path)
    _assert_same(found, _arrays())


def test_special_values_and_layouts_come_back(tmp_path: Path) -> None:
    odd = np.array([np.nan, -0.0, np.inf, np.finfo(np.float32).tiny], np.float32)
    matrix = np.arange(24.0).reshape(4, 6)
    given = {"odd": odd, "strided": matrix[::2, ::3], "fortran": matrix.T}
    found = checkpoints.load(checkpoints.save(tmp_path, 1, given)).arrays
    assert found["odd"].tobytes() == odd.tobytes()
    np.testing.assert_array_equal(found["strided"], matrix[::2, ::3])
    np.testing.assert_array_equal(found["fortran"], matrix.T)


def test_arrays_read_may_be_written_to(tmp_path: Path) -> None:
    arrays = checkpoints.load(checkpoints.save(tmp_path, 1, _arrays())).arrays
    arrays["weights/0"][0, 0] = 5.0
    assert arrays["weights/0"][0, 0] == 5.0


def test_numpy_reads_it_too_and_it_is_not_compressed(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, 1, {"zeros": np.zeros(10_000, np.float32)})
    assert path.stat().st_size > 40_000
    with np.load(path, allow_pickle=False) as archive:
        assert archive["zeros"].shape == (10_000,)


def test_objects_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="[Oo]bject"):
        checkpoints.save(tmp_path, 1, {"bad": np.array([{}], dtype=object)})
    assert os.listdir(tmp_path) == []


def test_negative_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="-1"):
        checkpoints.save(tmp_path, -1, _arrays())


def test_saving_again_replaces(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 3, _arrays(1.0))
    path = checkpoints.save(tmp_path, 3, _arrays(2.0))
    _assert_same(checkpoints.load(path), _arrays(2.0))
    assert os.listdir(tmp_path) == ["round_000003.npz"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "missing") is None
    assert checkpoints.rounds(tmp_path / "missing") == []


def test_latest_is_by_number_not_by_name(tmp_path: Path) -> None:
    """As names "round_1000000" sorts before "round_999999"."""
    for num in (1_000_000, 999_999, 2):
        checkpoints.save(tmp_path, num, _arrays(num))
    assert checkpoints.rounds(tmp_path) == [2, 999_999, 1_000_000]
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.round_num == 1_000_000


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 2, _arrays())
    others = [".round_000009.npz.0123456789abcdef.unfinished", "round_9.npz"]
    others += ["best.npz", "round_000009.npz.bak", "round_0000009.npz"]
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    assert checkpoints.rounds(tmp_path) == [2]
    checkpoints.prune(tmp_path, keep=1, best_round=None)
    checkpoints.discard_after(tmp_path, 0)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_one_is_named_once_and_the_one_before_taken(
    tmp_path: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoints.save(tmp_path, 1, _arrays(3.0))
    damage(checkpoints.save(tmp_path, 2, _arrays()))
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.round_num == 1
    _assert_same(found, _arrays(3.0))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "round_000002.npz" in line
    assert "\n" not in line


def test_whole_one_gives_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints.save(tmp_path, 1, _arrays())
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        checkpoints.latest(tmp_path)
    assert caplog.records == []


def test_none_whole_is_an_error_that_names_them(tmp_path: Path) -> None:
    for num, damage in enumerate(DAMAGES):
        damage(checkpoints.save(tmp_path, num, _arrays()))
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.latest(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for num in range(len(DAMAGES)):
        assert f"round_{num:06d}.npz" in message


def test_no_changed_byte_gives_other_arrays(tmp_path: Path) -> None:
    """Every byte of a file is changed in turn.

    The load must fail, or give the very arrays saved: some bytes (time stamps, say)
    carry nothing.
    """
    expected: Dict[str, np.ndarray] = {
        "a": np.arange(3, dtype=np.float32),
        "bé": np.array([1], np.int8),
    }
    path = checkpoints.save(tmp_path, 1, expected)
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[at] ^= mask
            path.write_bytes(changed)
            try:
                found = checkpoints.load(path)
            except checkpoints.CheckpointError:
                refused += 1
            else:
                _assert_same(found, expected)
    # The members alone, header and numbers, are more than half of the file.
    assert refused > 1.5 * len(whole)


def test_no_truncation_passes(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, 1, {"a": np.arange(3.0)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(checkpoints.CheckpointError):
            checkpoints.load(path)


def test_load_names_a_missing_or_misnamed_file(tmp_path: Path) -> None:
    with pytest.raises(checkpoints.CheckpointError, match="round_000001.npz.*No such"):
        checkpoints.load(tmp_path / "round_000001.npz")
    with pytest.raises(checkpoints.CheckpointError, match="best.npz is not the name"):
        checkpoints.load(tmp_path / "best.npz")


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (1, None, [5]),
        (2, None, [4, 5]),
        (2, 1, [1, 4, 5]),
        (2, 5, [4, 5]),
        (2, 99, [4, 5]),
        (9, 1, [1, 2, 3, 4, 5]),
    ],
)
def test_prune_keeps_the_newest_and_the_best(
    tmp_path: Path, keep: int, best: Optional[int], left: list[int]
) -> None:
    for num in range(1, 6):
        checkpoints.save(tmp_path, num, {"a": np.array(num)})
    checkpoints.prune(tmp_path, keep=keep, best_round=best)
    assert checkpoints.rounds(tmp_path) == left


def test_prune_refuses_to_keep_none(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, _arrays())
    with pytest.raises(ValueError, match="keep is 0"):
        checkpoints.prune(tmp_path, keep=0, best_round=None)
    assert checkpoints.rounds(tmp_path) == [1]


def test_prune_of_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    checkpoints.prune(tmp_path / "missing", keep=1, best_round=None)
    assert not (tmp_path / "missing").exists()


def test_discard_after_removes_only_later_rounds(tmp_path: Path) -> None:
    for num in range(1, 6):
        checkpoints.save(tmp_path, num, {"a": np.array(num)})
    checkpoints.discard_after(tmp_path, 3)
    assert checkpoints.rounds(tmp_path) == [1, 2, 3]


def test_failed_save_leaves_the_one_before(tmp_path: Path) -> None:
    """The second array cannot be written when the first one already is."""
    checkpoints.save(tmp_path, 1, _arrays())
    bad = {"good": np.zeros(3), "bad": np.array([{}], dtype=object)}
    with pytest.raises(ValueError, match="[Oo]bject"):
        checkpoints.save(tmp_path, 1, bad)
    assert os.listdir(tmp_path) == ["round_000001.npz"]
    found = checkpoints.latest(tmp_path)
    assert found is not None
    _assert_same(found, _arrays())


def test_needs_no_tensorflow() -> None:
    program = (
        "import sys; import fl.files, fl.checkpoints, fl.records\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    root = Path(checkpoints.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0
