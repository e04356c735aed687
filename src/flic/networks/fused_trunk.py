"""The CNN's two convolutions with fused kernels, in a third of PyTorch's time on a processor.

The first convolution and its pooling are one pass, without patches in memory. The second is a
batch of matrix products after Winograd (F(2×2, 5×5): 36 products for a pooling window, not 100).
Pooling passes a gradient on at one pixel of four, so the backward pass visits that one alone.
numba compiles the kernels at their first use (extra `fast`); without it `cnn.py` does it all in
PyTorch.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from flic.networks.trunk_sizes import FIRST, KERNEL, SECOND

TILES = 256  # in one batch of matrix products, so that it stays in cache

# G: a polynomial with the weights of a row as coefficients, at 0, 1, -1, 1/2, -2 and infinity,
# each value times what makes the result of `gather` exact. These points lose no more digits than
# the plain sum does.
G = torch.tensor([[t**k for k in range(KERNEL)] for t in (0, 1, -1, 0.5, -2)] + [[0, 0, 0, 0, 1]])
G *= torch.tensor([1, 1 / 6, 1 / 6, 16 / 15, 1 / 30, 1])[:, None]
WINOGRAD = torch.kron(G, G)  # [36, 25]


@cache
def kernels() -> ModuleType | None:
    """The kernels; None if numba is not installed."""
    if find_spec("numba") is None:
        return None
    from flic.networks import trunk_kernels

    return trunk_kernels


class FusedTrunk(torch.autograd.Function):
    """Largest of every 2×2 pixels of the second convolution, before its bias.

    A client may have fewer rows than the stack; what follows them is zero.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        image: Float[Tensor, "clients rows height width"],
        first: Float[Tensor, "clients c1 1 side side"],
        bias: Float[Tensor, "clients c1"],
        second: Float[Tensor, "clients c2 c1 side side"],
        rows: Sequence[int],
        padding: int,
    ) -> Float[Tensor, "clients rows c2 h w"]:
        own = _kernels()
        clients, most, *sides = image.shape
        inner = [(side - KERNEL + 1) // 2 for side in sides]
        outer = [side + 2 * padding for side in inner]
        pooled = [(side - KERNEL + 1) // 2 for side in outer]
        taps = first.permute(0, 3, 4, 2, 1).reshape(clients, -1)
        points = (WINOGRAD @ second.flatten(3).flatten(1, 2).mT).view(clients, -1, SECOND, FIRST)
        image = image.contiguous()
        hidden = (torch.zeros if padding else torch.empty)(clients, most, *outer, FIRST)
        largest = torch.zeros(clients, most, SECOND, pooled[0] * pooled[1])
        at_first = torch.empty(clients, most, *inner, FIRST, dtype=torch.uint8)
        at_second = torch.empty(largest.shape, dtype=torch.uint8)
        room = torch.empty(len(WINOGRAD) * max(TILES, largest.shape[3]) * (FIRST + SECOND))
        for i, n in enumerate(rows):
            weights, results = _arrays(taps[i], bias[i]), _arrays(hidden[i, :n], at_first[i, :n])
            own.first(*_arrays(image[i, :n]), *weights, padding, *results)
            _inside(hidden[i, :n], padding).sigmoid_()
            _second(hidden[i, :n], points[i], room, largest[i, :n], at_second[i, :n])
        ctx.kept = image, hidden, second, at_first, at_second, rows, padding
        return largest.view(clients, most, SECOND, *pooled)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Float[Tensor, "clients rows c2 h w"]
    ) -> tuple[Tensor | None, ...]:
        own = _kernels()
        image, hidden, second, at_first, at_second, rows, padding = ctx.kept
        gradient, clients = gradient.contiguous().view(at_second.shape), len(rows)
        frame = pad(second.permute(0, 3, 1, 4, 2), [0, 0, 1, 1, 0, 0, 1, 1]).view(clients, -1)
        d_second = torch.zeros(clients, SECOND, KERNEL, KERNEL, FIRST)
        d_first, d_bias = torch.zeros(clients, FIRST, own.PATCH), torch.zeros(clients, FIRST)
        pull = torch.empty_like(hidden[0])
        for i, n in enumerate(rows):
            here, d_here = _arrays(hidden[i, :n], pull[:n].zero_())
            above = _arrays(gradient[i, :n], at_second[i, :n])
            own.back_second(*above, here, *_arrays(frame[i], d_second[i].view(-1)), d_here)
            below = _arrays(at_first[i, :n], image[i, :n])
            own.back_first(d_here, here, padding, *below, *_arrays(d_first[i].view(-1), d_bias[i]))
        weight = d_first[:, :, : KERNEL**2].reshape(clients, FIRST, 1, KERNEL, KERNEL)
        return None, weight, d_bias, d_second.permute(0, 1, 4, 2, 3).contiguous(), None, None


def _kernels() -> ModuleType:
    own = kernels()
    assert own is not None, "asked for without numba"
    return own


def _second(hidden: Tensor, points: Tensor, room: Tensor, largest: Tensor, place: Tensor) -> None:
    """Second convolution of one client, a few images at a time; fresh memory would cost most."""
    own, windows = _kernels(), largest.shape[2]
    together = max(1, TILES // windows)
    for low in range(0, len(hidden), together):
        part = slice(low, low + together)
        count = windows * len(hidden[part])
        border, end = (len(points) * count * channels for channels in (FIRST, FIRST + SECOND))
        tiles = room[:border].view(-1, count, FIRST)
        products = room[border:end].view(-1, SECOND, count)
        own.spread(*_arrays(hidden[part], tiles))
        torch.bmm(points, tiles.mT, out=products)
        own.gather(*_arrays(products, largest[part], place[part]))


def _inside(image: Tensor, margin: int) -> Tensor:
    """An image without its margin."""
    _, height, width, _ = image.shape
    return image[:, margin : height - margin, margin : width - margin]


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.numpy() for tensor in tensors]
