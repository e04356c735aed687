"""Scores of predictors: they are log-probabilities, and mixes are geometric means."""

import pytest
import torch

from flic.data.task import Classification, Regression
from flic.methods.linked.linked_client import best_of, best_of_mix
from flic.methods.linked.tuning import PREDICTORS, WEIGHTS, tuning_of

CLASSES, RESPONSES = tuning_of(Classification(3)), tuning_of(Regression(0.0, 1.0))


def scores(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_weights_are_the_simplex_in_quarters():
    assert len(set(WEIGHTS)) == len(WEIGHTS) == 15
    assert all(len(w) == len(PREDICTORS) and sum(w) == 1 and min(w) >= 0 for w in WEIGHTS)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_mix_is_the_normalised_geometric_mean(weights):
    parts = [scores(6, 3, seed=i).log_softmax(-1) for i in range(3)]
    plain = torch.stack([p.exp() ** w for p, w in zip(parts, weights, strict=True)]).prod(0)
    plain = plain / plain.sum(-1, keepdim=True)
    torch.testing.assert_close(CLASSES.answers(CLASSES.mixed(parts, weights)).exp(), plain)


def test_an_expert_without_weight_cannot_spoil_a_mix():
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    mixed = CLASSES.mixed([scores(1, 3).log_softmax(-1), certain, certain], (1.0, 0.0, 0.0))
    assert mixed.isfinite().all()


def test_score_is_the_mean_likelihood_of_the_truth_and_one_row_cannot_rule_it():
    answers = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64).log()
    truth = torch.tensor([0, 2])
    assert CLASSES.score(answers, truth).item() == pytest.approx((torch.tensor(0.5).log() - 10) / 2)


def test_score_needs_no_normalised_scores():
    """The likelihood of the truth alone, against all answers written out."""
    found, truth = 30 * scores(4, 5, 3), torch.tensor([0, 2, 1, 1, 0])
    plain = found.log_softmax(-1)[:, torch.arange(5), truth].clamp_min(-10).mean(-1)
    torch.testing.assert_close(CLASSES.score(found, truth), plain, rtol=0, atol=1e-12)
    moved = found + 1e3 * scores(4, 5, 1, seed=1)
    torch.testing.assert_close(CLASSES.score(moved, truth), plain, rtol=0, atol=1e-9)


def test_temperatures_come_between_settings_and_rows():
    tempered = CLASSES.tempered(scores(4, 5, 3))
    assert tempered.shape == (4, len(CLASSES.temperatures), 5, 3)
    place = list(CLASSES.temperatures).index(1.0)
    torch.testing.assert_close(tempered[:, place], scores(4, 5, 3))
    torch.testing.assert_close(tempered[:, place + 1], 2 * scores(4, 5, 3))


def test_responses_are_judged_by_their_squared_error():
    found = RESPONSES.score(torch.tensor([[1.0], [5.0]]), torch.tensor([0.0, 0.0]))
    assert found.item() == pytest.approx(-(1 + 10) / 2)  # the second is cut off


def test_of_equal_scores_the_first_is_taken_whatever_their_mean_was_rounded_to():
    """Scores in steps are often equal; bits of a mean would choose a setting by chance."""
    scores = torch.tensor([[-0.5, -0.25], [-0.25, -1.0]]).double()
    later = scores.clone()
    later[1, 0] += 1e-16 * 2**3
    assert best_of(scores) == best_of(later) == (0, 1)
    mixes = later[..., None].expand(2, 2, 3)
    assert best_of_mix(mixes) == (0, 1, 0)
    later[1, 0] += 1e-6
    assert best_of(later) == (1, 0)
