"""FLIC-HL's client work in plain PyTorch, one client after another: the reference of the engine.

There is no client axis and no padding, only modules, an optimiser and a loop over batches. Tests
compare the stacked engine with it, and `flic bench` measures the engine against it.
Paper: algo:FLIC-FEDREP, steps 6-14, with identity covariances and FedRep.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flic.data.batches import draw_batches
from flic.data.client_data import ClientData
from flic.gaussians import nuclear_norm_gram
from flic.method_settings import Duration, MethodSettings
from flic.methods.flic.anchors import mean_name
from flic.methods.protocol import ServerState
from flic.networks.cnn import SIDE_WITHOUT_PADDING
from flic.shapes import Named


class SequentialClient:
    """One client: φ_i, α, β_i as modules and the anchors of its classes."""

    def __init__(
        self, client: ClientData, private: Named, server: ServerState, settings: MethodSettings
    ) -> None:
        assert settings.anchors.covariance == "identity"
        assert settings.alignment.target == "closed-form"
        assert not settings.embedding.dropout
        self.settings = settings
        self.classes = list(client.classes)
        dtype = private["head.weight"].dtype
        self.x, self.y = client.train.x.to(dtype), client.train.y
        self.slot = torch.tensor([self.classes.index(int(y)) for y in self.y])
        shape = client.schema.shape
        self.phi = _perceptron(private) if shape is None else _convolutional(private, shape)
        self.hidden = _linear(server.shared, "hidden")
        self.head = _linear(private, "head")
        self.means = torch.stack([server.shared[mean_name(c)] for c in self.classes])

    def pretrain(self, rng: torch.Generator) -> None:
        """Fit φ_i to the anchors."""
        pretraining = self.settings.pretraining
        optimiser = self._optimiser(self.phi.parameters())
        for rows in self._batches(Duration(pretraining.epochs), pretraining.batch_size, rng):
            self._descend(optimiser, self._alignment(self.phi(self.x[rows]), self.slot[rows]))

    def update(self, rng: torch.Generator) -> None:
        """Local steps on φ_i and β_i, then the shared phase on α and the anchors."""
        training = self.settings.training
        optimiser = self._optimiser([*self.phi.parameters(), *self.head.parameters()])
        for rows in self._batches(training.local, training.batch_size, rng):
            self._descend(optimiser, self._objective(rows, rng))
        self.means.requires_grad_(True)
        optimiser = self._optimiser([*self.hidden.parameters(), self.means])
        for rows in self._batches(training.shared, training.batch_size, rng):
            self._descend(optimiser, self._objective(rows, rng))
        self.means = self.means.detach()

    def _objective(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """F_i of one batch.  Paper: eq:PFL_ERM_reg."""
        alignment = self.settings.alignment
        latent = self.phi(self.x[rows])
        total = cross_entropy(self._scores(latent), self.y[rows])
        total = total + alignment.weight * self._alignment(latent, self.slot[rows])
        shape = (len(self.classes), alignment.anchor_samples, self.means.shape[1])
        noise = torch.empty(shape, dtype=self.means.dtype).normal_(generator=rng)
        samples = (self.means[:, None] + noise).flatten(0, 1)
        labels = torch.tensor(self.classes).repeat_interleave(alignment.anchor_samples)
        calibration = len(self.classes) * cross_entropy(self._scores(samples), labels)
        return total + alignment.calibration_weight * calibration

    def _scores(self, latent: Tensor) -> Tensor:
        return self.head(nn.functional.leaky_relu(self.hidden(latent)))

    def _alignment(self, latent: Tensor, slot: Tensor) -> Tensor:
        """Σ_c W2² to the anchors of the classes in the batch.  Paper: eq:W2_Gauss, Σ_c = I."""
        total = latent.new_zeros(())
        for c in slot.unique():
            own = latent[slot == c]
            mean = own.mean(0)
            centred = (own - mean) / len(own) ** 0.5
            cross = nuclear_norm_gram(centred)
            spread = centred.square().sum() + latent.shape[1] - 2 * cross
            total = total + (mean - self.means[c]).square().sum() + spread
        return total

    def _batches(
        self, duration: Duration, batch_size: int, rng: torch.Generator
    ) -> Iterator[Tensor]:
        n = len(self.y)
        steps = duration.steps_for(n, batch_size)
        slot = torch.cat([self.slot, torch.tensor([len(self.classes)])])
        for rows in draw_batches(slot, steps, batch_size, rng=rng):
            yield rows[rows < n]

    def _optimiser(self, parameters: Sequence[Tensor] | Iterator[Tensor]) -> torch.optim.Optimizer:
        rate = self.settings.training.optimiser.learning_rate
        return torch.optim.Adam(parameters, lr=rate, fused=True)

    def _descend(self, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _perceptron(private: Named) -> nn.Sequential:
    """φ of vectors."""
    layers = sum(name.startswith("embedding.") for name in private) // 2
    linears = [_linear(private, f"embedding.{i}") for i in range(layers)]
    return nn.Sequential(*[part for layer in linears for part in (layer, nn.ReLU())][:-1])


def _convolutional(private: Named, shape: tuple[int, int]) -> nn.Sequential:
    """φ of images that are large enough for convolutions without padding."""
    assert min(shape) >= SIDE_WITHOUT_PADDING
    layers: list[nn.Module] = [nn.Unflatten(1, (1, *shape))]
    for name in ("embedding.conv1", "embedding.conv2"):
        layers += [_convolution(private, name), nn.MaxPool2d(2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), _linear(private, "embedding.latent"))


def _convolution(parameters: Named, name: str) -> nn.Conv2d:
    weight = parameters[f"{name}.weight"]
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(parameters[f"{name}.bias"])  # pyright: ignore[reportOptionalMemberAccess]
    return layer


def _linear(parameters: Named, name: str) -> nn.Linear:
    """A module with the given weights; PyTorch stores them transposed."""
    weight = parameters[f"{name}.weight"]
    layer = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight.mT)
        layer.bias.copy_(parameters[f"{name}.bias"])
    return layer
