"""Tests of the program as a user starts it: what it refuses, how, and how fast."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence

import attr
import numpy as np
import pytest

from fl.run_folder import LOCK_NAME, RunFolder
from flags.config import declarations
from flags.parse import help_text, parse

ROOT = Path(__file__).parents[1]
CPU_SECONDS = 2.0


@attr.frozen
class Ended:
    """A run of the program that has ended."""

    code: int
    stdout: str
    stderr: str
    cpu: float
    heavy: Sequence[str]
    left: Sequence[str]


def _start(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Starts the program as a user does, with `folder` as its working folder."""
    return subprocess.run(
        [sys.executable, str(ROOT / "main.py"), *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _run_all(folders: Mapping[Path, str], cache: Path) -> Mapping[Path, Ended]:
    """Runs one command line in each folder, all from one start of Python."""
    cases = {str(folder): words.split() for folder, words in folders.items()}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(cases),
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return {Path(k): Ended(**v) for k, v in json.loads(done.stdout).items()}


def _serve() -> None:
    """The other end of `_run_all`: forks a child, without TensorFlow, for each case."""
    import main

    cases = json.load(sys.stdin)
    started = time.process_time()
    ended = {k: _fork(main.main, Path(k), v, started) for k, v in cases.items()}
    json.dump({k: attr.asdict(v) for k, v in ended.items()}, sys.stdout)


def _fork(
    program: Callable[[Sequence[str]], int],
    folder: Path,
    argv: Sequence[str],
    started: float,
) -> Ended:
    """Runs the program in a child with streams of its own; counts the start as its."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        heavy_end, child_end = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.chdir(folder)
            _be_child(program, argv, child_end)
        os.close(child_end)
        _, status, usage = os.wait4(child, 0)
        with os.fdopen(heavy_end) as pipe:
            heavy = pipe.read().split()
        out.seek(0)
        err.seek(0)
        return Ended(
            code=os.waitstatus_to_exitcode(status),
            stdout=out.read(),
            stderr=err.read(),
            cpu=started + usage.ru_utime + usage.ru_stime,
            heavy=heavy,
            left=_contents(folder),
        )


def _be_child(
    program: Callable[[Sequence[str]], int], argv: Sequence[str], report: int
) -> None:
    code = 1
    try:
        code = program(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        heavy = {"tensorflow", "tensorflow_federated", "keras"} & set(sys.modules)
        os.write(report, " ".join(heavy).encode())
        os._exit(code)


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
        run.begin("data")


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
    ("--num_client=99999", "--num_client=99999: the clients need", None),
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


@attr.frozen
class Mistake:
    """A mistake made: what was there before, and what came of it."""

    expected: str
    before: Sequence[str]
    ended: Ended


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Mistake]:
    folders = {tmp_path_factory.mktemp("mistake"): case for case in MISTAKES}
    for folder, (_, _, prepare) in folders.items():
        if prepare is not None:
            prepare(folder)
    before = {folder: _contents(folder) for folder in folders}
    ended = _run_all(
        {folder: words for folder, (words, _, _) in folders.items()},
        tmp_path_factory.mktemp("cache"),
    )
    return [
        Mistake(expected, before[folder], ended[folder])
        for folder, (_, expected, _) in folders.items()
    ]


@pytest.mark.parametrize(
    "index", range(len(MISTAKES)), ids=[f"{m[0]}: {m[1]}"[:60] for m in MISTAKES]
)
def test_mistake_is_one_line_at_once(mistakes: Sequence[Mistake], index: int) -> None:
    """Nothing on standard output, no traceback, no TensorFlow, no trace on the disk."""
    ended = mistakes[index].ended
    assert ended.code == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("main.py: error: ")
    assert mistakes[index].expected in line
    # The folder of all runs may have been made; nothing may be left in it.
    assert set(ended.left) - {"runs"} == set(mistakes[index].before) - {"runs"}
    assert ended.heavy == []
    assert ended.cpu < CPU_SECONDS


def test_run_in_use_is_refused(tmp_path: Path) -> None:
    _write_run(tmp_path)
    with (tmp_path / "runs" / "protofssl" / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = _start(tmp_path, "--seed=1", "--resume", "--mu=0.5")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("main.py: error: --exp_name: ")
    assert "in use by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_program_file_itself_refuses_and_answers_quickly(tmp_path: Path) -> None:
    """As typed, from the start of Python on."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _start(tmp_path, "--dataset", "mnist")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("main.py: error: --dataset: found 'mnist'")
    assert len(done.stderr.splitlines()) == 1
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert spent < CPU_SECONDS


def test_dry_run_shows_the_configuration_and_touches_nothing(tmp_path: Path) -> None:
    words = ["--dataset=cifar100", "--fixmatch", "--seed", "7", "--use_noise", "False"]
    words += ["--dry_run", "--out_dir=out"]
    done = _start(tmp_path, *words)
    shown = json.loads(done.stdout)
    assert done.returncode == 0
    assert list(shown) == [declared.name for declared in declarations()]
    assert shown == parse(words).config.as_dict()
    assert (shown["method"], shown["seed"]) == ("fixmatch", 7)
    assert shown["use_noise"] is False
    assert done.stderr == ""
    assert _contents(tmp_path) == []


@pytest.mark.parametrize("words", ["--dry_run", "--seed=x --help"])
def test_looking_costs_little_and_touches_nothing(tmp_path: Path, words: str) -> None:
    """An existing run, a name that is taken and data that is missing do not matter."""
    _write_run(tmp_path)
    before = _contents(tmp_path)
    command = f"{words} --overwrite --data_dir=absent"
    ended = _run_all({tmp_path: command}, tmp_path / "absent")[tmp_path]
    assert ended.code == 0
    assert ended.stderr == ""
    assert ended.left == before
    assert ended.heavy == []
    assert ended.cpu < CPU_SECONDS


def test_warnings_stay_out_of_the_json(tmp_path: Path) -> None:
    done = _start(tmp_path, "--dry_run", "--dataset=cifar10", "--mu=0.5")
    assert json.loads(done.stdout)["mu"] == 0.5
    (line,) = done.stderr.splitlines()
    assert "--mu has no effect; --fl_framework=fedprox makes it count" in line


def test_help_is_the_help(tmp_path: Path) -> None:
    done = _start(tmp_path, "--seed=x", "--help")
    assert done.returncode == 0
    assert done.stdout == help_text() + "\n"
    assert done.stderr == ""


@pytest.mark.parametrize("word", ["--help", "--dry_run"])
def test_reader_that_leaves_early_is_no_traceback(tmp_path: Path, word: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        done = subprocess.run(
            [sys.executable, str(ROOT / "main.py"), word],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == ""


if __name__ == "__main__":
    _serve()
