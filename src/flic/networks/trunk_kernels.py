"""Compiled kernels of the CNN's two convolutions; importing this file needs numba.

Images are arrays [rows, height, width, channels] of float32, a window is 2×2 pixels of which
pooling keeps the largest, and the 6×6 pixels that a window depends on are its tile.
"""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import numpy as np
from numba import njit

from flic.networks.lanes import WIDTH, load, plus, store
from flic.networks.trunk_sizes import FIRST, KERNEL, SECOND

TILE = KERNEL + 1
PATCH = 2 * WIDTH  # room for the first convolution's 25 weights of a channel
NEAR = 16  # windows that are handled together, so that all they need stays in the nearest cache
FRAME = (KERNEL + 2) * FIRST  # a row of a framed weight
# A plain number would make a kernel count in float64.
HALF, TWO = np.float32(0.5), np.float32(2)
ZEROS = np.zeros(WIDTH, np.float32)
# Winograd's Bᵀ, and the two rows of Aᵀ, for the points of `fused_trunk.G`.
B = np.array(
    [
        [1, -1.5, -2, 1.5, 1, 0],
        [0, -2, 1, 5, 2, 0],
        [0, -2, 5, -1, -2, 0],
        [0, 2, 1, -2, -1, 0],
        [0, 1, -2, -1, 2, 0],
        [0, 1, -1.5, -2, 1.5, 1],
    ],
    np.float32,
)
TOP = tuple(np.float32(value) for value in (1, 1, 1, 1, 1, 0))
BOTTOM = tuple(np.float32(value) for value in (0, 1, -1, 0.5, -2, 1))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile: sums in any order, products with sums in one instruction; NaN stays NaN."""
    flags = {"contract", "nsz", "reassoc"}
    # Unwrapped, since a checker of shapes may stand around every function.
    return njit(fastmath=flags, error_model="numpy", nogil=True)(unwrap(function))


@compiled
def first(image: Any, weight: Any, bias: Any, margin: int, hidden: Any, place: Any) -> None:
    """First convolution, the largest of each window, and its place."""
    rows, height, width = image.shape
    scores = np.empty(4 * FIRST, np.float32)
    for i in range(rows):
        for y in range(0, height - KERNEL, 2):
            for x in range(0, width - KERNEL, 2):
                for half in range(0, FIRST, WIDTH):
                    a = b = d = e = load(ZEROS, 0)
                    for v in range(KERNEL):
                        for u in range(KERNEL):
                            at = (v * KERNEL + u) * FIRST + half
                            a = plus(a, image[i, y + v, x + u], weight, at)
                            b = plus(b, image[i, y + v, x + u + 1], weight, at)
                            d = plus(d, image[i, y + v + 1, x + u], weight, at)
                            e = plus(e, image[i, y + v + 1, x + u + 1], weight, at)
                    store(scores, half, a)
                    store(scores, half + FIRST, b)
                    store(scores, half + 2 * FIRST, d)
                    store(scores, half + 3 * FIRST, e)
                own, where = hidden[i, y // 2 + margin, x // 2 + margin], place[i, y // 2, x // 2]
                for c in range(FIRST):
                    a, b = scores[c], scores[FIRST + c]
                    most, where[c] = _largest(a, b, scores[2 * FIRST + c], scores[3 * FIRST + c])
                    own[c] = most + bias[c]


@compiled
def back_first(
    gradient: Any, hidden: Any, margin: int, place: Any, image: Any, d_weight: Any, d_bias: Any
) -> None:
    """Gradients of the first convolution: a channel has 25 weights in `PATCH`, and a bias."""
    rows, height, width = image.shape
    strips = np.zeros((width - KERNEL + 1) * height * KERNEL + PATCH, np.float32)
    room = np.zeros(height * width + WIDTH, np.float32)
    pull = np.empty(place.shape[1:], np.float32)
    flat = pull.reshape(-1, FIRST)
    jump = np.array([0, height * KERNEL, KERNEL, (height + 1) * KERNEL])  # to a pixel of a window
    corner = np.empty(len(flat), np.int64)
    for t in range(len(flat)):
        y, x = divmod(t, place.shape[2])
        corner[t] = 2 * (x * height + y) * KERNEL
    for i in range(rows):
        _strips(image[i], room, strips)
        _through_sigmoid(gradient[i], hidden[i], margin, pull)
        where = place[i].reshape(-1, FIRST)
        for low in range(0, len(flat), 3 * NEAR):
            for c in range(FIRST):
                a, b = load(d_weight, c * PATCH), load(d_weight, c * PATCH + WIDTH)
                total = np.float32(0)
                for t in range(low, min(low + 3 * NEAR, len(flat))):
                    f, s = flat[t, c], corner[t] + jump[where[t, c]]
                    a, b = plus(a, f, strips, s), plus(b, f, strips, s + WIDTH)
                    total += f
                store(d_weight, c * PATCH, a)
                store(d_weight, c * PATCH + WIDTH, b)
                d_bias[c] += total


@compiled
def _through_sigmoid(gradient: Any, hidden: Any, margin: int, pull: Any) -> None:
    """Gradient before the sigmoid, of which `hidden` is the value."""
    height, width, _ = pull.shape
    for y in range(height):
        for x in range(width):
            value, above = hidden[y + margin, x + margin], gradient[y + margin, x + margin]
            own = pull[y, x]
            for c in range(FIRST):
                own[c] = above[c] * (value[c] - value[c] * value[c])


@compiled
def _strips(image: Any, room: Any, strips: Any) -> None:
    """Copy all columns of five pixels' width, one below the other: a patch is then one run."""
    height, width = image.shape
    room[: height * width] = image.reshape(-1)
    for x in range(width - KERNEL + 1):
        for y in range(height):
            # The next one overwrites what is more than five numbers.
            store(strips, (x * height + y) * KERNEL, load(room, y * width + x))


@compiled
def spread(image: Any, tiles: Any) -> None:
    """Bᵀ d B of every tile d, to [36, tiles, channels]."""
    rows, height, width, _ = image.shape
    flat, target = image.reshape(-1), tiles.reshape(-1)
    step, plane, across = width * FIRST, tiles.shape[1] * FIRST, (width - KERNEL + 1) // 2
    lines = np.empty(TILE * step, np.float32)
    t = 0
    for i in range(rows):
        for y in range(0, height - KERNEL, 2):
            for x in range(0, step, WIDTH):
                _six(flat, (i * height + y) * step + x, step, lines, x, step)
            for k in range(TILE):
                for x in range(across):
                    for half in range(0, FIRST, WIDTH):
                        at, to = k * step + 2 * x * FIRST + half, (t + x) * FIRST + half
                        _six(lines, at, FIRST, target, TILE * k * plane + to, plane)
            t += across


@compiled
def _six(source: Any, at: int, hop: int, target: Any, to: int, stride: int) -> None:
    """Bᵀ times six vectors, a hop apart."""
    for k in range(TILE):
        total = load(ZEROS, 0)
        for j in range(TILE):
            total = plus(total, B[k, j], source, at + j * hop)
        store(target, to + k * stride, total)


@compiled
def gather(products: Any, largest: Any, place: Any) -> None:
    """Aᵀ m A of every tile m of [36, channels, tiles]: the largest of its window, and its place."""
    rows, channels, windows = largest.shape
    scores, where = np.empty(rows * windows, np.float32), np.empty(rows * windows, np.uint8)
    for c in range(channels):
        for t in range(len(scores)):
            a = b = d = e = np.float32(0)
            for k in range(TILE):
                m = products[TILE * k : TILE * (k + 1), c, t]
                left = m[0] + m[1] + m[2] + m[3] + m[4]
                right = m[1] - m[2] + HALF * m[3] - TWO * m[4] + m[5]
                a, b = a + TOP[k] * left, b + TOP[k] * right
                d, e = d + BOTTOM[k] * left, e + BOTTOM[k] * right
            scores[t], where[t] = _largest(a, b, d, e)
        for i in range(rows):
            for w in range(windows):
                largest[i, c, w] = scores[i * windows + w]
                place[i, c, w] = where[i * windows + w]


@compiled
def _largest(a: Any, b: Any, d: Any, e: Any) -> Any:
    """The largest of a window's four numbers, the first of equals, and its place."""
    most, place = a, np.uint8(0)
    if b > most:
        most, place = b, np.uint8(1)
    if d > most:
        most, place = d, np.uint8(2)
    if e > most:
        most, place = e, np.uint8(3)
    return most, place


@compiled
def back_second(
    gradient: Any, place: Any, hidden: Any, frame: Any, d_weight: Any, d_hidden: Any
) -> None:
    """Gradients of the second convolution, from the largest of each window alone.

    `frame` is the weight [row, channel, column, channel before] with a frame of zeros, so that
    all channels of a window reach its whole tile, wherever their largest pixel is.
    """
    rows, channels, windows = gradient.shape
    _, height, width, depth = hidden.shape
    step, across = width * depth, (width - KERNEL + 1) // 2
    image, d_image = hidden.reshape(-1), d_hidden.reshape(-1)
    factor = np.empty((channels, NEAR), np.float32)
    corner = np.empty(NEAR, np.int64)
    start, inside = np.empty((channels, NEAR), np.int64), np.empty((channels, NEAR), np.int64)
    for low in range(0, rows * windows, NEAR):
        count = min(NEAR, rows * windows - low)
        for t in range(count):
            i, w = divmod(low + t, windows)
            y, x = divmod(w, across)
            corner[t] = ((i * height + 2 * y) * width + 2 * x) * depth
            for c in range(channels):
                v, u = place[i, c, w] >> 1, place[i, c, w] & 1
                factor[c, t] = gradient[i, c, w]
                start[c, t] = corner[t] + v * step + u * depth
                inside[c, t] = ((1 - v) * channels + c) * FRAME + (1 - u) * depth
        _add_to_weight(d_weight, image, start, step, factor, count)
        _add_to_image(d_image, corner, step, frame, inside, factor, count)


@compiled
def _add_to_weight(
    d_weight: Any, image: Any, start: Any, step: int, factor: Any, count: int
) -> None:
    """For each channel, add the patches that start at given numbers, times their factors."""
    for c in range(SECOND):
        for v in range(KERNEL):
            for half in range(0, FIRST, WIDTH):
                at = (c * KERNEL + v) * KERNEL * FIRST + half
                p0, p1 = load(d_weight, at), load(d_weight, at + FIRST)
                p2, p3 = load(d_weight, at + 2 * FIRST), load(d_weight, at + 3 * FIRST)
                p4 = load(d_weight, at + 4 * FIRST)
                for t in range(count):
                    f, s = factor[c, t], start[c, t] + v * step + half
                    p0, p1 = plus(p0, f, image, s), plus(p1, f, image, s + FIRST)
                    p2 = plus(p2, f, image, s + 2 * FIRST)
                    p3 = plus(p3, f, image, s + 3 * FIRST)
                    p4 = plus(p4, f, image, s + 4 * FIRST)
                store(d_weight, at, p0)
                store(d_weight, at + FIRST, p1)
                store(d_weight, at + 2 * FIRST, p2)
                store(d_weight, at + 3 * FIRST, p3)
                store(d_weight, at + 4 * FIRST, p4)


@compiled
def _add_to_image(
    d_image: Any, corner: Any, step: int, frame: Any, inside: Any, factor: Any, count: int
) -> None:
    """For each window, add the framed weights of all channels to its tile, times their factors."""
    for v in range(TILE):
        for t in range(count):
            for half in range(0, FIRST, WIDTH):
                at = corner[t] + v * step + half
                p0, p1 = load(d_image, at), load(d_image, at + FIRST)
                p2, p3 = load(d_image, at + 2 * FIRST), load(d_image, at + 3 * FIRST)
                p4, p5 = load(d_image, at + 4 * FIRST), load(d_image, at + 5 * FIRST)
                for c in range(SECOND):
                    f, s = factor[c, t], inside[c, t] + v * SECOND * FRAME + half
                    p0, p1 = plus(p0, f, frame, s), plus(p1, f, frame, s + FIRST)
                    p2 = plus(p2, f, frame, s + 2 * FIRST)
                    p3 = plus(p3, f, frame, s + 3 * FIRST)
                    p4 = plus(p4, f, frame, s + 4 * FIRST)
                    p5 = plus(p5, f, frame, s + 5 * FIRST)
                store(d_image, at, p0)
                store(d_image, at + FIRST, p1)
                store(d_image, at + 2 * FIRST, p2)
                store(d_image, at + 3 * FIRST, p3)
                store(d_image, at + 4 * FIRST, p4)
                store(d_image, at + 5 * FIRST, p5)
