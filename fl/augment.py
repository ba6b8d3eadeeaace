"""Image augmentations of the semi-supervised baselines, as seeded TensorFlow maths.

Clients train inside TFF's graph in a process of its own, and a run must repeat. The
libraries of the field do not fit there: imgaug and torchvision work on NumPy or PyTorch
images outside the graph; Keras 2.14's preprocessing layers draw from a state that is
not handed in; KerasCV and TensorFlow Addons fit neither the pinned versions nor the
worker, which knows TensorFlow's core operations only. So these are our own.

Images are float32 [B, H, W, C] in [0, 1], square, with H, W and C known when traced;
what comes out has the same shape and range. An `Augmentation` takes a batch and a seed,
int32 [2], and draws for each image on its own: same seed, same result. An operation
of RandAugment (`OPERATIONS`) takes a batch and one amount per image, [B], and draws
nothing; amount 0 leaves 8-bit images as they are, but for the two operations that have
no strength, autocontrast and equalize.
"""

from __future__ import annotations

import functools
from typing import Callable, List

import attr
import tensorflow as tf

Augmentation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

MAX_MAGNITUDE = 30
GRAY = 0.5
# The side of the images that the published paddings, in pixels, were chosen for.
_PADDED_SIDE = 32
_LEVELS = 256
# ITU-R 601-2, by which Pillow turns RGB to gray.
_LUMA = (0.299, 0.587, 0.114)


# --- Augmentations that draw from a seed --------------------------------------
def flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Mirrors left and right, each image with probability 1/2."""
    chosen = tf.random.stateless_uniform([_count(images)], seed) < 0.5  # [B]
    return tf.where(_per_image(chosen), tf.reverse(images, axis=[2]), images)


def translate(
    images: tf.Tensor, seed: tf.Tensor, fraction: float = 0.125, fill: float = GRAY
) -> tf.Tensor:
    """Shifts continuously (bilinear) along both axes.

    Args:
        images: [B, H, W, C].
        seed: int32 [2].
        fraction: the largest shift either way, of the side; 0 shifts nothing.
        fill: the value of pixels that come in from outside.

    Returns:
        The shifted images.
    """
    shape = [2, _count(images)]
    right, down = tf.unstack(
        tf.random.stateless_uniform(shape, seed, -fraction, fraction)
    )
    return _translate(images, right, down, fill)


def pad_and_crop(
    images: tf.Tensor, seed: tf.Tensor, padding: int = 4, reflect: bool = False
) -> tf.Tensor:
    """Pads and cuts the old size out again at a random place, in whole pixels.

    Args:
        images: [B, H, W, C].
        seed: int32 [2].
        padding: pixels on each side of an image of side 32; in proportion for other
            sides, rounded (8: 1, 96: 12 for padding 4).
        reflect: pad with the mirrored image, as FixMatch's and FedRGD's programs ask
            for, instead of zeros, as torchvision does unless told.

    Returns:
        The shifted images.
    """
    side = images.shape[1]
    margin = round(padding * side / _PADDED_SIDE)
    shape = [2, _count(images), 1]
    shifts = tf.random.stateless_uniform(shape, seed, -margin, margin + 1, tf.int32)
    wanted = shifts + tf.range(side)  # [2, B, side]
    # Looked up rather than padded: TensorFlow reflects no empty batch.
    rows, columns = tf.unstack(side - 1 - tf.abs(side - 1 - tf.abs(wanted)))
    found = tf.gather(images, rows, axis=1, batch_dims=1)
    found = tf.gather(found, columns, axis=2, batch_dims=1)
    if reflect:
        return found
    return tf.where(_rectangle((wanted >= 0) & (wanted < side)), found, 0.0)


def zoom(images: tf.Tensor, seed: tf.Tensor, fraction: float) -> tf.Tensor:
    """Cuts up to `fraction` of the side off each edge and stretches the rest back."""
    side = float(images.shape[1])
    shape = [4, _count(images)]
    left, right, top, bottom = tf.unstack(
        tf.random.stateless_uniform(shape, seed, 0.0, fraction)
    )
    wide, high = 1.0 - left - right, 1.0 - top - bottom
    # Pixel centres lie half a pixel inside, before and after the stretch.
    shift_x = left * side + 0.5 * wide - 0.5
    shift_y = top * side + 0.5 * high - 0.5
    zero = tf.zeros_like(wide)
    rows = [wide, zero, shift_x, zero, high, shift_y]
    return _affine(images, rows, GRAY, fill_mode="NEAREST")


def cutout(
    images: tf.Tensor, seed: tf.Tensor, fraction: float = 0.5, fill: float = GRAY
) -> tf.Tensor:
    """Covers one square in each image, as far as it lies inside.

    Args:
        images: [B, H, W, C].
        seed: int32 [2].
        fraction: the square's side, of the image's; 0 covers nothing.
        fill: the value of covered pixels.

    Returns:
        The images with a square around a pixel drawn uniformly.
    """
    side = images.shape[1]
    size = round(side * fraction)
    shape = [2, _count(images), 1]
    centers = tf.random.stateless_uniform(shape, seed, 0, side, tf.int32)
    offsets = tf.range(side) - (centers - size // 2)  # [2, B, side]
    return tf.where(_rectangle((offsets >= 0) & (offsets < size)), fill, images)


def rand_augment(
    images: tf.Tensor,
    seed: tf.Tensor,
    num_ops: int = 2,
    magnitude: float = 10,
    fill: float = GRAY,
) -> tf.Tensor:
    """RandAugment of Cubuk et al. 2020.

    Args:
        images: [B, H, W, C].
        seed: int32 [2].
        num_ops: operations on each image, each drawn uniformly from `OPERATIONS`; 0
            changes nothing.
        magnitude: 0 to 30, for all operations.
        fill: the value of pixels that come in from outside.

    Returns:
        The augmented images.
    """
    for slot_seed in _split(seed, num_ops):
        images = _apply_one_each(images, slot_seed, magnitude, fill)
    return images


# --- Operations of RandAugment ------------------------------------------------
def identity(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """The images."""
    del amount
    return images


def autocontrast(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to reach from 0 to 1; one of a single value stays."""
    del amount
    low = tf.reduce_min(images, axis=[1, 2], keepdims=True)
    span = tf.reduce_max(images, axis=[1, 2], keepdims=True) - low
    flat = tf.equal(span, 0.0)
    return tf.where(flat, images, (images - low) / tf.where(flat, 1.0, span))


def equalize(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Spreads each channel's 8-bit values evenly, in Pillow's whole-number arithmetic.

    A value becomes the number of pixels below it over a step of 1/255 of all pixels
    (those of the largest value aside). Where the step is less than one pixel, as in
    all images of side 8, nothing changes.
    """
    del amount
    levels = tf.transpose(_to_levels(images), [0, 3, 1, 2])  # [B, C, H, W]
    shape = tf.shape(levels)
    flat = tf.reshape(levels, [-1, images.shape[1] * images.shape[2]])  # [B C, P]
    chosen = tf.gather(_equalizing_tables(flat), flat, batch_dims=1)
    spread = tf.transpose(tf.reshape(chosen, shape), [0, 2, 3, 1])
    return _from_levels(spread)


def rotate(images: tf.Tensor, amount: tf.Tensor, fill: float = GRAY) -> tf.Tensor:
    """Turns about the centre, counter-clockwise, by `amount` degrees."""
    angle = amount * (3.141592653589793 / 180.0)
    cos, sin = tf.cos(angle), tf.sin(angle)
    center = (images.shape[1] - 1) / 2.0
    shift_x = center - cos * center + sin * center
    shift_y = center - sin * center - cos * center
    return _affine(images, [cos, -sin, shift_x, sin, cos, shift_y], fill)


def solarize(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Inverts the pixels of an 8-bit value of at least 256 - `amount`."""
    threshold = (_LEVELS - _per_image(amount)) / (_LEVELS - 1)
    return tf.where(images >= threshold, 1.0 - images, images)


def color(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Scales the difference from gray by 1 + `amount`; one channel is all gray."""
    return _blend(_gray(images), images, amount)


def posterize(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Sets the lowest bits of the 8-bit values to 0, `amount` of them, rounded."""
    step = tf.bitwise.left_shift(1, tf.cast(tf.round(_per_image(amount)), tf.int32))
    levels = _to_levels(images)
    return _from_levels(levels - tf.math.floormod(levels, step))


def contrast(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Scales the difference from the image's mean gray by 1 + `amount`."""
    mean = tf.reduce_mean(_gray(images), axis=[1, 2, 3], keepdims=True)
    return _blend(mean, images, amount)


def brightness(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Scales the values by 1 + `amount`."""
    return _blend(tf.zeros_like(images), images, amount)


def sharpness(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Scales the difference from the smoothed image by 1 + `amount`.

    Smoothed as in Pillow: a pixel weighs 5, its eight neighbours 1; the border stays.
    """
    inner = images[:, 1:-1, 1:-1]
    neighborhood = tf.nn.avg_pool2d(images, 3, 1, "VALID") * 9.0
    change = (neighborhood + 4.0 * inner) / 13.0 - inner
    smooth = images + tf.pad(change, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return _blend(smooth, images, amount)


def shear_x(images: tf.Tensor, amount: tf.Tensor, fill: float = GRAY) -> tf.Tensor:
    """Shifts each row left by `amount` times its distance from the upper edge."""
    one, zero = tf.ones_like(amount), tf.zeros_like(amount)
    return _affine(images, [one, amount, amount / 2.0, zero, one, zero], fill)


def shear_y(images: tf.Tensor, amount: tf.Tensor, fill: float = GRAY) -> tf.Tensor:
    """Shifts each column up by `amount` times its distance from the left edge."""
    one, zero = tf.ones_like(amount), tf.zeros_like(amount)
    return _affine(images, [one, zero, zero, amount, one, amount / 2.0], fill)


def translate_x(images: tf.Tensor, amount: tf.Tensor, fill: float = GRAY) -> tf.Tensor:
    """Shifts right by `amount` of the side."""
    return _translate(images, amount, tf.zeros_like(amount), fill)


def translate_y(images: tf.Tensor, amount: tf.Tensor, fill: float = GRAY) -> tf.Tensor:
    """Shifts down by `amount` of the side."""
    return _translate(images, tf.zeros_like(amount), amount, fill)


@attr.frozen
class Operation:
    """An operation of RandAugment and how strong it gets.

    Attributes:
        apply: (images, amounts) -> images, and a value to fill with where `fills`.
        most: the amount at magnitude 30; smaller magnitudes in proportion.
        signed: whether either sign is as likely.
        fills: whether pixels come in from outside.
    """

    apply: Callable[..., tf.Tensor]
    most: float = 0.0
    signed: bool = False
    fills: bool = False


# Published programs agree on these but for details; the amounts are FixMatch's
# (Sohn et al. 2020), the sign of the four blends is imgaug's and torchvision's, so that
# magnitude 0 changes nothing.
OPERATIONS: dict[str, Operation] = {
    "identity": Operation(identity),
    "autocontrast": Operation(autocontrast),
    "equalize": Operation(equalize),
    "rotate": Operation(rotate, 30.0, signed=True, fills=True),
    "solarize": Operation(solarize, 256.0),
    "color": Operation(color, 0.9, signed=True),
    "posterize": Operation(posterize, 4.0),
    "contrast": Operation(contrast, 0.9, signed=True),
    "brightness": Operation(brightness, 0.9, signed=True),
    "sharpness": Operation(sharpness, 0.9, signed=True),
    "shear_x": Operation(shear_x, 0.3, signed=True, fills=True),
    "shear_y": Operation(shear_y, 0.3, signed=True, fills=True),
    "translate_x": Operation(translate_x, 0.3, signed=True, fills=True),
    "translate_y": Operation(translate_y, 0.3, signed=True, fills=True),
}


def apply_operation(
    name: str,
    images: tf.Tensor,
    signs: tf.Tensor,
    magnitude: float,
    fill: float = GRAY,
) -> tf.Tensor:
    """Applies one operation to all images at a magnitude of RandAugment.

    Args:
        name: in `OPERATIONS`.
        images: [B, H, W, C].
        signs: [B], 1 or -1; without effect on operations that have no sign.
        magnitude: 0 to 30.
        fill: the value of pixels that come in from outside.

    Returns:
        The changed images.
    """
    operation = OPERATIONS[name]
    amount = tf.ones_like(signs) * (operation.most * magnitude / MAX_MAGNITUDE)
    if operation.signed:
        amount *= signs
    if operation.fills:
        return operation.apply(images, amount, fill)
    return operation.apply(images, amount)


# --- What the methods use -----------------------------------------------------
def weak(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flip and translation: the weak view of the FixMatch scripts."""
    return _chain(images, seed, flip, translate)


def weak_crop(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flip and crop after reflecting padding: FedRGD and FixMatch as published."""
    return _chain(images, seed, flip, functools.partial(pad_and_crop, reflect=True))


def strong_fixmatch(
    images: tf.Tensor, seed: tf.Tensor, magnitude: float = 14
) -> tf.Tensor:
    """The strong view of the FixMatch scripts: RandAugment on the unchanged image.

    Theirs, imgaug's, flips and zooms first (up to magnitude/224 off each edge), and so
    does this. It also knows inversion, cutout and two blurs, and draws no operation
    twice for an image; here the operations and the draw are the paper's.
    """
    return _chain(
        images,
        seed,
        flip,
        functools.partial(zoom, fraction=magnitude / 224.0),
        functools.partial(rand_augment, magnitude=magnitude),
    )


def strong_fedrgd(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """FedRGD's strong view: weak, RandAugment(2, 10) and a cutout of half the side.

    Their program counts magnitudes of 10, draws one from 1 to 9 for each operation,
    leaves it out with probability 1/2, and lets the four blends only weaken; here it is
    a fixed 10 of 30.
    """
    return _chain(images, seed, weak_crop, rand_augment, cutout)


def strong_fedmatch(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """FedMatch's strong view: RandAugment(2, 10).

    Their program applies six operations of small random magnitudes, up to 13 of 30, in
    ranges of its own (it rotates up to 360 degrees; its equalize does nothing).
    """
    return rand_augment(images, seed)


KINDS: dict[str, Augmentation] = {
    "flip": flip,
    "translate": translate,
    "pad_and_crop": pad_and_crop,
    "cutout": cutout,
    "rand_augment": rand_augment,
    "weak": weak,
    "weak_crop": weak_crop,
    "strong_fixmatch": strong_fixmatch,
    "strong_fixmatch_stl10": functools.partial(strong_fixmatch, magnitude=10),
    "strong_fedrgd": strong_fedrgd,
    "strong_fedmatch": strong_fedmatch,
}


# --- Parts --------------------------------------------------------------------
def _chain(images: tf.Tensor, seed: tf.Tensor, *steps: Augmentation) -> tf.Tensor:
    """One augmentation after the other, each with a seed of its own."""
    for step, step_seed in zip(steps, _split(seed, len(steps))):
        images = step(images, step_seed)
    return images


def _split(seed: tf.Tensor, count: int) -> List[tf.Tensor]:
    return tf.unstack(tf.random.experimental.stateless_split(seed, count), count)


def _apply_one_each(
    images: tf.Tensor, seed: tf.Tensor, magnitude: float, fill: float
) -> tf.Tensor:
    """One operation per image: each sees, in one batch, only the images it drew.

    The operations do not depend on each other, so TensorFlow runs them side by side.
    """
    count, kinds = _count(images), len(OPERATIONS)
    choice_seed, sign_seed = _split(seed, 2)
    choices = tf.random.stateless_uniform([count], choice_seed, 0, kinds, tf.int32)
    coins = tf.random.stateless_uniform([count], sign_seed, 0, 2, tf.int32)
    signs = tf.cast(2 * coins - 1, images.dtype)
    image_parts = tf.dynamic_partition(images, choices, kinds)
    sign_parts = tf.dynamic_partition(signs, choices, kinds)
    changed = [
        apply_operation(name, part, part_signs, magnitude, fill)
        for name, part, part_signs in zip(OPERATIONS, image_parts, sign_parts)
    ]
    places = tf.dynamic_partition(tf.range(count), choices, kinds)
    return tf.ensure_shape(tf.dynamic_stitch(places, changed), images.shape)


def _count(images: tf.Tensor) -> tf.Tensor:
    return tf.shape(images)[0]


def _per_image(values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1, 1, 1, 1])


def _rectangle(lines: tf.Tensor) -> tf.Tensor:
    """Where a row and a column meet: [2, B, side] -> [B, side, side, 1]."""
    rows, columns = tf.unstack(lines)
    return rows[:, :, tf.newaxis, tf.newaxis] & columns[:, tf.newaxis, :, tf.newaxis]


def _translate(
    images: tf.Tensor, right: tf.Tensor, down: tf.Tensor, fill: float
) -> tf.Tensor:
    side = float(images.shape[1])
    one, zero = tf.ones_like(right), tf.zeros_like(right)
    return _affine(images, [one, zero, -right * side, zero, one, -down * side], fill)


def _affine(
    images: tf.Tensor, rows: List[tf.Tensor], fill: float, fill_mode: str = "CONSTANT"
) -> tf.Tensor:
    """Takes the pixel (x, y) from (a x + b y + c, d x + e y + f), bilinearly.

    Args:
        images: [B, H, W, C].
        rows: a, b, c, d, e and f, [B] each; x runs to the right, y down.
        fill: the value outside.
        fill_mode: CONSTANT for `fill`, NEAREST to continue the border instead.

    Returns:
        The images moved.
    """
    no_perspective = tf.zeros_like(rows[0])
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([*rows, no_perspective, no_perspective], axis=1),
        output_shape=[images.shape[1], images.shape[2]],
        fill_value=tf.constant(fill, tf.float32),
        interpolation="BILINEAR",
        fill_mode=fill_mode,
    )
    return tf.clip_by_value(moved, 0.0, 1.0)


def _blend(base: tf.Tensor, images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Moves the images away from `base` by `amount` of their difference, or towards."""
    return tf.clip_by_value(images + _per_image(amount) * (images - base), 0.0, 1.0)


def _gray(images: tf.Tensor) -> tf.Tensor:
    if images.shape[-1] == len(_LUMA):
        return tf.reduce_sum(images * tf.constant(_LUMA), axis=-1, keepdims=True)
    return tf.reduce_mean(images, axis=-1, keepdims=True)


def _to_levels(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(images * (_LEVELS - 1)), tf.int32)


def _from_levels(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels, tf.float32) / (_LEVELS - 1)


def _equalizing_tables(flat: tf.Tensor) -> tf.Tensor:
    """What each level becomes, int32 [N, 256], of channels of levels [N, P]."""
    count = tf.shape(flat)[0]
    bins = flat + _LEVELS * tf.range(count)[:, tf.newaxis]
    counts = tf.reshape(
        tf.math.unsorted_segment_sum(tf.ones_like(bins), bins, _LEVELS * count),
        [-1, _LEVELS],
    )
    at_largest = tf.gather(counts, tf.reduce_max(flat, axis=1), batch_dims=1)
    steps = (tf.shape(flat)[1] - at_largest) // (_LEVELS - 1)  # [N]
    steps = steps[:, tf.newaxis]
    below = tf.cumsum(counts, axis=1, exclusive=True)
    tables = (below + steps // 2) // tf.maximum(steps, 1)
    unchanged = tf.range(_LEVELS)[tf.newaxis]
    return tf.where(steps > 0, tf.minimum(tables, _LEVELS - 1), unchanged)
