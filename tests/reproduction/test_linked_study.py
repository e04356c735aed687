"""The study of linked features: whole seeds, paired by client, beside the best model alone."""

import pytest

from flic_paper.studies import STUDIES
from flic_paper.studies.linked import COLUMNS, FEDERATIONS, GAIN
from flic_paper.study import Scope

STUDY = STUDIES["linked"]


def result(*accuracies):
    clients = {f"client {i}": a for i, a in enumerate(accuracies)}
    return {"clients": clients, "ceiling": 0.9}


RESULTS = {
    "toy-noisy-features/linked/seed3": result(0.8, 0.7),
    "toy-noisy-features/lda/seed3": result(0.7, 0.75),
    "toy-noisy-features/logistic/seed3": result(0.5, 0.5),
    "toy-noisy-features/boosting/seed3": result(0.6, 0.6),
    "toy-noisy-features/linked/seed4": result(0.9, 0.9),  # of which the others are not done
    "toy-linear-mapping/linked/seed3": result(0.5, 0.7),
    "toy-linear-mapping/lda/seed3": result(0.5, 0.5),
    "toy-linear-mapping/logistic/seed3": result(0.6, 0.6),
}


def test_a_line_is_of_whole_seeds_against_the_best_alone():
    [table] = STUDY.tables(RESULTS, Scope(seeds=(3, 4)))
    row, other = table.rows
    line = dict(zip(COLUMNS, row, strict=True))
    assert line["federation"] == "toy, noisy features"
    assert line["which seeds"] == "3"
    assert line["linked %"] == 75.0
    assert line[GAIN] == 2.5  # of lda, which has 72.5
    assert line["±"] is None
    assert line["clients that gain %"] == 50
    assert line["Bayes %"] == 90.0
    line = dict(zip(COLUMNS, other, strict=True))
    assert line["boosting %"] is None  # not done yet
    assert line[GAIN] == 0.0


def test_an_interval_needs_two_seeds():
    more = {
        key.replace("seed3", "seed5"): value for key, value in RESULTS.items() if "seed3" in key
    }
    [table] = STUDY.tables({**RESULTS, **more}, Scope(seeds=(3, 4, 5)))
    row, _ = table.rows
    assert dict(zip(COLUMNS, row, strict=True))["±"] == 0.0


@pytest.mark.slow
def test_training_rows_of_clients_are_disjoint(need_data_of):
    need_data_of("linked")
    for name in ("mfeat, 30 rows", "mfeat, half linked", "toy, noisy features"):
        made = FEDERATIONS[name].make(7)
        seen: dict[str, set[bytes]] = {}
        for client in made.clients:
            # Noise and standardisation differ by client: rows are told apart by what is common.
            width = 5 if "toy" in name else client.schema.dim
            rows = {row.numpy().tobytes() for row in client.train.x[:, :width]}
            assert len(rows) == len(client.train) or "toy" not in name
            known = seen.setdefault(client.schema.space, set())
            assert not rows & known
            known |= rows


def test_controls_change_names_and_no_number(need_data_of):
    need_data_of("linked")
    plain, half, permuted = (
        FEDERATIONS[name].make(7).clients[0]
        for name in ("mfeat, 30 rows", "mfeat, half linked", "mfeat, links permuted")
    )
    assert plain.train.x.equal(half.train.x)
    assert plain.train.x.equal(permuted.train.x)
    assert half.schema.features[::2] == plain.schema.features[::2]
    assert not {*half.schema.features[1::2]} & {*plain.schema.features}
    assert sorted(permuted.schema.features) == sorted(plain.schema.features)
    assert permuted.schema.features != plain.schema.features
