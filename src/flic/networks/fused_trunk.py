"""The CNN's two convolutions in fused kernels, in less than half of PyTorch's time on a processor.

The first convolution and its pooling are one pass, without patches in memory. Pooling passes a
gradient on at one pixel of four, its winner, so the backward pass visits winners alone. numba
compiles the kernels at their first use (extra `fast`); without it `cnn.py` does it all in PyTorch.
"""

from collections.abc import Callable
from functools import cache
from inspect import unwrap
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

FIRST, SECOND = 32, 20  # channels
SIDE = 5  # of a convolution
AT_ONCE = 16  # winners of a channel that are handled together, so that few images stay in cache


class Kernels(NamedTuple):
    """Compiled kernels; images are arrays [rows, height, width, channels] of float32."""

    first: Callable[..., None]
    winners: Callable[..., None]
    back_second: Callable[..., None]
    back_first: Callable[..., None]


@cache
def kernels() -> Kernels | None:
    """The kernels; None if numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    # Sums in any order, and products with sums in one instruction; NaN stays NaN.
    compiled = njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy", nogil=True)
    # Unwrapped, since a checker of shapes may stand around every function.
    plain = map(unwrap, (_first, _winners, _back_second, _back_first))
    return Kernels(*map(compiled, plain))


class FusedTrunk(torch.autograd.Function):
    """Largest of every 2×2 pixels of the second convolution, before its bias."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        image: Float[Tensor, "rows height width"],
        first: Float[Tensor, "c1 1 side side"],
        bias: Float[Tensor, " c1"],
        second: Float[Tensor, "c2 c1 side side"],
        padding: int,
    ) -> Float[Tensor, "rows c2 h w"]:
        own = kernels()
        assert own is not None
        image, taps = image.contiguous(), first.detach().permute(2, 3, 1, 0).contiguous()
        hidden, at_first = _pooled(len(image), image.shape[1:], SIDE - 1, FIRST)
        own.first(image.numpy(), taps.numpy()[:, :, 0], hidden.numpy(), at_first)
        hidden.add_(bias.detach()).sigmoid_()
        wide = pad(hidden, [0, 0, *[padding] * 4]) if padding else hidden
        weight = second.detach().contiguous(memory_format=torch.channels_last)
        scores = conv2d(wide.permute(0, 3, 1, 2), weight).permute(0, 2, 3, 1).contiguous()
        largest, at_second = _pooled(len(image), scores.shape[1:3], 0, SECOND)
        own.winners(scores.numpy(), largest.numpy(), at_second)
        ctx.kept = image, hidden, wide, weight, at_first, at_second, padding
        return largest.permute(0, 3, 1, 2)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Float[Tensor, "rows c2 h w"]
    ) -> tuple[Tensor | None, ...]:
        own = kernels()
        assert own is not None
        image, hidden, wide, weight, at_first, at_second, padding = ctx.kept
        by_pixel = gradient.permute(0, 2, 3, 1).contiguous()
        rows = weight.permute(0, 2, 3, 1).contiguous()  # [c2, side, side, c1]
        d_second, d_wide = torch.zeros_like(rows), torch.zeros_like(wide)
        flat = (SECOND, SIDE, SIDE * FIRST)
        own.back_second(
            by_pixel.numpy(),
            at_second,
            wide.numpy(),
            rows.view(flat).numpy(),
            d_second.view(flat).numpy(),
            d_wide.numpy(),
        )
        height, width = hidden.shape[1:3]
        inner = d_wide[:, padding : padding + height, padding : padding + width].contiguous()
        d_first, d_bias = torch.zeros(SIDE, SIDE, FIRST), torch.zeros(FIRST)
        own.back_first(
            inner.numpy(), hidden.numpy(), at_first, image.numpy(), d_first.numpy(), d_bias.numpy()
        )
        return (
            None,
            d_first.permute(2, 0, 1)[:, None],
            d_bias,
            d_second.permute(0, 3, 1, 2),
            None,
        )


def _pooled(rows: int, sides: torch.Size, shrink: int, channels: int) -> tuple[Tensor, np.ndarray]:
    """Room for a pooled image, and for the place of each of its pixels among four."""
    shape = (rows, *((side - shrink) // 2 for side in sides), channels)
    return torch.empty(shape), np.empty(shape, np.uint8)


# ---- kernels, in the part of Python that numba compiles ---------------------------------------


def _first(image: Any, weight: Any, largest: Any, place: Any) -> None:
    """First convolution, and the largest of every 2×2 of its pixels with its place."""
    rows, height, width, _ = largest.shape
    patch = np.empty((SIDE + 1, SIDE + 1), np.float32)
    for i in range(rows):
        for y in range(height):
            for x in range(width):
                for v in range(SIDE + 1):
                    for u in range(SIDE + 1):
                        patch[v, u] = image[i, 2 * y + v, 2 * x + u]
                own, where = largest[i, y, x], place[i, y, x]
                for c in range(FIRST):
                    a = b = d = e = np.float32(0)
                    for v in range(SIDE):
                        for u in range(SIDE):
                            w = weight[v, u, c]
                            a += patch[v, u] * w
                            b += patch[v, u + 1] * w
                            d += patch[v + 1, u] * w
                            e += patch[v + 1, u + 1] * w
                    most, k = a, np.uint8(0)
                    if b > most:
                        most, k = b, np.uint8(1)
                    if d > most:
                        most, k = d, np.uint8(2)
                    if e > most:
                        most, k = e, np.uint8(3)
                    own[c], where[c] = most, k


def _winners(scores: Any, largest: Any, place: Any) -> None:
    """The largest of every 2×2 pixels, and its place."""
    rows, height, width, channels = largest.shape
    for i in range(rows):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    most, k = scores[i, 2 * y, 2 * x, c], np.uint8(0)
                    for other in range(1, 4):
                        value = scores[i, 2 * y + (other >> 1), 2 * x + (other & 1), c]
                        if value > most:
                            most, k = value, np.uint8(other)
                    largest[i, y, x, c], place[i, y, x, c] = most, k


def _back_second(
    gradient: Any, place: Any, image: Any, weight: Any, d_weight: Any, d_image: Any
) -> None:
    """Gradients of the second convolution from its winners, four at a time.

    A pixel's channels lie side by side, so five pixels of a row are one run of numbers.
    """
    rows, height, width, channels = gradient.shape
    columns, depth = image.shape[2], image.shape[3]
    step, run = columns * depth, SIDE * depth
    pixels, d_pixels = image.reshape(-1), d_image.reshape(-1)
    together = max(1, AT_ONCE // (height * width))
    factor = np.zeros(together * height * width + channels + 4, np.float32)
    start = np.zeros(len(factor), np.int64)
    for low in range(0, rows, together):
        for c in range(channels):
            count = 0
            for i in range(low, min(rows, low + together)):
                for y in range(height):
                    for x in range(width):
                        k = place[i, y, x, c]
                        row = i * image.shape[1] + 2 * y + (k >> 1)
                        factor[count] = gradient[i, y, x, c]
                        start[count] = (row * columns + 2 * x + (k & 1)) * depth
                        count += 1
            factor[count : count + 4] = 0
            start[count : count + 4] = start[0]
            for q in range(0, count, 4):
                f0, f1, f2, f3 = factor[q], factor[q + 1], factor[q + 2], factor[q + 3]
                for v in range(SIDE):
                    own, at = d_weight[c, v], v * step
                    a = pixels[start[q] + at : start[q] + at + run]
                    b = pixels[start[q + 1] + at : start[q + 1] + at + run]
                    d = pixels[start[q + 2] + at : start[q + 2] + at + run]
                    e = pixels[start[q + 3] + at : start[q + 3] + at + run]
                    for j in range(run):
                        own[j] += f0 * a[j] + f1 * b[j] + f2 * d[j] + f3 * e[j]
    for i in range(rows):
        for y in range(height):
            for x in range(width):
                for k in range(4):
                    count = 0
                    for c in range(channels):
                        if place[i, y, x, c] == k:
                            factor[count], start[count] = gradient[i, y, x, c], c
                            count += 1
                    factor[count : count + 4] = 0
                    start[count : count + 4] = 0
                    row = i * image.shape[1] + 2 * y + (k >> 1)
                    first = (row * columns + 2 * x + (k & 1)) * depth
                    for q in range(0, count, 4):
                        f0, f1, f2, f3 = factor[q], factor[q + 1], factor[q + 2], factor[q + 3]
                        for v in range(SIDE):
                            own = d_pixels[first + v * step : first + v * step + run]
                            a, b = weight[start[q], v], weight[start[q + 1], v]
                            d, e = weight[start[q + 2], v], weight[start[q + 3], v]
                            for j in range(run):
                                own[j] += f0 * a[j] + f1 * b[j] + f2 * d[j] + f3 * e[j]


def _back_first(
    gradient: Any, hidden: Any, place: Any, image: Any, d_weight: Any, d_bias: Any
) -> None:
    """Gradients of the first convolution and its bias; `hidden` is the value of the sigmoid."""
    rows, height, width, _ = gradient.shape
    a, b = np.zeros(FIRST, np.float32), np.zeros(FIRST, np.float32)
    d, e = np.zeros(FIRST, np.float32), np.zeros(FIRST, np.float32)
    zero = np.float32(0)
    for i in range(rows):
        for y in range(height):
            for x in range(width):
                for c in range(FIRST):
                    value, k = hidden[i, y, x, c], place[i, y, x, c]
                    own = gradient[i, y, x, c] * value * (np.float32(1) - value)
                    d_bias[c] += own
                    a[c] = own if k == 0 else zero
                    b[c] = own if k == 1 else zero
                    d[c] = own if k == 2 else zero
                    e[c] = own if k == 3 else zero
                for v in range(SIDE):
                    for u in range(SIDE):
                        top, below = image[i, 2 * y + v], image[i, 2 * y + v + 1]
                        p, q = top[2 * x + u], top[2 * x + u + 1]
                        r, s = below[2 * x + u], below[2 * x + u + 1]
                        tap = d_weight[v, u]
                        for c in range(FIRST):
                            tap[c] += p * a[c] + q * b[c] + r * d[c] + s * e[c]
