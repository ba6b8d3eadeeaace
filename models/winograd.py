"""3x3 convolutions with a quarter of the multiplications (Winograd 1980).

Four neighbouring outputs of a 3-tap correlation along a line take twelve products the
obvious way and six by Winograd's minimal filtering F(4, 3); a tile of 4x4 outputs of an
image takes 36 in place of 144 (Lavin & Gray 2016):

    y = A' [ (G g G') * (B' d B) ] A        d: 6x6 inputs, g: 3x3 kernel, y: 4x4 outputs

A, B and G are constant. The elementwise product becomes, over all images, tiles and
channels, 36 matrix products, which is where most of the time goes. Results are those
of `tf.nn.conv2d` but for rounding: the points below are such that the error in float32
is about twice that of oneDNN's own convolution.

Values are kept position by position, [row, column, image, channel], so that the
transformations along rows and along columns are plain matrix products too, with zero
padding inside their matrices; nothing is copied into tiles. The tiles of four rows, a
"band", pass through the 36 products by themselves, which keeps their values in cache.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import attr
import numpy as np
import tensorflow as tf

TILE = 4
TAPS = 3
# A polynomial of degree 5 is known by its values at six points; the sixth is infinity.
# Pairs of opposite signs and reciprocal sizes make small and even matrix entries.
POINTS = (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)
SPOTS = TILE + TAPS - 1
# With fewer channels the transformations cost more than the products save.
MIN_CHANNELS = 128


@attr.frozen(eq=False)
class Transform:
    """The constant matrices for images of S x S, T = S / 4 tiles along a side.

    Attributes:
        rows_in: [T * 6, S], rows of an image -> spots of each band.
        columns_in: [1, 6 * T, S], columns -> spots of each tile of a band.
        kernel: [36, 9], a kernel -> its spots.
        columns_out: [1, S, 6 * T], back from `columns_in`.
        rows_out: [S, T * 6], back from `rows_in`.
    """

    rows_in: np.ndarray
    columns_in: np.ndarray
    kernel: np.ndarray
    columns_out: np.ndarray
    rows_out: np.ndarray


def applies(images: Sequence[Any], kernel: Sequence[int], stride: int) -> bool:
    """Whether a convolution can be computed this way, and gains by it.

    Args:
        images: their shape, [N, H, W, C]; None where it is not known.
        kernel: its shape, [h, w, C, K].
        stride: of the convolution.
    """
    _, height, width, _ = images
    fits = tuple(kernel[:2]) == (TAPS, TAPS) and stride == 1
    tiled = height is not None and height == width and height % TILE == 0
    return fits and tiled and min(kernel[2:]) >= MIN_CHANNELS


def convolve(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """What `tf.nn.conv2d(images, kernel, 1, "SAME")` gives.

    Args:
        images: [N, S, S, C], S a multiple of 4.
        kernel: [3, 3, C, K].

    Returns:
        [N, S, S, K].
    """
    side, (inputs, outputs) = images.shape[1], kernel.shape[2:]
    matrices, tiles = transform(side), side // TILE
    number = tf.shape(images)[0]
    weights = tf.matmul(matrices.kernel, tf.reshape(kernel, [TAPS * TAPS, -1]))
    weights = tf.reshape(weights, [SPOTS * SPOTS, inputs, outputs])

    by_place = tf.transpose(images, [1, 2, 0, 3])  # [S, S, N, C]
    spots = tf.matmul(matrices.rows_in, tf.reshape(by_place, [side, -1]))
    bands = tf.unstack(tf.reshape(spots, [tiles, SPOTS, side, number * inputs]))
    made = []
    for band in bands:  # [6, S, N * C]
        band = tf.matmul(matrices.columns_in, band)  # [6, 6 * T, N * C]
        band = tf.reshape(band, [SPOTS * SPOTS, tiles * number, inputs])
        band = tf.matmul(band, weights)  # [36, T * N, K]
        band = tf.reshape(band, [SPOTS, SPOTS * tiles, number * outputs])
        made.append(tf.matmul(matrices.columns_out, band))  # [6, S, N * K]
    spots = tf.reshape(tf.stack(made), [tiles * SPOTS, side * number * outputs])
    by_place = tf.matmul(matrices.rows_out, spots)  # [S, S * N * K]
    by_place = tf.reshape(by_place, [side, side, number, outputs])
    return tf.transpose(by_place, [2, 0, 1, 3])


@functools.cache
def transform(side: int) -> Transform:
    """The matrices for images of a size; see `Transform`."""
    taps, spots_in, spots_out = minimal_filtering()
    tiles = side // TILE
    # Into tile t go the positions from 4 t - 1 on; those outside the image are zero.
    into = np.zeros([tiles, SPOTS, side + 2])
    back = np.zeros([tiles, SPOTS, side])
    for tile in range(tiles):
        start = tile * TILE
        into[tile, :, start : start + SPOTS] = spots_in
        back[tile, :, start : start + TILE] = spots_out
    into = into[:, :, 1:-1]
    by_spot_in, by_spot_out = into.swapaxes(0, 1), back.swapaxes(0, 1)
    return Transform(
        rows_in=_matrix(into, tiles * SPOTS, side),
        columns_in=_matrix(by_spot_in, 1, SPOTS * tiles, side),
        kernel=_matrix(np.kron(taps, taps), SPOTS**2, TAPS**2),
        columns_out=_matrix(by_spot_out, SPOTS * tiles, side).T[np.newaxis],
        rows_out=_matrix(back, tiles * SPOTS, side).T,
    )


def minimal_filtering() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F(4, 3): G [6, 3], B' [6, 6] and A [6, 4].

    Two polynomials g and h of 3 and 4 coefficients are multiplied by taking their
    values at six points, g by V3 and h by V4 (rows 1, p, p^2, ...; at infinity the last
    coefficient), then the products, then back by the inverse of V6. As a matrix that is
    applied to h, this is inv(V6) diag(V3 g) V4; the correlation of six inputs with g is
    its transpose, V4' diag(V3 g) inv(V6)'. So G = V3, B' = inv(V6)' and A = V4, where
    rows of G and B' may trade factors: powers of two here, so that both are alike.
    """
    taps, spots_out, inverse = (_values(n) for n in (TAPS, TILE, SPOTS))
    spots_in = np.linalg.inv(inverse).T
    gap = np.linalg.norm(taps, axis=1) / np.linalg.norm(spots_in, axis=1)
    factor = 2.0 ** np.round(np.log2(gap) / 2)[:, np.newaxis]
    return taps / factor, spots_in * factor, spots_out


def _values(coefficients: int) -> np.ndarray:
    """The matrix [6, n] from n coefficients to a polynomial's values at the points."""
    at_infinity = np.eye(coefficients)[-1:]
    finite = np.vander(np.array(POINTS), coefficients, increasing=True)
    return np.concatenate([finite, at_infinity])


def _matrix(values: np.ndarray, *shape: int) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(shape), np.float32)
