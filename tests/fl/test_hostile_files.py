"""Checkpoints that somebody tampered with: a clear error or the one before, never more.

What is merely damaged is in `test_checkpoints.py`; data files in `test_sources.py`.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from hostile import Trap

from experiments import evaluate
from fl import checkpoints
from fl.checkpoints import CheckpointError
from fl.run_folder import RunFiles
from flags.errors import UsageError

NAME = "round_000001.npz"
DESCR_OF_NOTHING = b"{'descr': (), 'fortran_order': False, 'shape': (4,)}\n"[:51]
Run = Callable[..., RunFiles]


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    """The beginning of a .npy file that announces such an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def write(path: Path, members: Any, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_a_pickle_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    """As an array of objects, and as a plain pickle in place of an array."""
    trap = tmp_path / "sprung"
    file = io.BytesIO()
    np.save(file, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    for content in (file.getvalue(), pickle.dumps(Trap(trap))):
        path = write(tmp_path / NAME, {"weights.npy": content})
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoints.load(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        header((2**40,)),
        header((2**31, 2**31, 2**31)),
        header((2**62,)),
        header((-1,)),
        header((4,)) + b"\0" * 8,
        header((4,), "|O") + b"\0" * 32,
        header((4,))[:20],
        b"\x93NUMPY\x09\x00" + struct.pack("<H", 4) + b"{}  ",
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 65535) + b"(" * 65535,
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 1) + b"(",
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 51) + DESCR_OF_NOTHING,
    ],
    ids=range(11),
)
def test_an_array_that_lies_about_itself_is_damage(
    content: bytes, tmp_path: Path
) -> None:
    """Sizes beyond any memory, fewer bytes than announced, headers that are none."""
    path = write(tmp_path / NAME, {"weights.npy": content})
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.load(path)


def test_a_zip_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    content = header((2**28,)) + bytes(2**20)
    path = write(tmp_path / NAME, {"weights.npy": content}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        checkpoints.load(path)


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(CheckpointError, match=NAME):
        checkpoints.load(tmp_path / NAME)


def tampered(run: RunFiles, round_num: int, **changes: Any) -> Path:
    path = checkpoints.path_of(run.checkpoints, round_num)
    arrays = dict(checkpoints.load(path).arrays)
    for name, array in changes.items():
        arrays[name.replace("__", "/")] = array
    return checkpoints.save(run.checkpoints, round_num, arrays)


def test_a_checkpoint_of_other_shapes_is_a_clear_error(run_small: Run) -> None:
    run = run_small("shapes")
    tampered(run, 3, model_weights__000=np.zeros([3, 3, 1, 5], np.float32))
    with pytest.raises(
        UsageError, match=r"--resume: .*round_000003.*model_weights/000 is float32"
    ):
        run_small("shapes", resume=True)


def test_arrays_of_one_record_that_differ_in_length_are_a_clear_error(
    run_small: Run,
) -> None:
    run = run_small("lengths")
    bank = checkpoints.load(checkpoints.path_of(run.checkpoints, 3)).arrays
    tampered(run, 3, bank__values=np.concatenate([bank["bank/values"]] * 2))
    with pytest.raises(UsageError, match="values and present in bank differ in length"):
        run_small("lengths", resume=True)


def test_a_checkpoint_under_another_name_is_no_later_round(run_small: Run) -> None:
    run = run_small("name")
    source, target = (checkpoints.path_of(run.checkpoints, r) for r in (2, 3))
    target.write_bytes(source.read_bytes())
    with pytest.raises(UsageError, match=r"--resume: .*3\.npz is of round 2"):
        run_small("name", resume=True)


@pytest.mark.parametrize("which", ["metrics_file", "clients_file"])
def test_rows_that_are_missing_are_not_made_up(run_small: Run, which: str) -> None:
    """The line of the second round is gone."""
    run = run_small("rows")
    path = getattr(run, which)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if not x.startswith("2,")))
    with pytest.raises(UsageError, match=f"--resume: .*{path.name} lacks rows"):
        run_small("rows", resume=True)


@pytest.mark.parametrize(
    ("flags", "array"),
    [
        (
            {"method": "fedavg", "num_unlabel": 0, "optimizer_state": "client"},
            "optimizer_state/000",
        ),
        ({"method": "fedmatch", "helper_cnt": 2, "conv_bias": False}, "own/rate/.*"),
    ],
    ids=["optimizer", "own"],
)
def test_what_a_client_kept_is_checked_too(
    run_small: Run, flags: Any, array: str
) -> None:
    """Before anything changes: the result of the shorter run stays."""
    run = run_small("kept", num_round=2, **flags)
    for path in run.client_states.rglob("round_*.npz"):
        number = int(path.stem.rpartition("_")[2])
        arrays = checkpoints.load(path).arrays
        wrong = {name: array.astype(np.float64) for name, array in arrays.items()}
        checkpoints.save(path.parent, number, wrong)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match=f"--resume: {array} is float64"):
        run_small("kept", num_round=4, resume=True, **flags)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_a_configuration_that_is_no_object_is_a_clear_error(run_small: Run) -> None:
    run = run_small("config", num_round=1)
    for content in ([], {"config": 3}, {"config": {"seed": [5]}}):
        run.config_file.write_text(json.dumps(content))
        with pytest.raises(UsageError):
            run_small("config", resume=True, num_round=1)


def test_a_tampered_export_is_a_clear_error(tmp_path: Path) -> None:
    """A pickle, an array that lies, one that unfolds, no zip at all; none is run."""
    path, trap = tmp_path / "model.npz", tmp_path / "sprung"
    file = io.BytesIO()
    np.save(file, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    for content in (file.getvalue(), header((2**40,)), header((4,))[:20]):
        write(path, {"weights/000.npy": content})
        with pytest.raises(UsageError, match="model.npz: damaged"):
            evaluate.read_export(path)
    np.savez_compressed(path, **{"weights/000": np.zeros(10**6)})
    with pytest.raises(UsageError, match="model.npz: damaged .*is compressed"):
        evaluate.read_export(path)
    path.write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(UsageError, match="model.npz: damaged"):
        evaluate.read_export(path)
    assert not trap.exists()
