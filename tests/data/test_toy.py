"""Laws of the toy problems: their shapes, their seeds, and a ceiling that is one."""

from statistics import mean

import pytest
import torch
from pydantic import ValidationError
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.pipeline import make_pipeline

from flic.data.ceiling import bayes_accuracy
from flic.data.client_data import FederatedData, Split
from flic.data.inspect import refuse_unusable
from flic.data.toy import ToyConfig, make_toy
from flic.errors import DataError

PROBLEMS = ("noisy-features", "linear-mapping")
VARIANTS = ("paper", "appendix", "authors")
EVERY_TOY = [(problem, variant) for problem in PROBLEMS for variant in VARIANTS]


def make_small(problem: str, variant: str, *, seed: int = 0, **settings) -> FederatedData:
    rows = {"train_rows_per_class": 60, "test_rows_per_class": 30}
    settings = {"num_clients": 12, **rows, **settings}
    config = ToyConfig.model_validate({"problem": problem, "variant": variant, **settings})
    return make_toy(config, seed=seed)


def is_same(a: Split, b: Split) -> bool:
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


@pytest.mark.parametrize(("problem", "variant"), EVERY_TOY)
def test_same_seed_same_data(problem, variant):
    first, again = (make_small(problem, variant, seed=4) for _ in range(2))
    for a, b in zip(first.clients, again.clients, strict=True):
        assert is_same(a.train, b.train)
        assert is_same(a.test, b.test)
        assert (a.name, a.schema, a.ceiling) == (b.name, b.schema, b.ceiling)


@pytest.mark.parametrize(("problem", "variant"), EVERY_TOY)
def test_other_seed_other_data(problem, variant):
    first, other = (make_small(problem, variant, seed=seed) for seed in (0, 1))
    assert [c.classes for c in first.clients] != [c.classes for c in other.clients]
    assert [c.schema.dim for c in first.clients] != [c.schema.dim for c in other.clients]


@pytest.mark.parametrize(("problem", "variant"), EVERY_TOY)
def test_made_data_pass_inspection_and_fit_their_contract(problem, variant):
    data = make_small(problem, variant)
    refuse_unusable(data)
    assert [client.name for client in data.clients[:2]] == ["client-000", "client-001"]
    for client in data.clients:
        assert client.schema.space == client.name
        assert client.train.x.dtype == torch.float32
        assert client.train.y.dtype == torch.int64
        assert client.validation.x.shape == (0, client.schema.dim)
        assert set(client.test.y.tolist()) == set(client.classes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "variant", "least", "largest"),
    [
        ("noisy-features", "paper", 5, 15),
        ("noisy-features", "appendix", 6, 15),
        ("noisy-features", "authors", 6, 15),
        ("linear-mapping", "paper", 5, 30),
        ("linear-mapping", "appendix", 5, 50),
        ("linear-mapping", "authors", 3, 99),
    ],
)
def test_input_dimensions_fill_their_range(problem, variant, least, largest):
    rows = {"train_rows_per_class": 100, "test_rows_per_class": 100}
    data = make_small(problem, variant, num_clients=600, **rows)
    dims = {client.schema.dim for client in data.clients}
    assert (min(dims), max(dims)) == (least, largest)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_distinct_classes_in_the_paper_repeats_with_the_authors(problem):
    for variant in ("paper", "appendix"):
        assert {len(c.classes) for c in make_small(problem, variant).clients} == {3}
    with_repeats = make_small(problem, "authors", num_clients=100)
    assert {len(c.classes) for c in with_repeats.clients} == {2, 3}


def test_rows_per_class_follow_the_variant():
    for problem, test_rows in (("noisy-features", 1000), ("linear-mapping", 2000)):
        data = make_toy(ToyConfig.model_validate({"problem": problem}), seed=0)
        assert sum(len(client.test) for client in data.clients) == 20 * test_rows
        # 2000 rows per class, of which the subsampling keeps 40 % on average
        kept = sum(len(client.train) for client in data.clients) / (20 * 2000)
        assert 0.3 < kept < 0.5


def test_noise_columns_are_standard_and_differ_between_rows_and_clients():
    data = make_small("noisy-features", "authors", test_rows_per_class=400)
    noise = [client.test.x[:, 5:] for client in data.clients]
    values = torch.cat([columns.flatten() for columns in noise])
    assert len(values.unique()) > 0.999 * len(values)
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03


def test_a_linear_map_has_the_rank_of_its_latent_space():
    for client in make_small("linear-mapping", "authors", num_clients=20).clients:
        assert torch.linalg.matrix_rank(client.test.x, rtol=1e-4) == min(5, client.schema.dim)


@pytest.mark.parametrize(
    ("variant", "least", "largest"), [("appendix", 0.5, 0.9), ("authors", 0.0, 0.1)]
)
def test_only_the_appendix_gives_every_class_a_covariance_of_its_own(variant, least, largest):
    # A linear map shifts all log-determinants alike, so their spread is that of the latent
    # classes: √(5 · Var log U(0.5, 1.5)) ≈ 0.69 between classes, and 0 for equal ones.
    rows = {"num_clients": 6, "num_classes": 12, "test_rows_per_class": 20_000}
    deviations = []
    for client in make_small("linear-mapping", variant, classes_per_client=12, **rows).clients:
        seen = PCA(min(5, client.schema.dim), whiten=True).fit_transform(client.test.x.numpy())
        parts = [torch.from_numpy(seen)[client.test.y == label] for label in client.classes]
        deviations.append(torch.stack([part.T.cov().logdet() for part in parts]).std().item())
    assert least <= mean(deviations) < largest


def test_bayes_accuracy_of_two_known_gaussians():
    # N(±1, 1): the better side of 0 is right with probability Φ(1) = 0.8413
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(2).repeat_interleave(20_000)
    x = (2.0 * y - 1)[:, None] + torch.randn(len(y), 1, generator=rng)
    means, covariances = torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1, 1)
    assert bayes_accuracy(Split(x, y), means, covariances) == pytest.approx(0.8413, abs=0.006)


def test_bayes_accuracy_uses_the_priors_of_the_test_rows():
    # equal Gaussians: nothing but the more frequent class can be right
    test = Split(torch.randn(100, 2), torch.tensor([4] * 80 + [1] * 20))
    means, covariances = torch.zeros(5, 2), torch.eye(2).expand(5, 2, 2)
    assert bayes_accuracy(test, means, covariances) == pytest.approx(0.8)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "variant"), EVERY_TOY)
def test_ceiling_is_what_plenty_of_data_reach_and_do_not_exceed(problem, variant):
    data = make_small(
        problem,
        variant,
        num_clients=20,
        num_classes=8,
        train_rows_per_class=40_000,
        test_rows_per_class=8_000,
    )
    has_own_covariances = (problem, variant) == ("linear-mapping", "appendix")
    fit = QuadraticDiscriminantAnalysis if has_own_covariances else LinearDiscriminantAnalysis
    gaps = []
    for client in data.clients:
        # a map into more dimensions than it comes from leaves collinear columns
        train, test = client.train.x.double(), client.test.x.double()
        rank = int(torch.linalg.matrix_rank(test, rtol=1e-4))
        model = make_pipeline(PCA(rank, whiten=True, svd_solver="full"), fit())
        model.fit(train.numpy(), client.train.y.numpy())
        score = model.score(test.numpy(), client.test.y.numpy())
        assert client.ceiling is not None
        gaps.append(client.ceiling - float(score))
    assert -0.002 < mean(gaps) < 0.01
    assert min(gaps) > -0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "figure"), [("noisy-features", 79.5), ("linear-mapping", 66.3)]
)
def test_ceiling_of_the_authors_variant_matches_their_figure(problem, figure):
    config = ToyConfig.model_validate({"problem": problem})
    ceilings = [
        client.ceiling or 0 for seed in range(5) for client in make_toy(config, seed=seed).clients
    ]
    assert 100 * mean(ceilings) == pytest.approx(figure, abs=2)


@pytest.mark.parametrize("classes", [0, 1, 21])
def test_impossible_classes_per_client_are_refused(classes):
    with pytest.raises(ValidationError, match=r"expected from 2 to num_classes \(20\)"):
        ToyConfig(problem="noisy-features", classes_per_client=classes)


@pytest.mark.parametrize(
    "settings",
    [
        {"problem": "unheard-of"},
        {"problem": "noisy-features", "variant": "other"},
        {"problem": "noisy-features", "num_clients": 0},
        {"problem": "noisy-features", "train_rows_per_class": 0},
        {"problem": "noisy-features", "typo": 1},
    ],
)
def test_unknown_or_impossible_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        ToyConfig.model_validate(settings)


def test_more_clients_than_rows_are_refused():
    with pytest.raises(DataError, match="expected at least one row per shard"):
        make_small("noisy-features", "paper", train_rows_per_class=1)
