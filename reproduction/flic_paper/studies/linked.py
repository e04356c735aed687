"""Linked features against the best model alone, on disjoint training rows, with controls.

All models are in closed form or fitted to one client: nothing is chosen on test rows. Of the models
alone, linked features are compared with the one that does best on the test rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch

from flic.config import resolve
from flic.data.client_data import ClientData, FederatedData
from flic.data.schema import FeatureSchema
from flic.data.toy import ToyConfig, make_toy
from flic.runs.run_folder import simulate
from flic.seeding import generator
from flic_paper.arms import revision
from flic_paper.problems.mnist_usps import MnistUspsConfig, make_mnist_usps
from flic_paper.problems.modalities import ModalitiesConfig, make_modalities
from flic_paper.problems.views import ViewsConfig, make_views
from flic_paper.study import WHICH, Cell, CellContext, Results, Scope, Study, Table, Value, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Make = Callable[[int], FederatedData]

QUICK_CLIENTS = 12
SEEDS, FRESH = 5, 30  # on the seeds before these the solver was built
LATENT = 5  # features of the noisy toy that are not noise


@dataclass(frozen=True)
class LinkedFederation:
    """Clients of a seed, and the models alone that linked features are compared with."""

    make: Make
    alone: Sequence[str] = ("lda", "logistic", "boosting")


def _mfeat(seed: int, rows_per_class: tuple[int, int] = (6, 6)) -> FederatedData:
    """Ten clients in each of six views, five digits each, 300 training rows a view."""
    config = ViewsConfig(num_clients=80, classes_per_client=(5, 5), rows_per_class=rows_per_class)
    made = make_views(config, seed=seed)
    six = tuple(c for c in made.clients if c.schema.space not in ("optical", "pen"))
    return replace(made, clients=six)


def _digits(seed: int) -> FederatedData:
    """Two hundred clients of five digits, 43 training images each, in two pixel grids."""
    config = MnistUspsConfig(num_clients=200, classes_per_client=5, train_rows_per_class=430)
    return make_mnist_usps(config, seed=seed)


def _fashion(seed: int) -> FederatedData:
    """A hundred clients with vectors of photos or of texts, three seasons each."""
    config = ModalitiesConfig(label="season", num_clients=100, classes_per_client=3, prune=0.0)
    return make_modalities(config, seed=seed)


def _noisy(seed: int) -> FederatedData:
    """The toy with noisy features; those that are not noise are linked."""
    made = _distinct(make_toy(ToyConfig(problem="noisy-features"), seed=seed))
    return _renamed(made, lambda client, j: j < LATENT, "toy")


def _mapped(seed: int) -> FederatedData:
    """The toy with linear maps; nothing is linked."""
    return _distinct(make_toy(ToyConfig(problem="linear-mapping"), seed=seed))


def _distinct(made: FederatedData) -> FederatedData:
    """The same clients without repeats of rows, which would mislead cross-validation."""

    def once(client: ClientData) -> ClientData:
        _, number = torch.unique(client.train.x, dim=0, return_inverse=True)
        first = {int(group): row for row, group in reversed([*enumerate(number)])}
        return replace(client, train=client.train.take(torch.tensor(sorted(first.values()))))

    return replace(made, clients=tuple(map(once, made.clients)))


def _half(seed: int) -> FederatedData:
    """The mfeat clients, with every other feature linked."""
    return _renamed(_mfeat(seed), lambda client, j: j % 2 == 0)


def _renamed(
    made: FederatedData, is_linked: Callable[[ClientData, int], bool], space: str | None = None
) -> FederatedData:
    """The same clients, with names of their own for features that are not linked."""

    def own(client: ClientData) -> ClientData:
        names = tuple(
            name if is_linked(client, j) else f"{name} of {client.name}"
            for j, name in enumerate(client.schema.features)
        )
        return replace(client, schema=FeatureSchema(space or client.schema.space, names))

    return replace(made, clients=tuple(map(own, made.clients)))


def _permuted(seed: int) -> FederatedData:
    """Clients whose feature names are shuffled."""

    def own(client: ClientData) -> ClientData:
        rng = generator(seed, "linked study", client.name)
        order = torch.randperm(client.schema.dim, generator=rng).tolist()
        names = tuple(client.schema.features[j] for j in order)
        return replace(client, schema=FeatureSchema(client.schema.space, names))

    made = _mfeat(seed)
    return replace(made, clients=tuple(map(own, made.clients)))


FEDERATIONS: Mapping[str, LinkedFederation] = {
    "mfeat, 30 rows": LinkedFederation(_mfeat),
    "mfeat, 25-60 rows": LinkedFederation(
        partial(_mfeat, rows_per_class=(5, 12)), ("lda", "logistic")
    ),
    "digits, 200 clients": LinkedFederation(_digits, ("lda", "logistic")),
    "fashion": LinkedFederation(_fashion, ("lda", "logistic")),
    "toy, noisy features": LinkedFederation(_noisy),
    "toy, linear mapping": LinkedFederation(_mapped),
    "mfeat, links permuted": LinkedFederation(_permuted, ("lda", "logistic")),
    "mfeat, half linked": LinkedFederation(_half, ("lda", "logistic")),
}


GAIN = "gain over the best alone"
COLUMNS = [
    *("federation", WHICH, "lda %", "logistic %", "boosting %", "linked %", "Bayes %"),
    *(GAIN, "±", "clients that gain %"),
]


def _work(make: Make, method: str, seed: int, quick: bool, context: CellContext) -> dict[str, Any]:
    """Test accuracy of every client."""
    context.tell(method)
    data = make(seed)
    if quick:
        data = replace(data, clients=data.clients[:QUICK_CLIENTS])
    settings = {"data": {"problem": "views"}, "evaluation": {"validation_share": 0.0, "every": 0}}
    config = resolve(settings, source="linked").for_method(method, seed=seed)
    known = [c.ceiling for c in data.clients if c.ceiling is not None]
    return {
        "clients": dict(simulate(config, data).last.clients),
        "ceiling": fmean(known) if len(known) == len(data.clients) else None,
    }


class LinkedStudy(Study):
    """Linked features, the models alone, and the effect of wrong links."""

    name = "linked"
    title = "Linked features against the best model alone, with controls"
    paper = "not in the paper"

    def cells(self, scope: Scope) -> Sequence[Cell]:
        """Cells seed by seed; boosting, which is slowest and worst, comes last."""
        quick, late = scope.quick, "boosting"
        cells = [
            (method, Cell(
                _key(name, method, seed),
                partial(_work, own.make, method, seed, quick),
                {"quick": quick},
                revision(method),
            ))
            for seed in scope.seeds_or(SEEDS, first=FRESH)
            for name, own in _federations(scope).items()
            for method in ("linked", *own.alone)
        ]  # fmt: skip
        return [cell for _, cell in sorted(cells, key=lambda pair: pair[0] == late)]

    def tables(self, results: Results, scope: Scope) -> Sequence[Table]:
        rows = _rows(results, scope)
        note = (
            "Mean test accuracy over clients, training rows of clients disjoint. Best alone: that "
            "of the highest test accuracy. ±: 95 % interval of the mean gain over seeds."
        )
        return [Table(self.name, self.title, COLUMNS, rows, note)]

    def figures(self, results: Results, scope: Scope) -> Mapping[str, "Figure"]:
        """Gains over the best model alone."""
        from matplotlib.figure import Figure

        lines = [dict(zip(COLUMNS, row, strict=True)) for row in _rows(results, scope)]
        if not lines:
            return {}
        figure = Figure(figsize=(6, 1 + 0.4 * len(lines)), layout="constrained")
        axes = figure.subplots()
        gains = [float(line[GAIN] or 0) for line in lines]
        axes.errorbar(
            gains, range(len(lines)), xerr=[float(line["±"] or 0) for line in lines], fmt="o"
        )
        axes.axvline(0, color="0.7", linewidth=0.8)
        axes.set_yticks(range(len(lines)), labels=[str(line["federation"]) for line in lines])
        axes.invert_yaxis()
        axes.set_xlabel("points over the best model alone")
        return {self.name: figure}


def _federations(scope: Scope) -> Mapping[str, LinkedFederation]:
    names = ("mfeat, 30 rows", "toy, noisy features") if scope.quick else FEDERATIONS
    return {name: FEDERATIONS[name] for name in names}


def _rows(results: Results, scope: Scope) -> list[list[Value]]:
    found = [
        _row(results, name, own.alone, scope.seeds_or(SEEDS, first=FRESH))
        for name, own in _federations(scope).items()
    ]
    return [row for row in found if row is not None]


def _key(name: str, method: str, seed: int) -> str:
    return f"{name.replace(', ', '-').replace(' ', '-')}/{method}/seed{seed}"


def _row(
    results: Results, name: str, alone: Sequence[str], seeds: Sequence[int]
) -> list[Value] | None:
    """A federation's row, from the seeds that linked features and two models alone have done."""
    whole = [s for s in seeds if all(_key(name, m, s) in results for m in ("linked", *alone[:2]))]
    if not whole:
        return None
    alone = [m for m in alone if all(_key(name, m, s) in results for s in whole)]
    methods = ("linked", *alone)
    found = {m: [results[_key(name, m, s)]["clients"] for s in whole] for m in methods}
    means = {m: fmean(fmean(own.values()) for own in of_seeds) for m, of_seeds in found.items()}
    best = max(alone, key=lambda m: means[m])
    gains = [
        [own[client] - other[client] for client in own]
        for own, other in zip(found["linked"], found[best], strict=True)
    ]
    every = [gain for of_seed in gains for gain in of_seed]
    ceilings = [results[_key(name, "linked", s)]["ceiling"] for s in whole]
    ceiling = fmean(ceilings) if None not in ceilings else None
    return [
        name,
        listed(whole),
        *(_percent(means.get(m)) for m in ("lda", "logistic", "boosting", "linked")),
        _percent(ceiling),
        _percent(fmean(every)),
        _percent(_half_width([fmean(of_seed) for of_seed in gains])),
        round(100 * fmean(gain > 0 for gain in every)),
    ]


def _half_width(gains: Sequence[float]) -> float | None:
    from scipy.stats import t as student

    if len(gains) < 2:
        return None
    return float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / len(gains) ** 0.5


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1) + 0.0  # no −0


STUDY = LinkedStudy()
