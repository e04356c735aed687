"""FLIC-FedRep on the oracle of the theory: convergence to the true subspace.

Paper: fig:conv_Q (also fig:small_data), theorem2, theorem:1. The same functions run on φ̂, on the
oracle's own φ*, on the map and the gradient as printed, and on moments estimated from rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, log
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from flic.engine.rounds import active_clients
from flic.gaussians import AffineMap, Gaussian
from flic.methods.protocol import ServerState
from flic.seeding import generator
from flic_paper.linear.flic_fedrep import (
    EmbeddedRows,
    contraction_bound,
    estimated_embedding,
    fit_heads,
    largest_step,
    predict,
    principal_angle_distance,
    representation,
    run,
)
from flic_paper.linear.oracle import (
    LabelledRows,
    LinearOracle,
    LinearOracleConfig,
    OracleClient,
    make_linear_oracle,
)
from flic_paper.study import WHICH, Cell, CellContext, Results, Scope, Study, Table, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Embeddings = Callable[[LinearOracle, int], Sequence[AffineMap]]
"""The maps of all clients, given the oracle and the seed."""

_PAPER_ERROR = 4.98e-5  # fig:conv_Q, test data, both methods
_ROUNDS = 400  # T
_ROWS = 200  # n
_TEST_ROWS = 200
_SHOWN_ROWS = 12
_FLOOR = 1e-12  # below it, the distance is rounding error


@dataclass(frozen=True)
class Variant:
    """One way to run the algorithm."""

    embeddings: Embeddings
    participation: float = 0.5  # r
    step_factor: float = 1.0  # times the largest η that the theorem allows


def _ours(oracle: LinearOracle, seed: int) -> list[AffineMap]:
    del seed
    return [estimated_embedding(client.moments, oracle.latent_dim) for client in oracle.clients]


def _oracle(oracle: LinearOracle, seed: int) -> list[AffineMap]:
    del seed
    return [client.embedding for client in oracle.clients]


def unrotated(oracle: LinearOracle, seed: int) -> list[AffineMap]:
    """φ̂_i as printed, [D^{-½} 0](x − m_i): without the rotation into the eigenbasis.

    Paper: subsec:proj_feat.
    """
    del seed
    return [_unrotated_map(client.moments, oracle.latent_dim) for client in oracle.clients]


def _unrotated_map(moments: Gaussian, k: int) -> AffineMap:
    variances = torch.linalg.eigvalsh(moments.covariance).flip(-1)
    matrix = torch.diag(variances.rsqrt())[:k]
    return AffineMap(matrix, moments.mean, torch.zeros_like(variances[:k]))


def estimated(rows: int) -> Embeddings:
    """Maps φ̂_i from the sample moments of `rows` unlabelled rows.

    Paper: sec:theory, where the moments are known.
    """

    def embeddings(oracle: LinearOracle, seed: int) -> list[AffineMap]:
        seen = (
            client.moments.sample(rows, generator=generator(seed, "moments", client.name))
            for client in oracle.clients
        )
        return [estimated_embedding(Gaussian.from_samples(x), oracle.latent_dim) for x in seen]

    return embeddings


_MOMENT_ROWS = (200, 2_000, 20_000, 200_000)


def _by_moments(rows: int) -> str:
    return f"moments of {rows:,} rows"


VARIANTS: Mapping[str, Variant] = {
    "FLIC-FedRep": Variant(_ours),
    "FedRep on φ*": Variant(_oracle),
    "FLIC-FedRep, all clients": Variant(_ours, participation=1.0),
    "printed: no rotation": Variant(unrotated),
    "printed: no 1/(2n)": Variant(_ours, step_factor=2.0 * _ROWS),
} | {_by_moments(rows): Variant(estimated(rows)) for rows in _MOMENT_ROWS}
_SLOW = _by_moments(_MOMENT_ROWS[-1])  # left out of the quick study


def _train(name: str, seed: int, context: CellContext) -> dict[str, Any]:
    """Distances and test errors round by round, and the bounds of the theorem."""
    context.tell(f"{name}, seed {seed}")
    variant, oracle = VARIANTS[name], make_linear_oracle(LinearOracleConfig(), seed=seed)
    active = _active_sets(oracle, variant.participation, seed=seed)
    heads = torch.stack([oracle.heads_of(names) for names in active])
    allowed = largest_step(heads)
    maps = variant.embeddings(oracle, seed)
    train = _embedded(oracle, maps, _ROWS, seed=seed, purpose="train")
    test = _embedded(oracle, maps, _TEST_ROWS, seed=seed, purpose="test")
    step = variant.step_factor * allowed
    states = run(train, rank=heads.shape[-1], step_size=step, active=active)
    distances = _distances(states, oracle, name)
    return {
        "distances": distances,
        "errors": [_error(state, train, test) for state in states],
        "bound": contraction_bound(heads, step_size=allowed, start_distance=distances[0]),
        "printed": _printed_rate(heads, allowed, distances[0]),
        "flipped": _flipped(maps, _ours(oracle, seed)),
        "pictured": _picture(oracle, maps[0], seed=seed),
    }


def _active_sets(oracle: LinearOracle, participation: float, *, seed: int) -> list[list[str]]:
    names = [client.name for client in oracle.clients]
    return [active_clients(names, participation, seed=seed, round=t) for t in range(_ROUNDS)]


def _draw(
    oracle: LinearOracle, client: OracleClient, rows: int, *, seed: int, purpose: str
) -> LabelledRows:
    return oracle.draw(client, rows, rng=generator(seed, "linear-oracle", purpose, client.name))


def _embedded(
    oracle: LinearOracle, maps: Sequence[AffineMap], rows: int, *, seed: int, purpose: str
) -> EmbeddedRows:
    drawn = [_draw(oracle, c, rows, seed=seed, purpose=purpose) for c in oracle.clients]
    return EmbeddedRows(
        names=[client.name for client in oracle.clients],
        features=torch.stack([phi(rows.x) for phi, rows in zip(maps, drawn, strict=True)]),
        y=torch.stack([rows.y for rows in drawn]),
    )


def _distances(states: Sequence[ServerState], oracle: LinearOracle, name: str) -> list[float]:
    """dist(A, QA*) after each round; Q is I for FedRep, which sees φ* itself."""
    sees_oracle = VARIANTS[name].embeddings is _oracle
    Q = torch.ones_like(oracle.signs) if sees_oracle else oracle.signs
    target = Q[:, None] * oracle.representation
    return [principal_angle_distance(representation(state), target) for state in states]


def _error(state: ServerState, train: EmbeddedRows, test: EmbeddedRows) -> float:
    """Mean |y − ŷ| on test rows, heads fitted to the training rows."""
    predicted = predict(state, fit_heads(state, train), test.features)
    return float((predicted - test.y).abs().mean())


def _printed_rate(heads: Float[Tensor, "sets active d"], step: float, distance: float) -> float:
    """Factor per round by the printed formula, (1 − κ)^½ with κ = 1 − η E₀ σ̄²_min / 2.

    Paper: theorem:1, E₀ the distance at the start.
    """
    least = float((torch.linalg.svdvals(heads).square() / heads.shape[-2]).min())
    return (step * distance * least / 2) ** 0.5


def _flipped(maps: Sequence[AffineMap], true: Sequence[AffineMap]) -> int:
    """Number of latent axes of all clients that point against those of the true moments."""
    pairs = zip(maps, true, strict=True)
    return sum(int(((a.matrix * b.matrix).sum(-1) < 0).sum()) for a, b in pairs)


def _picture(oracle: LinearOracle, phi: AffineMap, *, seed: int) -> dict[str, Any]:
    """φ* and φ̂ of a few rows of the first client, in two coordinates; flipped ones first."""
    client = oracle.clients[0]
    x = _draw(oracle, client, _SHOWN_ROWS, seed=seed, purpose="test").x
    shown = oracle.signs.argsort(stable=True)[:2]
    return {
        "oracle": client.embedding(x)[:, shown].tolist(),
        "ours": phi(x)[:, shown].tolist(),
    }


def _rate(distances: Sequence[float]) -> float:
    """Mean factor per round: slope of the log distances while above rounding errors."""
    logs = [log(d) for d in distances if d > _FLOOR]
    rounds = range(len(logs))
    centre_t, centre = fmean(rounds), fmean(logs)
    covariance = fmean((t - centre_t) * (v - centre) for t, v in zip(rounds, logs, strict=True))
    return exp(covariance / fmean((t - centre_t) ** 2 for t in rounds))


def _worst_factor(distances: Sequence[float]) -> float:
    """Largest factor of a single round while above rounding errors."""
    return max(after / before for before, after in pairwise(distances) if after > _FLOOR)


def _first_round(errors: Sequence[float]) -> int | None:
    """First round whose test error is at most the paper's."""
    return next((t for t, error in enumerate(errors) if error <= _PAPER_ERROR), None)


Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Results by variant, then by seed."""


def _by_variant(results: Results) -> Runs:
    found: dict[str, dict[str, Any]] = {}
    for key, result in results.items():
        # names of variants have a slash, seeds do not
        name, seed = key.rsplit("/", 1)
        found.setdefault(name, {})[seed] = result
    return {name: found[name] for name in VARIANTS if name in found}


def _which(by_seed: Mapping[str, Any]) -> str:
    return listed(map(int, by_seed))


def _error_table(runs: Runs) -> Table:
    rows = []
    known = [name for name in runs if not name.startswith("moments")]
    for name in known:
        seeds = runs[name].values()
        reached = [t for s in seeds if (t := _first_round(s["errors"])) is not None]
        rows.append(
            [
                name,
                _which(runs[name]),
                f"{max(s['distances'][-1] for s in seeds):.1e}",
                f"{max(s['errors'][-1] for s in seeds):.2e}",
                f"{_PAPER_ERROR:.2e}" if name in ("FLIC-FedRep", "FedRep on φ*") else None,
                max(reached) if len(reached) == len(seeds) else None,
            ]
        )
    return Table(
        name="linear-regression",
        title=f"Linear regression after {_ROUNDS} rounds, worst of the seeds",
        columns=["features", WHICH, "dist(A, QA*)", "test |y − ŷ|", "paper", "reached in round"],
        rows=rows,
        note=(
            "Labels are noiseless with standard deviation √2, half the clients are active in a "
            "round. 'reached in round' is the first round with the paper's error or less; the "
            "paper does not say after how many rounds it has its own."
        ),
    )


def _rate_table(runs: Runs) -> Table:
    rows = []
    for name in ("FLIC-FedRep", "FedRep on φ*", "FLIC-FedRep, all clients"):
        for seed, found in runs.get(name, {}).items():
            distances = found["distances"]
            factors = (_rate(distances), _worst_factor(distances), found["bound"], found["printed"])
            rows.append([name, int(seed), *(round(factor, 3) for factor in factors)])
    table = Table(
        name="linear-regression-rate",
        title="Factor by which dist(A, QA*) falls in a round",
        columns=["features", "seed", "mean", "largest", "bound", "printed κ"],
        rows=rows,
        note=(
            "'bound' is (1 − η E₀ σ²_min/2)^½ with E₀ = 1 − dist²(A⁰, QA*) over the active sets "
            "met, as Collins et al. prove it; 'printed κ' is what the theorem claims as printed, "
            "and faster than what happens."
        ),
    )
    return table.cut(table.columns, lambda row: row["seed"] == 0)


def _moments_table(runs: Runs) -> Table:
    rows = []
    for n in _MOMENT_ROWS:
        if by_seed := runs.get(_by_moments(n)):
            errors = [found["errors"][-1] for found in by_seed.values()]
            spread = (round(value, 4) for value in (min(errors), fmean(errors), max(errors)))
            flipped = round(fmean(found["flipped"] for found in by_seed.values()), 1)
            rows.append([n, _which(by_seed), flipped, *spread])
    config = LinearOracleConfig()
    axes = config.num_clients * config.latent_dim
    return Table(
        name="linear-regression-moments",
        title="What estimating the moments costs: test |y − ŷ|",
        columns=["rows for moments", WHICH, f"flipped of {axes}", "least", "mean", "largest"],
        rows=rows,
        note=(
            "The theorem takes the true m_i and Σ_i. Estimated axes are tilted by an angle of "
            "order 1/√rows, and where the two largest entries of an eigenvector are nearly equal "
            "its sign may flip on one client: Q is then no longer the same for all."
        ),
    )


def _first(by_seed: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(iter(by_seed.values()))


def _draw_distances(ax: "Axes", runs: Runs) -> None:
    for name, by_seed in runs.items():
        ax.semilogy(_first(by_seed)["distances"], label=name)
    first = _first(runs["FLIC-FedRep"])
    bound = [first["distances"][0] * first["bound"] ** t for t in range(_ROUNDS + 1)]
    ax.semilogy(bound, "k--", label="bound, FLIC-FedRep")
    ax.set(xlabel="round t", ylabel="dist(A, QA*)", title="Convergence of A")
    ax.legend(fontsize="x-small")


def _draw_picture(ax: "Axes", pictured: Mapping[str, Any]) -> None:
    for a, b in zip(pictured["oracle"], pictured["ours"], strict=True):
        ax.plot(*zip(a, b, strict=True), "r--", lw=0.7)
    ax.plot(*zip(*pictured["oracle"], strict=True), "o", label="φ*(x)")
    ax.plot(*zip(*pictured["ours"], strict=True), "^", label="φ̂(x)")
    ax.set(title="Same rows under both maps", xlabel="a coordinate", ylabel="another")
    ax.legend()


class LinearRegression(Study):
    """Convergence on the oracle's problem."""

    name = "linear-regression"
    title = "FLIC-FedRep on linear regression: convergence of A and test errors"
    paper = "fig:conv_Q"

    def cells(self, scope: Scope) -> Sequence[Cell]:
        return [
            Cell(f"{name}/{seed}", partial(_train, name, seed))
            for name in VARIANTS
            if not (scope.quick and name == _SLOW)
            for seed in scope.seeds_or(5)
        ]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        del scope
        runs = _by_variant(results)
        return [_error_table(runs), _rate_table(runs), _moments_table(runs)]

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        from matplotlib.figure import Figure

        del scope
        runs = _by_variant(results)
        if "FLIC-FedRep" not in runs:
            return {}
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        convergence, picture = figure.subplots(1, 2)
        _draw_distances(convergence, runs)
        _draw_picture(picture, _first(runs["FLIC-FedRep"])["pictured"])
        return {"linear-regression": figure}


STUDY = LinearRegression()
