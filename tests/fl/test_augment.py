"""Tests of the augmentations: known images, Pillow's results, limits, repetition."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from fl import augment

SEED = tf.constant([3, 4], tf.int32)
OTHER_SEED = tf.constant([3, 5], tf.int32)
LEVEL = 1.0 / 255.0


def photographs(count: int = 6, side: int = 32, channels: int = 3) -> np.ndarray:
    """Images of 8-bit values with edges, slopes and noise, each of another range."""
    rng = np.random.default_rng(side * 10 + channels)
    down, right = np.meshgrid(*[np.linspace(0, 1, side)] * 2, indexing="ij")
    steep = rng.uniform(0.2, 0.4, (2, count, 1, 1, channels))
    images = steep[0] * down[..., None] + steep[1] * right[..., None]
    images[:, side // 4 : side // 2, side // 4 :] += 0.1
    images += rng.uniform(0, 0.1, images.shape)
    return (np.rint(images * 255) / 255).astype(np.float32)


def point(side: int, row: int, column: int) -> np.ndarray:
    """One black image with one white pixel."""
    image = np.zeros((1, side, side, 1), np.float32)
    image[0, row, column] = 1.0
    return image


def amounts(*values: float) -> tf.Tensor:
    return tf.constant(values, tf.float32)


def to_pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(image * 255).astype(np.uint8))


def pillow(change: Callable[[Image.Image], Image.Image], images: Any) -> np.ndarray:
    """What Pillow makes of each image."""
    changed = [np.asarray(change(to_pillow(image))) for image in images]
    return np.stack(changed).astype(np.float32) / 255


# --- Augmentations that draw --------------------------------------------------
def test_flip_mirrors_about_half_of_the_images() -> None:
    """Each is itself or its mirror; of 400, half within 5 deviations of 10."""
    images = photographs(400, side=8, channels=1)
    flipped = augment.flip(images, SEED).numpy()
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    kept = (flipped == images).all((1, 2, 3))
    assert (mirrored ^ kept).all()
    assert 150 < mirrored.sum() < 250


def test_translate_moves_the_mass_within_bounds_on_both_axes() -> None:
    """Bilinear shifts move the centre of mass of an inner point by the shift itself.

    Up to 0.125 * 32 = 4 pixels either way, not in whole pixels; 200 draws come near to
    the bounds.
    """
    images = np.repeat(point(32, 15, 16), 200, axis=0)
    moved = augment.translate(images, SEED, fill=0.0).numpy()[..., 0]
    np.testing.assert_allclose(moved.sum((1, 2)), 1.0, atol=1e-5)
    for shift in (moved.sum(2) @ np.arange(32) - 15, moved.sum(1) @ np.arange(32) - 16):
        assert np.abs(shift).max() <= 4.0 + 1e-4
        assert shift.min() < -3.5 < 3.5 < shift.max()
        assert (np.abs(shift - np.rint(shift)) > 0.05).mean() > 0.5


def test_translate_fills_what_comes_in() -> None:
    """Of white images under fill 0.5, no pixel falls below it, and edges do."""
    moved = augment.translate(np.ones((20, 32, 32, 3), np.float32), SEED).numpy()
    assert moved.min() == 0.5
    assert (moved[:, 8:-8, 8:-8] == 1.0).all()


@pytest.mark.parametrize(("side", "margin"), [(8, 1), (32, 4), (96, 12)])
@pytest.mark.parametrize("reflect", [False, True])
def test_pad_and_crop_is_a_window_of_the_padded_image(
    side: int, margin: int, reflect: bool
) -> None:
    """Each result is one of the (2 margin + 1)^2 windows; the margin is 4 of 32."""
    images = photographs(12, side, 1)
    found = augment.pad_and_crop(images, SEED, reflect=reflect).numpy()
    frame = ((0, 0), (margin, margin), (margin, margin), (0, 0))
    padded = np.pad(images, frame, "reflect" if reflect else "constant")
    steps = range(2 * margin + 1)
    places = [
        (row, column)
        for image, whole in zip(found, padded)
        for row, column in itertools.product(steps, steps)
        if np.array_equal(whole[row : row + side, column : column + side], image)
    ]
    assert len(places) == len(images)
    assert len({row for row, _ in places}) > 1
    assert len({column for _, column in places}) > 1


@pytest.mark.parametrize("side", [8, 32])
def test_cutout_covers_a_clipped_square_of_half_the_side(side: int) -> None:
    """Covered rows and columns are runs of side/4 (centre at 0) to side/2 pixels."""
    images = np.ones((300, side, side, 3), np.float32)
    covered = augment.cutout(images, SEED).numpy() == 0.5
    assert (covered == covered[..., :1]).all()
    rows, columns = covered[..., 0].any(2), covered[..., 0].any(1)
    np.testing.assert_array_equal(
        covered[..., 0], rows[:, :, None] & columns[:, None, :]
    )
    for line in (rows, columns):
        starts = np.diff(line.astype(int), axis=1, prepend=0) == 1
        assert (starts.sum(1) == 1).all()
        assert set(line.sum(1)) == set(range(side // 4, side // 2 + 1))
        assert line.any(0).all()


def test_zoom_of_a_slope_is_the_slope_of_what_is_left() -> None:
    """Pixel x, centre (x + 1/2) / 32 of the new width, lies at l + that (1 - l - r).

    In pixels of the old image: 32 l + (x + 1/2)(1 - l - r) - 1/2, where the slope's
    value is that over 31. The same for rows, with their own draws.
    """
    slope = np.linspace(0, 1, 32, dtype=np.float32)[None, None, :, None]
    images = np.broadcast_to(slope, (20, 32, 32, 1))
    cuts = tf.random.stateless_uniform([4, 20, 1], SEED, 0.0, 0.1).numpy()
    centers = np.arange(1, 31) + 0.5
    across = augment.zoom(images, SEED, 0.1)[:, 16, 1:-1, 0]
    along = augment.zoom(images.swapaxes(1, 2), SEED, 0.1)[:, 1:-1, 16, 0]
    for line, start, end in ((across, *cuts[:2]), (along, *cuts[2:])):
        expected = (32 * start + centers * (1 - start - end) - 0.5) / 31
        np.testing.assert_allclose(line, expected, atol=1e-5)


@pytest.mark.parametrize(
    "nothing",
    [
        lambda x: augment.translate(x, SEED, fraction=0.0),
        lambda x: augment.pad_and_crop(x, SEED, padding=0),
        lambda x: augment.zoom(x, SEED, 0.0),
        lambda x: augment.cutout(x, SEED, fraction=0.0),
        lambda x: augment.rand_augment(x, SEED, num_ops=0),
    ],
)
def test_nothing_of_it_changes_nothing(nothing: Callable[[Any], Any]) -> None:
    images = photographs()
    np.testing.assert_array_equal(nothing(images), images)


# --- Operations ---------------------------------------------------------------
MAGNITUDE_FREE = ("autocontrast", "equalize")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted({*augment.OPERATIONS} - {*MAGNITUDE_FREE}))
def test_magnitude_0_is_the_identity(name: str, channels: int) -> None:
    images = photographs(channels=channels)
    found = augment.apply_operation(name, images, amounts(*[1.0, -1.0] * 3), 0)
    np.testing.assert_allclose(found, images, atol=1e-7)


@pytest.mark.parametrize("name", sorted({*augment.OPERATIONS} - {"identity"}))
def test_magnitude_15_is_not_the_identity(name: str) -> None:
    images = photographs()
    found = augment.apply_operation(name, images, amounts(*[1.0, -1.0] * 3), 15)
    changed = (np.abs(found - images) > LEVEL / 2).any((1, 2, 3))
    assert changed.all()


def test_the_fourteen() -> None:
    assert len(augment.OPERATIONS) == 14


def test_amounts_at_half_magnitude_are_half_of_the_most() -> None:
    """Brightness at 15 of 30: factors 1 + 0.45 and 1 - 0.45; solarize ignores signs."""
    images = np.full((2, 8, 8, 1), 0.6, np.float32)
    signs = amounts(1.0, -1.0)
    bright = augment.apply_operation("brightness", images, signs, 15).numpy()
    np.testing.assert_allclose(bright[:, 0, 0, 0], [0.87, 0.33], rtol=1e-6)
    inverted = augment.apply_operation("solarize", images, signs, 15).numpy()
    np.testing.assert_allclose(inverted, 0.4, rtol=1e-6)


def test_autocontrast_stretches_each_channel() -> None:
    """(x - 0.2) / 0.4 for a channel from 0.2 to 0.6; a flat channel stays."""
    image = np.full((1, 8, 8, 2), 0.3, np.float32)
    image[0, :, :, 0] = np.linspace(0.2, 0.6, 64).reshape(8, 8)
    found = augment.autocontrast(image, amounts(0.0)).numpy()
    np.testing.assert_allclose(found[0, :, :, 0].ravel(), np.linspace(0, 1, 64), 1e-5)
    np.testing.assert_array_equal(found[..., 1], image[..., 1])


def test_autocontrast_is_pillows_within_its_rounding() -> None:
    images = photographs()
    found = augment.autocontrast(images, amounts(*[0.0] * 6))
    np.testing.assert_allclose(found, pillow(ImageOps.autocontrast, images), atol=LEVEL)


def numpy_equalize(channel: np.ndarray) -> np.ndarray:
    """By definition: pixels below, over a step of (P - pixels at the largest) / 255."""
    step = (channel.size - (channel == channel.max()).sum()) // 255
    if step == 0:
        return channel
    below = np.array([(channel < value).sum() for value in channel.ravel()])
    return np.minimum((below + step // 2) // step, 255).reshape(channel.shape)


def test_equalize_is_the_definition_and_pillows_exactly() -> None:
    images = photographs()
    found = augment.equalize(images, amounts(*[0.0] * 6)).numpy()
    levels = np.rint(images * 255).astype(int)
    expected = np.stack(
        [[numpy_equalize(image[..., c]) for c in range(3)] for image in levels]
    ).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(np.rint(found * 255), expected)
    np.testing.assert_allclose(found, pillow(ImageOps.equalize, images), atol=1e-6)


def test_equalize_keeps_small_and_flat_images() -> None:
    """64 pixels make a step of 0; so does one value alone."""
    small = photographs(side=8)
    np.testing.assert_allclose(augment.equalize(small, amounts(*[0.0] * 6)), small)
    flat = np.full((1, 32, 32, 3), 0.2, np.float32)
    np.testing.assert_allclose(augment.equalize(flat, amounts(0.0)), flat)


def test_rotate_by_90_degrees_is_a_quarter_turn_to_the_left() -> None:
    images = photographs(2)
    left = augment.rotate(images, amounts(90.0, -90.0)).numpy()
    np.testing.assert_allclose(left[0], np.rot90(images[0]), atol=1e-4)
    np.testing.assert_allclose(left[1], np.rot90(images[1], -1), atol=1e-4)


def test_rotate_by_45_degrees_fills_the_corners_only() -> None:
    """The corners come from outside; the inscribed circle of radius 4 from inside."""
    turned = augment.rotate(np.ones((1, 8, 8, 1), np.float32), amounts(45.0), 0.25)
    assert turned[0, 0, 0, 0] == turned[0, -1, -1, 0] == 0.25
    np.testing.assert_allclose(turned[0, 2:6, 2:6], 1.0, rtol=1e-6)


def test_solarize_inverts_from_the_threshold_on() -> None:
    """Amount 56: threshold 200. 199 stays, 200 becomes 55. All at 256, none at 0."""
    image = np.array([0, 199, 200, 255], np.float32).reshape(1, 2, 2, 1) / 255
    images = np.repeat(image, 3, axis=0)
    found = augment.solarize(images, amounts(56.0, 256.0, 0.0)).numpy() * 255
    expected = [[0, 199, 55, 0], [255, 56, 55, 0], [0, 199, 200, 255]]
    np.testing.assert_allclose(found.reshape(3, 4), expected, atol=1e-4)


def test_solarize_is_pillows() -> None:
    images = photographs()
    found = augment.solarize(images, amounts(*[128.0] * 6))
    expected = pillow(lambda image: ImageOps.solarize(image, 128), images)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("amount", "bits"), [(0, 8), (1, 7), (1.4, 7), (4, 4)])
def test_posterize_drops_the_lowest_bits(amount: float, bits: int) -> None:
    """All 256 values, and Pillow's result; e.g. 0b11111111 becomes 0b11110000."""
    image = (np.arange(256, dtype=np.float32) / 255).reshape(1, 16, 16, 1)
    found = np.rint(augment.posterize(image, amounts(amount)).numpy() * 255).ravel()
    dropped = 8 - bits
    np.testing.assert_array_equal(found, np.arange(256) >> dropped << dropped)
    photos = photographs()
    expected = pillow(lambda one: ImageOps.posterize(one, bits), photos)
    found = augment.posterize(photos, amounts(*[amount] * 6)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.0, 1.9])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_blends_are_pillows_within_its_rounding(name: str, factor: float) -> None:
    """Pillow rounds gray (1/2 level), scales that error, and cuts: 2 levels in all."""
    images = photographs()
    enhancer = getattr(ImageEnhance, name.title())
    expected = pillow(lambda image: enhancer(image).enhance(factor), images)
    operation = augment.OPERATIONS[name].apply
    found = operation(images, amounts(*[factor - 1.0] * 6))
    np.testing.assert_allclose(found, expected, atol=2.01 * LEVEL)


def test_blends_against_their_formulas() -> None:
    """base + f (x - base), f = 1.5, clipped; base is gray, its mean, 0."""
    images = photographs()
    gray = images @ np.array([0.299, 0.587, 0.114], np.float32)
    bases = {
        "color": gray[..., None],
        "contrast": gray.mean((1, 2))[:, None, None, None],
        "brightness": 0.0,
    }
    for name, base in bases.items():
        found = augment.OPERATIONS[name].apply(images, amounts(*[0.5] * 6))
        expected = np.clip(base + 1.5 * (images - base), 0, 1)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)


def test_sharpness_minus_one_is_the_smoothing_kernel() -> None:
    """A white point becomes 5/13, its neighbours 1/13; on the border it stays."""
    found = augment.sharpness(point(8, 4, 3), amounts(-1.0)).numpy()[0, ..., 0]
    expected = np.zeros((8, 8))
    expected[3:6, 2:5] = 1 / 13
    expected[4, 3] = 5 / 13
    np.testing.assert_allclose(found, expected, atol=1e-6)
    border = augment.sharpness(point(8, 0, 3), amounts(-1.0)).numpy()[0, ..., 0]
    np.testing.assert_allclose(border[0], np.eye(8)[3], atol=1e-6)


def test_color_leaves_one_channel_alone() -> None:
    images = photographs(channels=1)
    found = augment.color(images, amounts(*[0.9, -0.9] * 3))
    np.testing.assert_array_equal(found, images)


def test_shears_move_a_point_by_its_distance_from_the_edge() -> None:
    """Row 5's centre is 5.5 from the edge: 0.4 * 5.5 = 2.2 pixels; row 0's 0.2."""
    images = np.concatenate([point(16, 5, 10), point(16, 0, 10)])
    sheared = augment.shear_x(images, amounts(0.4, 0.4), 0.0).numpy()[..., 0]
    np.testing.assert_allclose(sheared[0, 5, 7:9], [0.2, 0.8], atol=1e-5)
    np.testing.assert_allclose(sheared[1, 0, 9:11], [0.2, 0.8], atol=1e-5)
    turned = augment.shear_y(images.swapaxes(1, 2), amounts(0.4, 0.4), 0.0)
    np.testing.assert_allclose(turned.numpy()[..., 0], sheared.swapaxes(1, 2))


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_shears_are_pillows_inside(name: str) -> None:
    images = photographs(side=32)
    terms = (1, 0.3, 0, 0, 1, 0) if name == "shear_x" else (1, 0, 0, 0.3, 1, 0)
    expected = pillow(
        lambda image: image.transform(
            image.size, Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR
        ),
        images,
    )
    found = augment.OPERATIONS[name].apply(images, amounts(*[0.3] * 6)).numpy()
    inside = np.s_[:, 1:20, 1:20]
    np.testing.assert_allclose(found[inside], expected[inside], atol=1.01 * LEVEL)


def test_translations_move_a_point_right_and_down() -> None:
    """0.25 of 8 pixels are 2; 0.3125 are 2.5, half each on two pixels."""
    images = np.repeat(point(8, 3, 4), 3, axis=0)
    shift = amounts(0.25, -0.25, 0.3125)
    right = augment.translate_x(images, shift, 0.0).numpy()[..., 0]
    np.testing.assert_allclose(right[0], point(8, 3, 6)[0, ..., 0], atol=1e-6)
    np.testing.assert_allclose(right[1], point(8, 3, 2)[0, ..., 0], atol=1e-6)
    np.testing.assert_allclose(right[2, 3, 5:], [0, 0.5, 0.5], atol=1e-6)
    down = augment.translate_y(images, shift, 0.0).numpy()[..., 0]
    np.testing.assert_allclose(down[0], point(8, 5, 4)[0, ..., 0], atol=1e-6)
    assert augment.translate_x(images, shift, 0.75).numpy()[0, 0, 0, 0] == 0.75


# --- RandAugment --------------------------------------------------------------
def matches(images: np.ndarray, found: np.ndarray, magnitude: float) -> np.ndarray:
    """Whether each result is what an operation makes of its image: [28, B]."""
    signs = [tf.fill([len(images)], sign) for sign in (1.0, -1.0)]
    made = [
        np.asarray(augment.apply_operation(name, images, sign, magnitude))
        for name in augment.OPERATIONS
        for sign in signs
    ]
    return np.stack([np.abs(one - found).max((1, 2, 3)) < 1e-6 for one in made])


def test_one_slot_applies_one_operation_to_each_image_and_all_occur() -> None:
    """Each image is an operation's result, in its own place, each about B/14 times.

    Of 700 draws 50 are expected of each; a deviation is 6.8. Signed operations occur
    with both signs, 25 expected, a deviation 4.9.
    """
    images = photographs(700, side=32)
    found = augment.rand_augment(images, SEED, num_ops=1, magnitude=11).numpy()
    made = matches(images, found, 11)
    assert made.any(0).all()
    counts = dict(zip(augment.OPERATIONS, made.reshape(14, 2, -1).sum(2)))
    for name, (plus, minus) in counts.items():
        if augment.OPERATIONS[name].signed:
            assert 5 < plus < 45, name
            assert 5 < minus < 45, name
        else:
            assert plus == minus, name
            assert 20 < plus < 80, name


def test_two_slots_are_one_after_the_other() -> None:
    """The second slot works on the first one's result, with a seed of its own."""
    images = photographs(20)
    seeds = tf.random.experimental.stateless_split(SEED, 2)
    twice = images
    for seed in tf.unstack(seeds):
        twice = augment._apply_one_each(twice, seed, 9, 0.5)
    found = augment.rand_augment(images, SEED, num_ops=2, magnitude=9)
    np.testing.assert_array_equal(found, twice)
    assert not matches(images, found.numpy(), 9).any(0).all()


def test_fill_reaches_the_operations() -> None:
    """White images: only fill 0.25 can make such pixels among the shifts."""
    images = np.ones((60, 8, 8, 1), np.float32)
    found = augment.rand_augment(images, SEED, 1, 20, fill=0.25).numpy()
    assert (found[:, 0, 0] == 0.25).any()
    assert not (found == 0.5).any()


# --- All kinds ----------------------------------------------------------------
@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", augment.KINDS)
def test_kinds_keep_shape_and_range(name: str, channels: int, side: int) -> None:
    images = photographs(20, side, channels)
    images[0], images[1] = 0.0, 1.0
    found = augment.KINDS[name](images, SEED)
    assert found.dtype == tf.float32
    assert found.shape == images.shape
    assert 0.0 <= found.numpy().min() <= found.numpy().max() <= 1.0


@pytest.mark.parametrize("name", augment.KINDS)
def test_kinds_repeat_by_seed_and_differ_by_seed_and_image(name: str) -> None:
    """The global seed has no say; equal images of a batch become unequal ones."""
    images = np.repeat(photographs(1), 20, axis=0)
    kind = augment.KINDS[name]
    tf.random.set_seed(1)
    first = kind(images, SEED).numpy()
    tf.random.set_seed(2)
    np.testing.assert_array_equal(first, kind(images, SEED))
    assert (first != kind(images, OTHER_SEED).numpy()).any()
    assert (first != first[:1]).any()


@pytest.mark.parametrize("name", augment.KINDS)
def test_kinds_take_an_empty_batch(name: str) -> None:
    empty = np.zeros((0, 8, 8, 1), np.float32)
    assert augment.KINDS[name](empty, SEED).shape == empty.shape


def test_views_are_made_of_their_parts() -> None:
    """White images: FedRGD's view covers a square, the weak one nothing.

    Photographs: the others are their parts one after the other, each with its seed.
    """
    images = np.ones((30, 32, 32, 3), np.float32)
    assert (augment.weak_crop(images, SEED).numpy() == 1.0).all()
    covered = augment.strong_fedrgd(images, SEED).numpy() == 0.5
    assert (covered.sum((1, 2, 3)) >= 3 * 8 * 8).all()
    photos = photographs()
    first, second = tf.unstack(tf.random.experimental.stateless_split(SEED, 2))
    expected = augment.translate(augment.flip(photos, first), second)
    np.testing.assert_array_equal(augment.weak(photos, SEED), expected)
    seeds = tf.unstack(tf.random.experimental.stateless_split(SEED, 3))
    expected = augment.zoom(augment.flip(photos, seeds[0]), seeds[1], 14 / 224)
    expected = augment.rand_augment(expected, seeds[2], 2, 14)
    np.testing.assert_array_equal(augment.strong_fixmatch(photos, SEED), expected)


def test_runs_in_the_worker_and_repeats_bit_for_bit(worker: Any) -> None:
    """Kinds that hold all others, in TFF's process, on a batch of unknown size.

    Same seed, same bits; the graph holds no draw of its own. Outside, other kernels may
    differ in the last bits, which rounding to levels can turn into a level.
    """
    import tensorflow_federated as tff

    names = ("weak", "strong_fixmatch", "strong_fedrgd")
    run = tff.tensorflow.computation(
        tf.function(lambda x, seed: [augment.KINDS[name](x, seed) for name in names]),
        tff.TensorType(np.float32, [None, 32, 32, 3]),
        tff.TensorType(np.int32, [2]),
    )
    images = photographs(40)
    first, again = run(images, SEED.numpy()), run(images, SEED.numpy())
    other = run(images[:7], OTHER_SEED.numpy())
    for name, one, two, three in zip(names, first, again, other):
        np.testing.assert_array_equal(one, two, err_msg=name)
        outside = augment.KINDS[name](images, SEED).numpy()
        assert (np.abs(one - outside) < 1e-5).mean() > 0.99, name
        assert (one[:7] != three).any(), name
