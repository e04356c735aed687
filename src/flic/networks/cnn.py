"""φ for images: a convolutional trunk per client, and a linear layer for all of them at once.

Paper: append:models (two convolutional layers, each with max-pooling and a sigmoid, then one
fully-connected layer). The sizes are those of the authors' program: 32 and 20 channels of 5×5.
Departs: the latent has no ReLU, with which half of every anchor could not be reached, unless
`activation` asks for one, as the authors' Local has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

from flic.errors import ConfigError
from flic.method_settings import Activation, Drops
from flic.networks.base import activated, dropout_masks, init_layer, linear
from flic.networks.fused_trunk import FusedTrunk, kernels
from flic.networks.trunk_sizes import FIRST, KERNEL, SECOND
from flic.shapes import Named

CHANNELS = (1, FIRST, SECOND)

# Side of an image of which two convolutions of 5×5 with pooling leave one pixel.
SIDE_WITHOUT_PADDING = 16


@dataclass(frozen=True)
class Cnn:
    """φ: grey images of one size → ℝ^latent_dim.

    Convolutions shrink large images by their margin; smaller images are padded.
    """

    shape: tuple[int, int]
    latent_dim: int
    dropout: float = 0.0
    drops: Drops = "units"
    activation: Activation = "none"

    def __post_init__(self) -> None:
        if min(self._sides) < 1:
            rows, columns = self.shape
            raise ConfigError(
                f"images are {rows}×{columns} pixels; expected at least 4×4, since two poolings "
                "halve them twice. Declare the pixels as a vector, without a shape."
            )

    @property
    def dim(self) -> int:
        """Number of pixels."""
        return self.shape[0] * self.shape[1]

    @property
    def _padding(self) -> int:
        return 0 if min(self.shape) >= SIDE_WITHOUT_PADDING else KERNEL // 2

    @property
    def _sides(self) -> tuple[int, int]:
        """Rows and columns of an image after the trunk."""
        shrink = KERNEL - 1 - 2 * self._padding
        rows, columns = (((side - shrink) // 2 - shrink) // 2 for side in self.shape)
        return rows, columns

    @property
    def trunk_dim(self) -> int:
        """Units after the trunk."""
        return CHANNELS[-1] * self._sides[0] * self._sides[1]

    def init(self, features: int, *, rng: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters of one client."""
        assert features == self.dim, "images of a stack have one size"
        parameters = {}
        for layer in (1, 2):
            shape = (CHANNELS[layer], CHANNELS[layer - 1], KERNEL, KERNEL)
            fans = {"fan_in": CHANNELS[layer - 1] * KERNEL**2, "fan_out": CHANNELS[layer]}
            weight, bias = init_layer(*shape, **fans, rng=rng, dtype=dtype)
            parameters[f"embedding.conv{layer}.weight"] = weight
            parameters[f"embedding.conv{layer}.bias"] = bias
        weight, bias = init_layer(self.trunk_dim, self.latent_dim, rng=rng, dtype=dtype)
        return parameters | {"embedding.latent.weight": weight, "embedding.latent.bias": bias}

    def apply(
        self,
        parameters: Named,
        x: Float[Tensor, "clients rows dim"],
        *,
        masks: Sequence[Tensor] = (),
        rows: Sequence[int] | None = None,
    ) -> Float[Tensor, "clients rows k"]:
        """Latent representation φ_i(x): trunks one client at a time, then one layer for all."""
        counts = [x.shape[1]] * len(x) if rows is None else rows
        # Bias, factors and sigmoid keep the order of pixels, so they come last, on a quarter.
        scores = self._largest_scores(parameters, x, counts)
        scores = scores + parameters["embedding.conv2.bias"][:, None, :, None, None]
        if masks and self.drops == "channels":
            scores = scores * masks[0][..., None, None]
        flat = torch.sigmoid(scores).flatten(2)
        if min(counts) < x.shape[1]:
            present = torch.arange(x.shape[1]) < torch.tensor(counts)[:, None]
            flat = flat * present[..., None]
        flat = flat * masks[0] if masks and self.drops == "units" else flat
        weight, bias = (parameters[f"embedding.latent.{part}"] for part in ("weight", "bias"))
        return activated(linear(flat, weight, bias), self.activation)

    def _largest_scores(
        self, parameters: Named, x: Float[Tensor, "clients rows dim"], counts: Sequence[int]
    ) -> Float[Tensor, "clients rows c2 h w"]:
        """The largest of every 2×2 pixels of the second convolution, without its bias.

        A convolution grouped over clients takes twice as long on a processor as one at a time.
        """
        image = pad(x.view(*x.shape[:2], *self.shape), [self._padding] * 4)
        names = ("conv1.weight", "conv1.bias", "conv2.weight")
        first, bias, second = (parameters[f"embedding.{name}"] for name in names)
        if x.dtype == torch.float32 and kernels() is not None:
            return FusedTrunk.apply(image, first, bias, second, counts, self._padding)
        each = []
        for own, count, *weights in zip(image, counts, first, bias, second, strict=True):
            largest = self._largest_of_one(own[:count], *weights)
            each.append(pad(largest, [0] * 7 + [x.shape[1] - count]))
        return torch.stack(each)

    def _largest_of_one(
        self,
        image: Float[Tensor, "rows height width"],
        first: Float[Tensor, "c1 1 side side"],
        bias: Float[Tensor, " c1"],
        second: Float[Tensor, "c2 c1 side side"],
    ) -> Float[Tensor, "rows c2 h w"]:
        """The same of one client, with what PyTorch has."""
        hidden = torch.sigmoid(_largest(_convolve_pixels(image, first)) + bias[:, None, None])
        return _largest(conv2d(hidden, second, padding=self._padding))

    def draw_masks(
        self, rows: Sequence[int], rngs: Sequence[torch.Generator], *, dtype: torch.dtype
    ) -> list[Float[Tensor, "clients rows width"]]:
        """Dropout factors of the trunk's units or channels, from each client's own generator."""
        if not self.dropout:
            return []
        width = self.trunk_dim if self.drops == "units" else CHANNELS[-1]
        return dropout_masks([width], 1.0 - self.dropout, rows, rngs, dtype=dtype)


def _convolve_pixels(
    image: Float[Tensor, "rows height width"], weight: Float[Tensor, "channels 1 side side"]
) -> Float[Tensor, "rows channels out_height out_width"]:
    """Convolution of a grey image as one matrix product over its patches.

    PyTorch's own convolution of a single channel takes half as long again. Pixels need no
    gradient; the second layer's input does, and there patches would cost more than they save.
    """
    patches = image.unfold(1, KERNEL, 1).unfold(2, KERNEL, 1)
    flat = patches.reshape(-1, KERNEL**2) @ weight.flatten(1).mT
    return flat.view(*patches.shape[:3], -1).permute(0, 3, 1, 2)


def _largest(image: Float[Tensor, "rows channels height width"]) -> Tensor:
    """The largest of every 2×2 pixels."""
    # Pooling is vectorised over channels: with channels last it takes a third of the time.
    return max_pool2d(image.contiguous(memory_format=torch.channels_last), 2)
