"""Federations with real responses: synthetic ones with few rows, and the diabetes study by columns.

Paper: "Reference Distribution for Regression" has no data of its own.
"""

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.problem import Problem
from flic.data.schema import FeatureSchema
from flic.data.task import Regression
from flic.seeding import generator


class MadeRegressionConfig(Problem):
    """Settings of the synthetic problem; each client draws from the ranges, ends included."""

    problem: Literal["made-regression"]
    num_clients: int = Field(default=40, ge=1)  # b
    latent_dim: int = Field(default=5, ge=1)
    features: tuple[int, int] = (5, 20)  # k_i
    rows: tuple[int, int] = (10, 60)  # training rows
    test_rows: int = Field(default=200, ge=2)
    noise: float = Field(default=0.5, ge=0)  # standard deviation, of features and responses

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        _refuse_bad_range("features", self.features, least=1)
        _refuse_bad_range("rows", self.rows, least=2)
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_regression(self, seed=seed)


class DiabetesConfig(Problem):
    """Settings of the diabetes problem: rows are divided, and each client has its own columns."""

    problem: Literal["diabetes"]
    num_clients: int = Field(default=12, ge=1)  # b; 265 training rows are dealt out evenly
    columns: tuple[int, int] = (3, 7)  # of 10, drawn from per client, ends included
    test_share: float = Field(default=0.4, gt=0, lt=1)

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        _refuse_bad_range("columns", self.columns, least=1)
        if self.columns[1] > len(DIABETES_COLUMNS):
            raise ValueError(
                f"columns is {list(self.columns)}; expected at most {len(DIABETES_COLUMNS)}, which "
                "is all there are. Lower the upper end."
            )
        train = DIABETES_ROWS - round(self.test_share * DIABETES_ROWS)
        if train // self.num_clients < 4:
            raise ValueError(
                f"num_clients is {self.num_clients} for {train} training rows; expected four rows "
                "for each client at least. Lower num_clients or test_share."
            )
        return self

    def make(self, *, seed: int) -> FederatedData:
        return make_diabetes(self, seed=seed)


def _refuse_bad_range(name: str, bounds: tuple[int, int], *, least: int) -> None:
    if not least <= bounds[0] <= bounds[1]:
        raise ValueError(
            f"{name} is {list(bounds)}; expected a lower end of at least {least} and an upper end "
            "that is not below it. Change the range."
        )


def make_regression(config: MadeRegressionConfig, *, seed: int) -> FederatedData:
    """Clients with rows of one latent distribution, each through its own linear map.

    z ~ N(0, I), y = ⟨w, z⟩ + noise with one direction w for all, x = zL_i + noise.
    """
    direction = torch.randn(config.latent_dim, generator=generator(seed, "made-regression"))
    direction = direction / direction.norm()
    # Known from the construction: the response has mean 0 and this standard deviation.
    reach = 4 * (1 + config.noise**2) ** 0.5
    clients = tuple(
        _make_client(f"client-{i:03d}", config, direction, seed=seed)
        for i in range(config.num_clients)
    )
    return FederatedData("made-regression", Regression(-reach, reach), clients)


def _make_client(
    name: str, config: MadeRegressionConfig, direction: Tensor, *, seed: int
) -> ClientData:
    rng = generator(seed, "made-regression", name)
    dim, rows = (_draw_between(bounds, rng=rng) for bounds in (config.features, config.rows))
    # Features have variance 1 without the noise, for any latent dimension.
    L = torch.randn(config.latent_dim, dim, generator=rng) / config.latent_dim**0.5

    def draw(n: int) -> Split:
        z = torch.randn(n, config.latent_dim, generator=rng)
        x = z @ L + config.noise * torch.randn(n, dim, generator=rng)
        return Split(x, z @ direction + config.noise * torch.randn(n, generator=rng))

    schema = FeatureSchema(name, tuple(f"x{j}" for j in range(dim)))
    train, test = draw(rows), draw(config.test_rows)
    ceiling = _bayes_r2(test, L, direction, config.noise)
    return ClientData(name, schema, train, Split.empty(dim), test, ceiling)


def _bayes_r2(test: Split, L: Tensor, direction: Tensor, noise: float) -> float:
    """R² of E[y | x] = x (LᵀL + σ²I)⁻¹ Lᵀw on the test rows."""
    L, w, x, y = L.double(), direction.double(), test.x.double(), test.y.double()
    covariance = L.T @ L + noise**2 * torch.eye(L.shape[1], dtype=torch.float64)
    predicted = x @ (torch.linalg.pinv(covariance, hermitian=True) @ (L.T @ w))
    return 1 - ((predicted - y).square().sum() / (y - y.mean()).square().sum()).item()


def _draw_between(bounds: tuple[int, int], *, rng: torch.Generator) -> int:
    return int(torch.randint(bounds[0], bounds[1] + 1, (), generator=rng))


DIABETES_ROWS = 442

DIABETES_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")

DIABETES_RANGE = (0.0, 350.0)
"""Ends of the study's measure of disease progression."""


def make_diabetes(config: DiabetesConfig, *, seed: int) -> FederatedData:
    """Clients with some columns of the diabetes study each, and disjoint training rows.

    Test rows are of patients that no client trains on, the same at all clients.
    """
    from sklearn.datasets import load_diabetes

    table: Any = load_diabetes(scaled=False)  # its stub also allows data frames
    rows = Split(torch.from_numpy(table.data).float(), torch.from_numpy(table.target).float())
    order = torch.randperm(len(rows), generator=generator(seed, "diabetes"))
    cut = round(config.test_share * len(rows))
    test, shares = rows.take(order[:cut]), order[cut:].tensor_split(config.num_clients)
    clients = tuple(
        _make_ward(f"ward-{i:02d}", rows.take(share), test, config, seed=seed)
        for i, share in enumerate(shares)
    )
    return FederatedData("diabetes", Regression(*DIABETES_RANGE), clients)


def _make_ward(
    name: str, train: Split, test: Split, config: DiabetesConfig, *, seed: int
) -> ClientData:
    """Client with its own columns, standardised by its own training rows."""
    rng = generator(seed, "diabetes", name)
    count = _draw_between(config.columns, rng=rng)
    kept = torch.randperm(len(DIABETES_COLUMNS), generator=rng)[:count].sort().values
    mean, std = train.x.mean(0), train.x.std(0)
    std[std == 0] = 1.0
    train, test = (Split(((s.x - mean) / std)[:, kept], s.y) for s in (train, test))
    schema = FeatureSchema("diabetes", tuple(DIABETES_COLUMNS[j] for j in kept.tolist()))
    return ClientData(name, schema, train, Split.empty(count), test)
