"""The networks as frozen specs: what is built, without building it.

A network is a sequence of steps. A new one is one more entry of `MODELS`; the builder
knows the kinds of step, not the networks. Nothing heavy is imported here, so that help
texts and dry runs stay quick.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping, Optional, Tuple, Union

import attr

NORMS = ("none", "bn", "gn", "sbn")

# Pool sizes of the four stages, by the side of the square images: each product
# brings the image down to a single position, so flattening gives the channels.
_POOL_SIZES: Mapping[int, Tuple[int, int, int, int]] = MappingProxyType(
    {8: (2, 2, 2, 1), 32: (2, 2, 2, 4), 96: (3, 2, 4, 4)}
)


@attr.frozen
class Conv:
    """A 3x3 convolution with bias, norm and ReLU, then perhaps a pool.

    Attributes:
        width: Number of output channels.
        pool_stage: Which of the four pools (1 to 4) follows; None for no pool.
    """

    width: int
    pool_stage: Optional[int] = None


@attr.frozen
class Residual:
    """A chain of `Conv` blocks whose input is added after the last ReLU.

    Attributes:
        width: Number of channels of the input and of every convolution.
        length: Number of convolutions in the chain.
        pool_stage: Which of the four pools (1 to 4) follows the sum; None for no pool.
    """

    width: int
    length: int = 2
    pool_stage: Optional[int] = None


@attr.frozen
class Projection:
    """A 1x1 convolution with bias, without norm or activation.

    Attributes:
        width: Number of output channels.
    """

    width: int


@attr.frozen
class WideStem:
    """The bare 3x3 convolution in front of a wide network's groups.

    Attributes:
        width: Number of output channels.
    """

    width: int


@attr.frozen
class WideGroup:
    """A group of pre-activation residual blocks of a wide residual network.

    Attributes:
        width: Number of output channels.
        blocks: Number of residual blocks, of two convolutions each.
        stride: Stride of the first convolution of the first block.
        shared_activation: Whether the first block's shortcut starts behind the norm
            and activation (as the branch does) instead of in front of them.
    """

    width: int
    blocks: int
    stride: int
    shared_activation: bool = False


@attr.frozen
class WideTail:
    """The last norm and activation of a wide network, then the mean over positions.

    Attributes:
        width: Number of channels of the input.
    """

    width: int


Step = Union[Conv, Residual, Projection, WideStem, WideGroup, WideTail]


@attr.frozen
class NetworkSpec:
    """A network up to its embedding; the builder adds the dense layer if asked for.

    Attributes:
        steps: The parts in the order in which an image passes through them.
        description: One line for help texts.
    """

    steps: Tuple[Step, ...]
    description: str

    @property
    def embedding_size(self) -> int:
        """Number of values in an image's embedding."""
        return self.steps[-1].width

    @property
    def pooled(self) -> bool:
        """Whether the network has pools, which fit certain image sizes only."""
        return any(getattr(step, "pool_stage", None) for step in self.steps)


_RES9_STEPS: Tuple[Step, ...] = (
    Conv(64),
    Conv(128, pool_stage=1),
    Residual(128),
    Conv(256, pool_stage=2),
    Conv(512, pool_stage=3),
    Residual(512, pool_stage=4),
)

_RES18_STEPS: Tuple[Step, ...] = (
    Conv(64),
    Residual(64),
    Residual(64),
    Conv(128, pool_stage=1),
    Residual(128, length=1),
    Residual(128),
    Conv(256, pool_stage=2),
    Residual(256, length=1),
    Residual(256),
    Conv(512, pool_stage=3),
    Residual(512, length=1),
    Residual(512, pool_stage=4),
)

# WRN-28-2 of the semi-supervised literature (Oliver et al. 2018, MixMatch, FixMatch),
# where only the very first block shares its activation with the shortcut.
_WRES28X2_STEPS: Tuple[Step, ...] = (
    WideStem(16),
    WideGroup(32, blocks=4, stride=1, shared_activation=True),
    WideGroup(64, blocks=4, stride=2),
    WideGroup(128, blocks=4, stride=2),
    WideTail(128),
)

MODELS: Mapping[str, NetworkSpec] = MappingProxyType(
    {
        "res9": NetworkSpec(_RES9_STEPS, "ResNet9; ResNet8 without the dense layer"),
        "res18": NetworkSpec(
            _RES18_STEPS, "ResNet18; ResNet17 without the dense layer"
        ),
        "res9_256d": NetworkSpec(
            _RES9_STEPS + (Projection(256),), "ResNet9 with embeddings of 256 values"
        ),
        "wres28x2": NetworkSpec(_WRES28X2_STEPS, "Wide ResNet-28-2"),
    }
)


def network_spec(name: str) -> NetworkSpec:
    """Returns the spec of a network.

    Raises:
        ValueError: If there is no network of that name.
    """
    if name not in MODELS:
        raise ValueError(f"--model={name} is unknown; choose from {', '.join(MODELS)}.")
    return MODELS[name]


def embedding_size(name: str) -> int:
    """Returns D, the number of values in an image's embedding."""
    return network_spec(name).embedding_size


def check_norm(norm: str) -> str:
    """Returns `norm` if there is such a normalisation.

    Raises:
        ValueError: If there is none of that name.
    """
    if norm not in NORMS:
        raise ValueError(
            f"--bn_type={norm} is unknown; choose from {', '.join(NORMS)}."
        )
    return norm


def pool_sizes(name: str, image_shape: Tuple[int, int, int]) -> Tuple[int, ...]:
    """Returns the sizes of a network's pools, stage by stage.

    A size of 1 means that the stage has no pool.

    Args:
        name: A key of `MODELS`.
        image_shape: Height, width and channels of an image.

    Raises:
        ValueError: If the network has pools and they do not fit images of this size.
    """
    if not network_spec(name).pooled:
        return ()
    height, width = image_shape[:2]
    if height != width or height not in _POOL_SIZES:
        known = ", ".join(f"{side}x{side}" for side in sorted(_POOL_SIZES))
        raise ValueError(
            f"--model={name} cannot take images of {height}x{width}; "
            f"its pools fit {known}."
        )
    return _POOL_SIZES[height]
