import math

import torch
from torch.nn.functional import cross_entropy

from flic.data.batches import Batch
from flic.methods.flic.scheme import calibration_loss
from flic.networks.head import data_loss, mask_to_own_classes

# Two clients: three rows of classes 0, 0, 2, and one row of class 1 with two rows of padding.
Y = torch.tensor([[0, 0, 2], [1, 0, 0]])
MEMBER = torch.tensor([[[1, 0], [1, 0], [0, 1]], [[1, 0], [0, 0], [0, 0]]]).double()
MASS = torch.tensor([[0.5, 0.5, 1], [1, 0, 0]]).double()


def batch_of() -> Batch:
    x = torch.zeros(2, 3, 1, dtype=torch.float64)
    return Batch(x, Y, torch.tensor([[2, 1], [1, 0]]), MEMBER, MASS, list)


def scores_of(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_data_loss_is_the_mean_cross_entropy_of_each_client():
    scores = scores_of(2, 3, 4)
    expected = [cross_entropy(scores[0], Y[0]), cross_entropy(scores[1, :1], Y[1, :1])]
    torch.testing.assert_close(data_loss(scores, batch_of()), torch.stack(expected))


def test_padded_rows_have_no_gradient_in_the_data_loss():
    scores = scores_of(2, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(data_loss(scores, batch_of()).sum(), scores)
    assert not gradient[1, 1:].any()
    assert gradient[0].any(dim=1).all()


def test_calibration_without_knowledge_is_the_log_of_the_classes_per_class_held():
    scores = torch.zeros(2, 6, 5)  # two slots of three samples, five classes
    loss = calibration_loss(scores, torch.tensor([[1, 3], [2, -1]]))
    torch.testing.assert_close(loss, math.log(5) * torch.tensor([2.0, 1.0]))


def test_calibration_sums_over_classes_the_mean_over_samples():
    scores = scores_of(1, 6, 4)
    ones, threes = torch.full((3,), 1), torch.full((3,), 3)
    expected = cross_entropy(scores[0, :3], ones) + cross_entropy(scores[0, 3:], threes)
    got = calibration_loss(scores, torch.tensor([[1, 3]]))
    torch.testing.assert_close(got, expected[None])


def test_samples_of_unused_slots_count_nothing():
    scores = scores_of(1, 6, 4).requires_grad_()
    loss = calibration_loss(scores, torch.tensor([[2, -1]]))
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert gradient[0, :3].all()
    assert not gradient[0, 3:].any()


def test_mask_leaves_own_classes_and_makes_the_others_impossible():
    scores = scores_of(2, 3, 3)
    holds = torch.tensor([[True, False, True], [False, True, True]])
    masked = mask_to_own_classes(scores, holds)
    assert torch.equal(masked[0][:, [0, 2]], scores[0][:, [0, 2]])
    assert (masked[0, :, 1] == -math.inf).all()
    assert (masked[1, :, 0] == -math.inf).all()
    assert masked.isinf().sum() == 6
