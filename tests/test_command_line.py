"""Tests of the program as a user starts it: what it refuses, how, and how fast."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence

import attr
import numpy as np
import pytest

from fl.run_folder import LOCK_NAME, RunFolder
from flags.config import METHODS, declarations
from flags.parse import help_text, parse

ROOT = Path(__file__).parents[1]
CPU_SECONDS = 2.0
# The program is imported under its own name and tells, after its exit code, what it
# cost and whether TensorFlow was loaded: on a pipe of its own, not on its streams.
RUNNER = """
import json, os, sys, time
import main
code = main.main(sys.argv[2:])
heavy = [m for m in ("tensorflow", "tensorflow_federated", "keras") if m in sys.modules]
with os.fdopen(int(sys.argv[1]), "w") as report:
    json.dump({"cpu": time.process_time(), "heavy": heavy}, report)
sys.exit(code)
"""


@attr.frozen
class Ended:
    """A run of the program that has ended."""

    code: int
    stdout: str
    stderr: str
    cpu: float
    heavy: Sequence[str]


def _run(folder: Path, *argv: str) -> Ended:
    """Runs the program with `folder` as its working folder."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as report:
        try:
            done = subprocess.run(
                [sys.executable, "-c", RUNNER, str(write_end), *argv],
                cwd=folder,
                env=_environment(folder),
                capture_output=True,
                text=True,
                timeout=120,
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        text = report.read()
    assert text, f"no report: {done.stderr}"
    told = json.loads(text)
    return Ended(done.returncode, done.stdout, done.stderr, told["cpu"], told["heavy"])


def _environment(folder: Path) -> Mapping[str, str]:
    """Ours, with the program to be found from anywhere and an empty cache."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "c")}


def _contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _write_text(folder: Path) -> None:
    (folder / "svhn.npz").write_text("these are no images\n")


def _write_truncated(folder: Path) -> None:
    np.savez(folder / "svhn.npz", x_train=np.zeros((9, 32, 32, 3), np.uint8))
    content = (folder / "svhn.npz").read_bytes()
    (folder / "svhn.npz").write_bytes(content[: len(content) // 2])


def _write_damaged(folder: Path) -> None:
    """A whole archive whose image data fails its checksum."""
    _write_images(folder, 9)
    content = bytearray((folder / "svhn.npz").read_bytes())
    content[len(content) // 3] ^= 0xFF
    (folder / "svhn.npz").write_bytes(bytes(content))


def _write_no_images(folder: Path) -> None:
    np.savez(folder / "svhn.npz", y_train=np.zeros(9, np.uint8))


def _write_empty_archive(folder: Path) -> None:
    zipfile.ZipFile(folder / "svhn.npz", "w").close()


def _write_few(folder: Path) -> None:
    _write_images(folder, 20)


def _write_folder(folder: Path) -> None:
    (folder / "svhn.npz").mkdir()


def _write_images(folder: Path, count: int) -> None:
    np.savez(
        folder / "svhn.npz",
        x_train=np.zeros((count, 32, 32, 3), np.uint8),
        y_train=np.arange(count) % 10,
    )


def _write_file(folder: Path) -> None:
    (folder / "file").write_text("kept")


def _write_name(folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs" / "protofssl").write_text("kept")


def _write_thesis(folder: Path) -> None:
    (folder / "runs" / "protofssl").mkdir(parents=True)
    (folder / "runs" / "protofssl" / "thesis.tex").write_text("kept")


def _write_run(folder: Path) -> None:
    config = parse([f"--out_dir={folder / 'runs'}", "--seed=1", "--mu=0.5"]).config
    with RunFolder(config) as run:
        run.begin()


def _write_broken_run(folder: Path) -> None:
    _write_run(folder)
    (folder / "runs" / "protofssl" / "config.json").write_text("{")


def _write_flags(content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "my.flags").write_bytes(content)

    return write


SVHN = "--dataset=svhn --data_dir=."

# A mistake, what the line must say, and what lies in the folder before.
MISTAKES: list[tuple[str, str, Optional[Callable[[Path], None]]]] = [
    ("--dataset=mnist", "--dataset: found 'mnist'", None),
    ("--model=vgg", "--model: found 'vgg'", None),
    ("--fidelity=exact", "--fidelity: found 'exact'", None),
    ("--no_such_flag=1", "--no_such_flag: no such flag", None),
    ("stray", "found 'stray'", None),
    ("--seed=x", "--seed: found 'x'", None),
    ("--seed", "--seed: found no value", None),
    ("--use_noise=perhaps", "--use_noise: found 'perhaps'", None),
    ("--num_active_client=11", "--num_active_client: found 11", None),
    ("--num_label=5 --s_label=4", "--s_label=4 and --q_label=2", None),
    ("--num_unlabel=60 --q_unlabel=61", "--q_unlabel: found 61", None),
    ("--helper_cnt=30", "--helper_cnt: found 30", None),
    ("--num_round=0", "--num_round: found 0", None),
    ("--num_client=-1", "--num_client: found -1", None),
    ("--num_client=99999999999", "--num_client: found 99999999999", None),
    ("--num_client=999999", "--num_client=999999: the clients need", None),
    ("--num_label=0", "--num_label: found 0", None),
    ("--local_episode=-5", "--local_episode: found -5", None),
    ("--opt_lr=0", "--opt_lr: found 0.0", None),
    ("--opt_lr=-0.1", "--opt_lr: found -0.1", None),
    ("--opt_lr=nan", "--opt_lr: found nan", None),
    ("--opt_lr=inf", "--opt_lr: found inf", None),
    ("--temperature=0", "--temperature: found 0.0", None),
    ("--opt_momentum=1", "--opt_momentum: found 1.0", None),
    ("--seed=4294967296", "--seed: found 4294967296", None),
    ("--extreme_non_iid", "--extreme_non_iid: found without --non_iid", None),
    ("--non_iid --dirichlet_alpha=1", "--dirichlet_alpha=1.0 with --non_iid", None),
    ("--bn --bn_type=gn", "--bn with --bn_type=gn", None),
    ("--is_sl --method=protofssl", "--is_sl with --method=protofssl", None),
    ("--init=ones", "--init=ones", None),
    ("--exp_name=a/b", "--exp_name: found 'a/b'", None),
    (f"--exp_name={'a' * 300}", "--exp_name: found 'aaa", None),
    ("--resume --overwrite", "--resume with --overwrite", None),
    ("--flagfile=absent", "--flagfile=absent: cannot be read", None),
    ("--flagfile=my.flags", "=my.flags: found no text", _write_flags(b"\xff\0")),
    ("--flagfile=my.flags", "leads back", _write_flags(b"--flagfile=my.flags")),
    ("--flagfile=my.flags", "--sead: no such flag", _write_flags(b"--sead 3")),
    ("--data_dir=absent", "--data_dir=absent: does not exist", None),
    ("--data_dir=file", "--data_dir=file: is no folder", _write_file),
    (SVHN, "svhn.npz: cannot be read", _write_text),
    (SVHN, "svhn.npz: cannot be read", _write_truncated),
    (SVHN, "svhn.npz: cannot be read", _write_damaged),
    (SVHN, "svhn.npz: lacks x_train", _write_no_images),
    (SVHN, "svhn.npz: lacks x_train", _write_empty_archive),
    (SVHN, "svhn.npz: is no regular file", _write_folder),
    (SVHN, "--num_client=100: ", _write_few),
    ("--num_unlabel=3000", "lower --num_label or --num_unlabel", None),
    ("--out_dir=file", "--out_dir: file/protofssl", _write_file),
    ("--out_dir=file/below", "--out_dir: file/below/protofssl", _write_file),
    ("--out_dir=runs", "--out_dir: found a file at runs/protofssl", _write_name),
    ("--out_dir=runs", "--exp_name: found files in runs/protofssl", _write_thesis),
    ("--out_dir=runs --overwrite", "--exp_name: found files in", _write_thesis),
    ("--out_dir=runs", "--exp_name: found a run in runs/protofssl", _write_run),
    ("--resume --seed=2", "--seed was 1, now 2; --mu was 0.5, now 0.001", _write_run),
    ("--resume", "config.json: cannot be read", _write_broken_run),
]
if "fixmatch" not in METHODS:
    MISTAKES.append(("--fixmatch", "--fixmatch: found a method", None))


@pytest.mark.parametrize(("words", "expected", "prepare"), MISTAKES)
def test_mistake_is_one_line_at_once(
    tmp_path: Path,
    words: str,
    expected: str,
    prepare: Optional[Callable[[Path], None]],
) -> None:
    """Nothing on standard output, no traceback, no TensorFlow, no trace on the disk."""
    if prepare is not None:
        prepare(tmp_path)
    before = _contents(tmp_path)
    ended = _run(tmp_path, *words.split())
    assert ended.code == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("main.py: error: ")
    assert expected in line
    # The folder of all runs may have been made; nothing may be left in it.
    assert set(_contents(tmp_path)) - {"runs"} == set(before) - {"runs"}
    assert ended.heavy == []
    assert ended.cpu < CPU_SECONDS


def test_run_in_use_is_refused(tmp_path: Path) -> None:
    _write_run(tmp_path)
    with (tmp_path / "runs" / "protofssl" / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = _run(tmp_path, "--seed=1", "--mu=0.5", "--resume")
    assert ended.code == 2
    assert ended.stderr.splitlines()[-1].startswith("main.py: error: --exp_name: ")
    assert "in use by another process" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_dry_run_shows_the_configuration_and_touches_nothing(tmp_path: Path) -> None:
    words = ["--dataset=cifar100", "--fixmatch", "--seed", "7", "--use_noise", "False"]
    ended = _run(tmp_path, *words, "--dry_run", "--out_dir=out")
    shown = json.loads(ended.stdout)
    assert ended.code == 0
    assert list(shown) == [declared.name for declared in declarations()]
    assert shown == parse([*words, "--dry_run", "--out_dir=out"]).config.as_dict()
    assert (shown["method"], shown["seed"], shown["use_noise"]) == (
        "fixmatch",
        7,
        False,
    )
    assert ended.stderr == ""
    assert _contents(tmp_path) == []
    assert ended.heavy == []
    assert ended.cpu < CPU_SECONDS


def test_dry_run_leaves_an_existing_run_alone(tmp_path: Path) -> None:
    """It neither needs the data nor asks whether the name is taken."""
    _write_run(tmp_path)
    before = _contents(tmp_path)
    ended = _run(tmp_path, "--dry_run", "--overwrite", "--data_dir=absent")
    assert ended.code == 0
    assert _contents(tmp_path) == before


def test_warnings_stay_out_of_the_json(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--dry_run", "--dataset=cifar10", "--mu=0.5")
    assert json.loads(ended.stdout)["mu"] == 0.5
    (line,) = ended.stderr.splitlines()
    assert "--mu has no effect; --fl_framework=fedprox makes it count" in line


def test_help_is_the_help(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--seed=x", "--help")
    assert ended.code == 0
    assert ended.stdout == help_text() + "\n"
    assert ended.stderr == ""
    assert _contents(tmp_path) == []
    assert ended.heavy == []
    assert ended.cpu < CPU_SECONDS


def test_program_file_itself_answers_quickly(tmp_path: Path) -> None:
    """As typed, without our runner: the file, its exit code, and the wall clock."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "main.py"), "--dataset", "mnist"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("main.py: error: --dataset: found 'mnist'")
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - start < 20


def test_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        done = subprocess.run(
            [sys.executable, str(ROOT / "main.py"), "--help"],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == ""
