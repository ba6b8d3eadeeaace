"""Tests of the network specs and of the messages for wrong names and sizes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import attr
import pytest

from models import specs

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_specs_and_init_import_without_tensorflow() -> None:
    code = (
        "import sys, models.specs, models.init; sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    ("name", "size"),
    [("res9", 512), ("res18", 512), ("res9_256d", 256), ("wres28x2", 128)],
)
def test_embedding_size(name: str, size: int) -> None:
    assert specs.embedding_size(name) == size


def test_the_registry_holds_the_four_networks_and_is_read_only() -> None:
    assert set(specs.MODELS) == {"res9", "res18", "res9_256d", "wres28x2"}
    with pytest.raises(TypeError):
        specs.MODELS["mine"] = specs.MODELS["res9"]  # type: ignore[index]
    with pytest.raises(attr.exceptions.FrozenInstanceError):
        specs.MODELS["res9"].steps = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "convolutions"), [("res9", 8), ("res18", 17), ("wres28x2", 25)]
)
def test_depth_is_that_of_the_name(name: str, convolutions: int) -> None:
    """ResNet9 and 18 count the dense layer: 8 and 17 convolutions before it.

    WRN-28 has 1 + 3 groups * 4 blocks * 2 = 25 convolutions of 3x3; the 28 counts its
    three 1x1 shortcuts as well.
    """
    depth = 0
    for step in specs.MODELS[name].steps:
        if isinstance(step, (specs.Conv, specs.WideStem)):
            depth += 1
        elif isinstance(step, specs.Residual):
            depth += step.length
        elif isinstance(step, specs.WideGroup):
            depth += 2 * step.blocks
    assert depth == convolutions


@pytest.mark.parametrize(
    ("side", "sizes"), [(8, (2, 2, 2, 1)), (32, (2, 2, 2, 4)), (96, (3, 2, 4, 4))]
)
def test_pools_bring_an_image_down_to_one_position(side: int, sizes: tuple) -> None:
    assert specs.pool_sizes("res9", (side, side, 3)) == sizes
    for size in sizes:
        assert side % size == 0
        side //= size
    assert side == 1


def test_the_wide_network_has_no_pools_and_takes_any_size() -> None:
    assert specs.pool_sizes("wres28x2", (20, 28, 1)) == ()


@pytest.mark.parametrize("shape", [(20, 20, 3), (32, 96, 3)])
def test_an_image_size_without_pools_is_refused(shape: tuple) -> None:
    found = f"{shape[0]}x{shape[1]}"
    with pytest.raises(ValueError, match=f"{found}; its pools fit 8x8, 32x32, 96x96"):
        specs.pool_sizes("res18", shape)


def test_unknown_names_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="^--model=vgg is unknown.*res9.*$") as error:
        specs.network_spec("vgg")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="^--bn_type=ln is unknown.*sbn.*$"):
        specs.check_norm("ln")
