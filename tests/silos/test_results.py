"""The table of results: the same figures as the splits gave, one row each."""

import numpy as np
import pytest

from flic.silos.results import Results

SHARE = {"a": 0.25, "b": 0.5}


def split(lda, flic, kept):
    """One split of two clients; b is not served by flic."""
    figures = {
        "lda": {"a": {"accuracy": lda, "auroc": np.nan}, "b": {"accuracy": 0.5, "auroc": 0.6}},
        "flic": {"a": {"accuracy": flic, "auroc": 0.9}},
    }
    chosen = {
        "alone": {"a": "lda", "b": "lda"},
        "federated": {"a": "flic"},
        "kept": {"a": kept, "b": "lda"},
    }
    return Results.of_split(figures, chosen, SHARE)


@pytest.fixture
def results():
    return Results.of_splits([split(0.7, 0.8, "flic"), split(0.6, 0.4, "lda")])


def test_each_figure_is_one_row(results):
    assert len(results.table) == 2 * 6
    assert results.num_splits == 2
    assert results.values("flic", "a", "accuracy").tolist() == [0.8, 0.4]
    assert results.served() == {"lda": ["a", "b"], "flic": ["a"]}


def test_a_choice_is_measured_by_what_was_chosen_on_each_split(results):
    assert results.chosen_values("kept", "a", "accuracy").tolist() == [0.8, 0.6]
    assert results.chosen_values("alone", "a", "accuracy").tolist() == [0.7, 0.6]
    assert results.chosen("kept", "a").tolist() == ["flic", "lda"]


def test_a_client_that_nothing_federated_serves_stays_alone(results):
    assert results.chosen("federated", "b").empty
    assert results.chosen_values("federated", "b", "accuracy").tolist() == [0.5, 0.5]


def test_means_are_over_the_splits_on_which_a_figure_is_defined(results):
    means = results.means
    assert means["flic"]["a"] == pytest.approx({"accuracy": 0.6, "auroc": 0.9})
    assert means["lda"]["b"] == pytest.approx({"accuracy": 0.5, "auroc": 0.6})
    assert np.isnan(means["lda"]["a"]["auroc"])
    assert results.mean_test_share == pytest.approx(np.mean([*SHARE.values()]))


def test_a_file_gives_the_same_table(results):
    assert Results.load(results.dump()) == results
    late = Results.of_split(
        {"lda": {"c": {"accuracy": 1.0}}},
        {"alone": {"c": "lda"}, "federated": {}, "kept": {"c": "lda"}},
        {"c": 0.3},
    )
    more = results.with_more(Results.of_splits([late]))
    assert more != results
    assert {*more.served()["lda"]} == {"a", "b", "c"}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"split,candidate"])
def test_another_file_is_refused(content):
    with pytest.raises(ValueError, match=r"results|[Pp]arquet"):
        Results.load(content)


def test_a_table_of_other_columns_is_refused(results):
    with pytest.raises(ValueError, match="other columns"):
        Results.load(Results(results.table.drop(columns="kept")).dump())


def test_words_that_are_not_utf_8_are_refused(results):
    """Parquet keeps a column's words in its dictionary, once each."""
    content = results.dump().replace(b"accuracy", b"accur\xffcy")
    with pytest.raises(ValueError, match="cannot be read"):
        Results.load(content)
