"""Sums under masks: those of rows pass, and those that no rows add up to are named."""

import pytest
import torch

from flic.flower.federation_settings import MOST_ROWS
from flic.flower.pooling import SCORES
from flic.flower.secure.plausible import wrong_in_sum
from flic.flower.sums_form import LINEAR
from flic.methods.linked.link_checks import UNLIKE
from flic.methods.linked.tuning import WORST
from flic.methods.protocol import Entry, Update

SOUND = {
    f"{LINEAR}count": [[5.0, 0.0], [7.0, 9.0]],
    f"{LINEAR}dof": [12.0, 9.0],
    f"{LINEAR}total": [[-3.5, 1e20], [0.0, 2.0]],
    f"{LINEAR}variance": [0.0, 1e-9],
    SCORES[0]: [[WORST, 0.0], [-0.5, -1.0]],
    UNLIKE: [[0.0, 0.5, 1.0]],
}


def update(**changes):
    tensors = {**SOUND, **changes}
    return Update("3 silos", {n: Entry(torch.tensor(v).double(), 1.0) for n, v in tensors.items()})


def test_sums_of_rows_pass():
    assert wrong_in_sum(update(), 3) is None


def test_what_adding_rounds_passes():
    """Fixed point and means are off by little; that is no lie."""
    off = {f"{LINEAR}count": [[5 + 1e-12, -1e-12]], SCORES[0]: [[WORST - 1e-12, 1e-12]]}
    assert wrong_in_sum(update(**off), 3) is None


def test_more_silos_may_have_more_rows():
    many = {f"{LINEAR}count": [[2 * MOST_ROWS]]}
    assert wrong_in_sum(update(**many), 3) is None
    assert "counts of rows" in str(wrong_in_sum(update(**many), 1))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (f"{LINEAR}count", -1.0, "counts of rows"),
        (f"{LINEAR}count", 0.5, "counts of rows"),
        (f"{LINEAR}dof", 1e30, "counts of rows"),
        (f"{LINEAR}variance", -0.1, "negative squares"),
        (f"{LINEAR}total", float("inf"), "numbers in"),
        (f"{LINEAR}total", float("nan"), "numbers in"),
        (SCORES[0], 0.1, "likelihoods"),
        (SCORES[0], WORST - 1, "likelihoods"),
        (UNLIKE, 1.1, "shares"),
        (UNLIKE, -0.1, "shares"),
    ],
)
def test_what_no_rows_add_up_to_is_named(name, value, said):
    tensor = torch.tensor(SOUND[name]).double()
    tensor.view(-1)[0] = value
    wrong = str(wrong_in_sum(update(**{name: tensor.tolist()}), 3))
    assert said in wrong
    assert name in wrong
