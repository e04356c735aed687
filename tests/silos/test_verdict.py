"""The verdict: an interval that is honest about overlapping splits, words, and planted truths."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from flic.silos.choice import Choice
from flic.silos.fit_settings import fit_settings
from flic.silos.fitting import fit
from flic.silos.verdict import Difference, as_text, difference, reason, sentence, with_interval
from flic.tables import tables_from_frames


def test_the_interval_by_hand():
    gains = np.array([0.1, 0.3, 0.2, 0.0])
    found = difference(gains, 0.25)
    variance = gains.var(ddof=1) * (1 / 4 + 0.25 / 0.75)
    half = student.ppf(0.975, 3) * np.sqrt(variance)
    assert (found.mean, found.low, found.high) == pytest.approx((0.15, 0.15 - half, 0.15 + half))


def test_splits_on_which_a_metric_is_not_defined_do_not_count():
    known, gaps = np.array([0.1, 0.2, 0.4]), np.array([0.1, np.nan, 0.2, 0.4])
    assert difference(gaps, 0.2) == difference(known, 0.2)


@pytest.mark.parametrize("gains", [[], [0.3], [np.nan, 0.3]])
def test_less_than_two_splits_show_nothing(gains):
    found = difference(np.array(gains), 0.25)
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert found.word == "no difference shown"


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Gains of random splits of the same rows, as a verdict has them: correlated by their rows."""
    rng = np.random.default_rng(0)
    covered, tries, rows, share = 0, 400, 80, 0.25
    for _ in range(tries):
        own = rng.normal(0.0, 1.0, rows)  # gain of each row; its true mean is 0
        held_out = int(rows * share)
        gains = [own[rng.permutation(rows)[:held_out]].mean() for _ in range(10)]
        found = difference(np.array(gains), share)
        covered += found.low <= 0 <= found.high
    assert 0.92 <= covered / tries < 1


@pytest.mark.parametrize(
    ("gain", "word", "said"),
    [
        (Difference(0.02, 0.01, 0.03), "helps", "Joining helps a: +2.0 points"),
        (Difference(-0.02, -0.03, -0.01), "harms", "Joining harms a: -2.0 points"),
        (Difference(0.02, 0.0, 0.04), "no difference shown", "No difference shown for a"),
        (Difference(-0.02, -0.04, 0.0), "no difference shown", "No difference shown for a"),
    ],
)
@pytest.mark.parametrize("kept", ["flic", "lda"])
def test_words_and_sentences(gain, word, said, kept):
    text = sentence("a", gain, Choice(kept, None, 0, kept, 0), "accuracy", served=True)
    assert gain.word == word
    assert text.startswith(said)
    assert ("Stay alone" in text) == (kept == "lda" and word != "helps")
    against = (word == "helps" and kept == "lda") or (word == "harms" and kept == "flic")
    assert ("But the choice on all its rows is" in text) == against


def test_what_cannot_be_compared_is_said():
    choice = Choice("lda", None, 0, "lda", 0)
    alone = sentence("a", Difference(0.0, 0.0, 0.0), choice, "accuracy", served=False)
    assert alone == "No federated candidate can serve a. Stay alone."
    unknown = difference(np.array([np.nan, np.nan]), 0.25)
    text = sentence("a", unknown, choice, "auroc", served=True)
    assert text == "Not known for a: auroc is not defined on its held-out rows. Stay alone."


def test_no_share_differs_by_more_than_all():
    assert Difference(0.1, -3.3, 3.5).within(1.0) == Difference(0.1, -1.0, 1.0)


def test_a_reason_names_both_and_the_say():
    told = reason(Choice("flic", "lda", 0.0123, "flic", 0.4), "accuracy")
    assert "flic (shared anchors, private embeddings) came first, 1.2 points ahead of disc" in told
    assert "own rows count for up to 40%" in told
    assert "first, 0.012 ahead of" in reason(Choice("flic", "lda", 0.0123, "flic", 0.4), "auroc")
    turned = reason(Choice("lda", "linked", 0.006, "linked", 0.3), "accuracy")
    assert turned.startswith("pooled statistics of linked columns did best over all clients. But")
    assert "count for up to 30%, and with them discriminant analysis alone comes first" in turned
    alike = reason(Choice("flic", "lda", 0.0123, "flic", 0.001), "accuracy")
    assert "Clients differ too little for this client's own rows to change that" in alike
    tied = reason(Choice("flic", "lda", 0.0001, "flic", 0.4), "accuracy")
    assert "tied with discriminant" in tied
    assert "no other candidate" in reason(Choice("lda", None, 0, "lda", 0), "accuracy")


@pytest.mark.parametrize(
    ("metric", "difference", "score"),
    [("accuracy", "+1.2 points", "1.2 %"), ("r2", "+0.012", "0.012")],
)
def test_figures_as_people_read_them(metric, difference, score):
    found = with_interval(metric, Difference(0.012, 0.0, 0.012))
    assert found.startswith(f"{difference} (95 % interval")
    assert as_text(metric, 0.012) == score


# ---- planted truths --------------------------------------------------------------------------


COLUMNS = 12


def planted(clients, rows, *, reversed_client=None, seed=0):
    """Clients that read the same columns and ask the same question of them."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=COLUMNS)
    frames = {}
    for i in range(clients):
        x = rng.normal(size=(rows, COLUMNS))
        y = (x @ direction + rng.normal(0, 0.3, rows) > 0).astype(int)
        if i == reversed_client:
            y = 1 - y
        frames[f"c{i}"] = pd.DataFrame(x, columns=[f"x{j}" for j in range(COLUMNS)]).assign(ill=y)
    return tables_from_frames(frames, label="ill")


def verdict_of(tables, **changes):
    raw = {
        "repeats": 3,
        "folds": 2,
        "scheme": "splits",
        "test_share": 0.5,
        "candidates": ["lda", "same-space"],
        "network": {"training": {"rounds": 12, "local": "6 steps"}},
        **changes,
    }
    settings = fit_settings(raw, task="classification", source="test")
    return fit(tables, settings).verdict


@pytest.mark.slow
def test_sharing_that_helps_is_seen():
    found = verdict_of(planted(16, 20), repeats=4, test_share=0.34)
    assert found.all_clients.mean > 0.05
    assert found.kept_against_alone.mean > 0.05
    better = [line for line in found.clients if line.difference.mean > 0]
    assert len(better) > len(found.clients) / 2
    assert {line.kept for line in found.clients} == {"same-space"}


@pytest.mark.slow
def test_a_client_with_labels_the_other_way_round_is_not_harmed():
    found = verdict_of(planted(4, 60, reversed_client=3), repeats=5, test_share=0.34)
    odd = found["c3"]
    assert odd.difference.mean < -0.2
    assert odd.difference.word == "harms"
    assert "Stay alone" in odd.sentence
    assert odd.kept == "lda"
    assert odd.kept_against_alone.high >= 0
    assert odd.kept_against_alone.mean > -0.1
    assert found.kept_against_alone.mean > -0.05


@pytest.mark.slow
def test_candidates_that_rank_by_losses_keep_their_sign():
    found = verdict_of(planted(4, 24), metric="log_loss")
    for line in found.clients:
        gain = line.alone_score - line.federation_score  # a lower loss is better
        assert line.difference.mean == pytest.approx(gain)


def test_equal_gains_on_few_splits_prove_nothing():
    found = difference(np.array([-0.067, -0.067]), 0.25, least=0.5 / 15)
    assert found.word == "no difference shown"
    assert found.low < found.mean < found.high
