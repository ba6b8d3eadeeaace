"""Tests that a file is whole or absent, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl import files


def test_file_appears_only_when_the_block_is_left(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with files.atomic_path(target) as temporary:
        temporary.write_text("new")
        assert not target.exists()
        assert temporary.parent == target.parent
        assert temporary.name.startswith(".")
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_inside_keeps_the_old_content(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half() -> None:
        with files.atomic_path(target) as temporary:
            temporary.write_text("ne")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.atomic_path(tmp_path / "a.txt"):
        pass
    assert os.listdir(tmp_path) == []


def test_two_writers_get_two_temporary_files(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with files.atomic_path(target) as one, files.atomic_path(target) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    # The inner block ends first, so the outer one's content is the later one.
    assert target.read_text() == "one"


def test_folder_is_made_and_mode_follows_the_umask(tmp_path: Path) -> None:
    """A plain open() is the measure: others of the group may read results too."""
    (tmp_path / "plain").write_text("")
    files.write_text(tmp_path / "deep" / "er" / "a.txt", "x")
    made = tmp_path / "deep" / "er" / "a.txt"
    assert made.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_text_is_written_byte_for_byte(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "λ = 0.3\r\nT\n")
    assert (tmp_path / "a.txt").read_bytes() == "λ = 0.3\r\nT\n".encode()


def test_json_keeps_the_order_and_ends_its_line(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"b": 1, "a": [0.1, None]})
    text = (tmp_path / "a.json").read_text()
    assert text == '{\n  "b": 1,\n  "a": [\n    0.1,\n    null\n  ]\n}\n'


def test_json_of_a_diverged_run_is_still_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    nested = {"loss": float("nan"), "deep": [{"x": float("inf")}, (1.5,)]}
    files.write_json(tmp_path / "a.json", nested)
    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert read == {"loss": None, "deep": [{"x": None}, [1.5]]}


def test_unserializable_object_leaves_the_old_file(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        files.write_json(tmp_path / "a.json", {"x": object()})
    assert (tmp_path / "a.json").read_text() == "1\n"


def test_leftover_of_a_killed_process_is_removed_and_nothing_else(
    tmp_path: Path,
) -> None:
    """The process dies inside the block without any chance to tidy up."""
    program = (
        "import os, sys; from fl import files\n"
        "with files.atomic_path(sys.argv[1]) as t:\n"
        "    t.write_text('half'); os._exit(9)\n"
    )
    inner = tmp_path / "checkpoints"
    target = inner / "round_000001.npz"
    inner.mkdir()
    root = Path(files.__file__).parents[1]
    died = subprocess.run([sys.executable, "-c", program, str(target)], cwd=root)
    assert died.returncode == 9
    foreign = [".hidden", "a.unfinished", ".a.unfinished", ".b.0123.unfinished"]
    for name in foreign:
        (inner / name).write_text("")
    left = set(os.listdir(inner)) - set(foreign)
    assert len(left) == 1
    assert files.remove_leftovers(tmp_path) == [inner / name for name in left]
    assert set(os.listdir(inner)) == set(foreign)


def test_leftovers_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert files.remove_leftovers(tmp_path / "none") == []
