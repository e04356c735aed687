"""The two toy problems: Gaussian classes, observed through every client's own features.

Paper: "Data Sets" and "Toy data sets", fig:toyperf. The text, the appendix and the authors' code
describe three different data sets; all are here, by name.
"""

from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from flic.data.ceiling import bayes_accuracy
from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.partition import (
    Holdings,
    deal_rows,
    draw_classes,
    draw_shards_with_repeats,
    subsample,
)
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Classification
from flic.seeding import generator


class ToyConfig(Problem):
    """Settings of a toy problem.  Paper: "Toy data sets"."""

    problem: Literal["noisy-features", "linear-mapping"]
    variant: Literal["paper", "appendix", "authors"] = "authors"
    num_clients: int = Field(default=100, ge=1)  # b
    classes_per_client: int = 3  # |𝒴_i|
    num_classes: int = 20  # C
    train_rows_per_class: int | None = Field(default=None, ge=1)  # None: as the variant says
    test_rows_per_class: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _classes_fit(self) -> Self:
        if not 2 <= self.classes_per_client <= self.num_classes:
            raise ValueError(
                f"classes_per_client is {self.classes_per_client}; expected from 2 to num_classes "
                f"({self.num_classes}), since one class alone leaves nothing to tell apart. "
                "Change either number."
            )
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_toy(self, seed=seed)


@dataclass(frozen=True)
class _Recipe:
    """Parameters of one variant of a problem."""

    latent_dim: int
    dims: tuple[int, int]  # least and largest k_i
    centre_scale: float = 1.0
    variances: tuple[float, float] = (1.0, 1.0)  # range of each class's diagonal covariance
    test_rows_per_class: int = 2000
    train_rows_per_class: int = 2000


_RECIPES = {
    ("noisy-features", "paper"): _Recipe(5, (5, 15), test_rows_per_class=1000),
    ("noisy-features", "appendix"): _Recipe(5, (6, 15), test_rows_per_class=1000),
    ("noisy-features", "authors"): _Recipe(5, (6, 15), 0.8, test_rows_per_class=1000),
    ("linear-mapping", "paper"): _Recipe(30, (5, 30)),
    # "random diagonal covariance": the paper gives no range, this one keeps the mean at 1
    ("linear-mapping", "appendix"): _Recipe(5, (5, 50), variances=(0.5, 1.5)),
    ("linear-mapping", "authors"): _Recipe(5, (3, 99), 0.5),
}


@dataclass(frozen=True, eq=False)
class _Mixture:
    """The latent classes, N(means[c], diag(variances[c]))."""

    means: Tensor  # [C, d]
    variances: Tensor  # [C, d]

    @property
    def covariances(self) -> Tensor:  # [C, d, d]
        return self.variances.diag_embed()

    def draw(self, rows_per_class: int, *, rng: torch.Generator) -> Split:
        y = torch.arange(len(self.means)).repeat_interleave(rows_per_class)
        noise = torch.randn(len(y), self.means.shape[1], generator=rng)
        return Split(self.means[y] + self.variances[y].sqrt() * noise, y)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Rows of one client in its own features, and the Bayes accuracy on them."""

    train: Split
    test: Split
    ceiling: float


def make_toy(config: ToyConfig, *, seed: int) -> FederatedData:
    """Clients of a toy problem, each in a feature space of its own.

    Paper: "Toy data sets", fig:toyperf.
    """
    recipe = _RECIPES[config.problem, config.variant]
    rng = generator(seed, "toy", config.problem)
    mixture = _draw_mixture(recipe, config.num_classes, rng=rng)
    train = mixture.draw(config.train_rows_per_class or recipe.train_rows_per_class, rng=rng)
    test = mixture.draw(config.test_rows_per_class or recipe.test_rows_per_class, rng=rng)
    holdings = _draw_holdings(config, rng=rng)
    train_rows = deal_rows(train.y, holdings, rng=rng)
    test_rows = deal_rows(test.y, holdings, rng=rng)
    see = _append_noise if config.problem == "noisy-features" else _map_linearly
    clients = []
    for i, (rows, rows_of_test) in enumerate(zip(train_rows, test_rows, strict=True)):
        name = f"client-{i:03d}"
        client_rng = generator(seed, "toy", config.problem, name)
        dim = int(torch.randint(recipe.dims[0], recipe.dims[1] + 1, (), generator=client_rng))
        seen = see(mixture, train.take(rows), test.take(rows_of_test), dim, rng=client_rng)
        clients.append(_make_client(name, seen, rng=client_rng))
    name, task = f"{config.problem}-{config.variant}", Classification(config.num_classes)
    return FederatedData(name, task, tuple(clients))


def _draw_mixture(recipe: _Recipe, num_classes: int, *, rng: torch.Generator) -> _Mixture:
    """Random centres, and variances uniform in the recipe's range."""
    shape = (num_classes, recipe.latent_dim)
    low, high = recipe.variances
    means = recipe.centre_scale * torch.randn(shape, generator=rng)
    return _Mixture(means, low + (high - low) * torch.rand(shape, generator=rng))


def _draw_holdings(config: ToyConfig, *, rng: torch.Generator) -> Holdings:
    """Classes per client: distinct as the paper says, or with the authors' repeats."""
    draw = draw_shards_with_repeats if config.variant == "authors" else draw_classes
    return draw(config.num_clients, config.num_classes, config.classes_per_client, rng=rng)


def _append_noise(
    mixture: _Mixture, train: Split, test: Split, dim: int, *, rng: torch.Generator
) -> _Seen:
    """Latent rows with columns of N(0, 1) appended up to `dim`."""
    # noise tells nothing about the class, so the ceiling is that of the latent rows
    ceiling = bayes_accuracy(test, mixture.means, mixture.covariances)
    return _Seen(_widen(train, dim, rng=rng), _widen(test, dim, rng=rng), ceiling)


def _widen(split: Split, dim: int, *, rng: torch.Generator) -> Split:
    spurious = torch.randn(len(split), dim - split.x.shape[1], generator=rng)
    return Split(torch.cat([split.x, spurious], dim=1), split.y)


def _map_linearly(
    mixture: _Mixture, train: Split, test: Split, dim: int, *, rng: torch.Generator
) -> _Seen:
    """Latent rows under x ↦ xL, L of `dim` columns with iid N(0, 1) entries."""
    latent_dim = mixture.means.shape[1]
    L = torch.randn(latent_dim, dim, generator=rng)
    seen_test = Split(test.x @ L, test.y)
    if dim < latent_dim:
        covariances = L.double().T @ mixture.covariances.double() @ L.double()
        ceiling = bayes_accuracy(seen_test, mixture.means @ L, covariances)
    else:
        # L is injective and LᵀΣL singular: the ceiling is the same, and computed in latent space
        ceiling = bayes_accuracy(test, mixture.means, mixture.covariances)
    return _Seen(Split(train.x @ L, train.y), seen_test, ceiling)


def _make_client(name: str, seen: _Seen, *, rng: torch.Generator) -> ClientData:
    """Client in a space of its own name, with unevenly subsampled training rows."""
    dim = seen.test.x.shape[1]
    return ClientData(
        name=name,
        schema=FeatureSchema(space=name, features=tuple(f"x{j}" for j in range(dim))),
        # subsampled last, so that a row drawn twice is the same row, noise included
        train=seen.train.take(subsample(seen.train.y, rng=rng)),
        validation=Split.empty(dim),
        test=seen.test,
        ceiling=seen.ceiling,
    )
