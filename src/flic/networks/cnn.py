"""φ for images: a convolutional trunk per client, and a linear layer for all of them at once.

Paper: append:models (two convolutional layers, each with max-pooling and a sigmoid, then one
fully-connected layer). The sizes are those of the authors' program: 32 and 20 channels of 5×5.
Departs: the latent has no ReLU, with which half of every anchor could not be reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

from flic.errors import ConfigError
from flic.networks.base import dropout_masks, init_layer, init_linear, linear
from flic.shapes import Named

CHANNELS = (1, 32, 20)
KERNEL = 5

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
        weight, bias = init_linear(self.trunk_dim, self.latent_dim, rng=rng, dtype=dtype)
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
        trunks = [self._trunk(parameters, i, x[i, :count]) for i, count in enumerate(counts)]
        padded = [pad(trunk, (0, 0, 0, x.shape[1] - len(trunk))) for trunk in trunks]
        flat = torch.stack(padded)
        flat = flat * masks[0] if masks else flat
        return linear(
            flat, parameters["embedding.latent.weight"], parameters["embedding.latent.bias"]
        )

    def _trunk(
        self, parameters: Named, client: int, x: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "rows trunk"]:
        """Both convolutions of one client, each with pooling and a sigmoid.

        A convolution grouped over clients takes twice as long on a processor as one at a time.
        """
        first, second = (parameters[f"embedding.conv{layer}.weight"][client] for layer in (1, 2))
        margin = [self._padding] * 4
        image = _convolve_pixels(pad(x.view(len(x), *self.shape), margin), first)
        image = _pool(image, parameters["embedding.conv1.bias"][client])
        image = conv2d(image, second, padding=self._padding)
        image = _pool(image, parameters["embedding.conv2.bias"][client])
        return image.flatten(1)

    def draw_masks(
        self, rows: Sequence[int], rngs: Sequence[torch.Generator], *, dtype: torch.dtype
    ) -> list[Float[Tensor, "clients rows width"]]:
        """Dropout factors of the trunk's units: each client's from its own generator."""
        if not self.dropout:
            return []
        return dropout_masks([self.trunk_dim], 1.0 - self.dropout, rows, rngs, dtype=dtype)


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


def _pool(image: Tensor, bias: Float[Tensor, " channels"]) -> Tensor:
    """Sigmoid of the bias plus the largest of every 2×2 pixels.

    Bias and sigmoid keep the order of pixels, so they come last, on a quarter of them.
    """
    # Pooling is vectorised over channels: with channels last it takes a third of the time.
    largest = max_pool2d(image.contiguous(memory_format=torch.channels_last), 2)
    return torch.sigmoid(largest + bias[:, None, None])
