"""FLIC-HL with FedRep as plain loops, one client at a time: the slow, obvious form of the engine.

Draws come from the engine's generator tree, so that a test can hold the engine to these loops.
Paper: algo:FLIC-FEDREP (step numbers), eq:PFL_ERM_reg (objective), eq:W2_Gauss (distance).
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu

from flic.data.client_data import ClientData, FederatedData
from flic.data.toy import ToyConfig, make_toy
from flic.seeding import generator


@dataclass(frozen=True)
class Settings:
    """Settings of Algorithm 1.  Paper: append:models."""

    rounds: int = 8  # T
    participation: float = 0.5  # r
    local_epochs: int = 10  # M
    shared_epochs: int = 1
    batch_size: int = 100
    pretraining_epochs: int = 3
    pretraining_batch_size: int = 10
    learning_rate: float = 3e-3
    latent_dim: int = 16  # k
    embedding_hidden: tuple[int, ...] = (32, 32)
    hidden_dim: int = 16
    alignment_weight: float = 1e-3  # λ₁
    calibration_weight: float = 1e-3  # λ₂
    anchor_samples: int = 20  # J


def draw_layer(fan_in: int, fan_out: int, rng: torch.Generator) -> nn.Linear:
    """Affine layer with weights and biases uniform within ±1/√fan_in."""
    layer, bound = nn.Linear(fan_in, fan_out, dtype=torch.float64), fan_in**-0.5
    weight = torch.empty(fan_in, fan_out, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight.uniform_(-bound, bound, generator=rng).T)
        layer.bias.uniform_(-bound, bound, generator=rng)
    return layer


class Client:
    """The private part of a client: its rows, its classes 𝒴_i, φ_i and β_i."""

    def __init__(self, data: ClientData, num_classes: int, settings: Settings, seed: int) -> None:
        self.name, self.classes = data.name, data.classes
        self.x, self.y = data.train.x.double(), data.train.y
        self.test_x, self.test_y = data.test.x.double(), data.test.y
        rng = generator(seed, "client", data.name, "init")
        sizes = (data.schema.dim, *settings.embedding_hidden, settings.latent_dim)
        layers = [draw_layer(m, n, rng) for m, n in pairwise(sizes)]
        self.phi = nn.Sequential(
            layers[0], *(m for layer in layers[1:] for m in (nn.ReLU(), layer))
        )
        draw_layer(settings.latent_dim, settings.hidden_dim, rng)  # an α of its own goes unused
        self.beta = draw_layer(settings.hidden_dim, num_classes, rng)

    def batches(self, epochs: int, size: int, rng: torch.Generator) -> Iterator[list[Tensor]]:
        """Rows and labels of fresh batches: in every epoch each row once, in a new order."""
        for order in torch.rand(epochs, len(self.y), generator=rng).argsort(dim=1, stable=True):
            for rows in order.split(size):
                yield [self.x[rows], self.y[rows]]


def wasserstein2_sq(v: Tensor, z: Tensor) -> Tensor:
    """‖v − m‖² + tr Σ + tr S − 2 tr((Σ^½ S Σ^½)^½) for Σ = I and m, S the moments of the rows z."""
    m = z.mean(0)
    centred = (z - m) / len(z) ** 0.5  # S = centredᵀ centred
    roots = torch.linalg.svdvals(centred)  # of the eigenvalues of S
    roots = roots[roots > 1e-6 * roots.max()]  # at zero, a root has no gradient
    return (v - m).square().sum() + len(v) + centred.square().sum() - 2 * roots.sum()


def alignment(v: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Σ_c W2²(μ_c, ν_φi^(c)) over the classes of the batch, with μ_c = N(v_c, I)."""
    return torch.stack([wasserstein2_sq(v[c], z[y == c]) for c in y.unique()]).sum()


def objective(
    client: Client, alpha: nn.Linear, v: Tensor, x: Tensor, y: Tensor, xi: Tensor, *, s: Settings
) -> Tensor:
    """F_i by terms: data, λ₁ alignment, λ₂ calibration."""
    z = client.phi(x)
    data = cross_entropy(client.beta(leaky_relu(alpha(z))), y)
    calibration = torch.zeros((), dtype=torch.float64)
    for c, xi_c in zip(client.classes, xi, strict=True):
        scores = client.beta(leaky_relu(alpha(v[c] + xi_c)))  # Z_c = v_c + L_c ξ_c with L_c = I
        calibration = calibration + cross_entropy(scores, torch.full((len(xi_c),), c))
    pull = alignment(v, z, y)
    return torch.stack([data, s.alignment_weight * pull, s.calibration_weight * calibration])


def descent_step(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    """DescStep on the optimiser's own parameters."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@dataclass(frozen=True)
class Round:
    """The state after a round; `losses` are the terms of F_i, mean over steps and clients."""

    alpha: nn.Linear
    v: Tensor
    clients: list[Client]
    losses: Tensor


def flic(data: FederatedData, s: Settings, *, seed: int) -> Iterator[Round]:
    """Algorithm 1, round by round."""
    k, C, lr = s.latent_dim, data.task.num_outputs, s.learning_rate
    alpha = draw_layer(k, s.hidden_dim, generator(seed, "server", "model"))
    rng = generator(seed, "server", "anchors")
    v = torch.randn(C, k, generator=rng, dtype=torch.float64)
    clients = [Client(own, C, s, seed) for own in sorted(data.clients, key=lambda own: own.name)]

    for client in clients:
        rng = generator(seed, "prepare", 0, client.name)
        adam = torch.optim.Adam(client.phi.parameters(), lr=lr)
        for x, y in client.batches(s.pretraining_epochs, s.pretraining_batch_size, rng):
            descent_step(adam, alignment(v, client.phi(x), y))  # pre-training, sec:alignment

    for t in range(1, s.rounds + 1):
        drawn = torch.randperm(len(clients), generator=generator(seed, "sampling", t))
        active = [clients[i] for i in drawn[: int(s.participation * len(clients))]]  # step 2

        versions, losses = [], []
        for client in active:
            rng = generator(seed, "update", t, client.name)
            alpha_i, v_i = deepcopy(alpha), v.clone().requires_grad_()  # step 4
            noise = (len(client.classes), s.anchor_samples, k)  # shape of ξ

            adam = torch.optim.Adam([*client.phi.parameters(), *client.beta.parameters()], lr=lr)
            terms = []
            for x, y in client.batches(s.local_epochs, s.batch_size, rng):
                xi = torch.randn(noise, generator=rng, dtype=torch.float64)
                terms.append(objective(client, alpha_i, v_i, x, y, xi, s=s))
                descent_step(adam, terms[-1].sum())  # steps 7, 8
            losses.append(torch.stack(terms).detach().mean(0))  # steps 10, 11: φ_i, β_i stay here

            adam = torch.optim.Adam([*alpha_i.parameters(), v_i], lr=lr)
            for x, y in client.batches(s.shared_epochs, s.batch_size, rng):
                xi = torch.randn(noise, generator=rng, dtype=torch.float64)
                total = objective(client, alpha_i, v_i, x, y, xi, s=s).sum()
                descent_step(adam, total)  # steps 13, 14
            versions.append((client, alpha_i, v_i.detach()))  # step 16

        alpha = deepcopy(alpha)
        for name, value in alpha.named_parameters():
            own = [alpha_i.get_parameter(name) for _, alpha_i, _ in versions]
            value.data = torch.stack(own).mean(0).detach()  # step 19
        v = v.clone()
        for c in range(C):
            own = [v_i[c] for client, _, v_i in versions if c in client.classes]
            if own:  # clients without the class have nothing to say of its anchor
                v[c] = torch.stack(own).mean(0)  # step 20
        yield Round(alpha, v, clients, torch.stack(losses).mean(0))


@torch.no_grad()
def mean_accuracy(last: Round) -> float:
    """Mean over clients of the accuracy on their own test rows, among their own classes."""
    found = []
    for client in last.clients:
        scores = client.beta(leaky_relu(last.alpha(client.phi(client.test_x))))
        classes = torch.tensor(client.classes)
        right = classes[scores[:, classes].argmax(1)] == client.test_y
        found.append(float(right.double().mean()))
    return sum(found) / len(found)


def main() -> None:
    """Train a small toy federation and print how it goes."""
    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    toy = ToyConfig(
        problem="noisy-features", num_clients=6, num_classes=6, train_rows_per_class=400
    )
    data, last = make_toy(toy, seed=0), None
    for t, last in enumerate(flic(data, Settings(), seed=0), start=1):
        f, pull, calibration = last.losses.tolist()
        print(f"round {t}: data {f:.4f}, alignment {pull:.4f}, calibration {calibration:.4f}")
    assert last is not None
    print(f"mean accuracy: {mean_accuracy(last):.3f}")


if __name__ == "__main__":
    main()
