"""Laws of the anchors μ_y = N(y a + (1 − y) b, I) of real responses."""

import pytest
import torch

from flic.data.batches import Batch
from flic.gaussians import Gaussian, wasserstein2_sq
from flic.methods.flic.response import (
    even_responses,
    nearest_response,
    response_calibration_loss,
    response_means,
    response_targets,
)
from flic.methods.flic.targets import alignment_loss
from flic.networks.head import data_loss

K = 6


def normal(seed: int, *shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def batch_of() -> Batch:
    """Two clients: four rows, and two rows with two rows of padding."""
    y = torch.tensor([[0.0, 0.3, 1.0, 1.4], [0.5, -0.2, 0.0, 0.0]], dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.float64)
    mass = real / real.sum(1, keepdim=True)
    counts = real.sum(1, keepdim=True).long()
    return Batch(torch.zeros(2, 4, 1, dtype=torch.float64), y, counts, real[..., None], mass, list)


def test_the_ends_are_the_means_at_zero_and_one():
    ends = normal(0, 3, 2, K)
    found = response_means(ends, torch.tensor([[0.0, 1.0]] * 3, dtype=torch.float64))
    assert torch.equal(found, ends)


def test_means_beyond_the_range_lie_on_the_same_line():
    ends = normal(0, 1, 2, K)
    found = response_means(ends, torch.tensor([[3.0]], dtype=torch.float64))
    torch.testing.assert_close(found[0, 0], ends[0, 0] + 3 * (ends[0, 1] - ends[0, 0]))


def test_alignment_is_w2_of_single_rows_less_the_trace():
    latent, ends, batch = normal(1, 2, 4, K), normal(2, 2, 2, K), batch_of()
    found = alignment_loss(latent, batch, response_targets(batch, ends))
    point = torch.zeros(K, dtype=torch.float64)
    for i, rows in enumerate((4, 2)):
        b, a = ends[i]
        distances = [
            wasserstein2_sq(
                Gaussian.isotropic(y * a + (1 - y) * b, 1.0), Gaussian(latent[i, r], point)
            )
            for r, y in enumerate(batch.y[i, :rows])
        ]
        torch.testing.assert_close(found[i], torch.stack(distances).mean() - K)


def test_gradients_of_the_alignment():
    batch = batch_of()

    def loss(latent, ends):
        return alignment_loss(latent, batch, response_targets(batch, ends))

    latent, ends = normal(1, 2, 4, K).requires_grad_(), normal(2, 2, 2, K).requires_grad_()
    assert torch.autograd.gradcheck(loss, (latent, ends))
    gradient, pull = torch.autograd.grad(loss(latent, ends).sum(), (latent, ends))
    assert not gradient[1, 2:].any()  # padding
    expected = 2 * (latent - response_means(ends, batch.y))[0] / 4
    torch.testing.assert_close(gradient[0], expected)
    torch.testing.assert_close(pull[0, 1], -(batch.y[0][:, None] * expected).sum(0))


def test_data_loss_is_the_mean_squared_error_of_each_client():
    outputs, batch = normal(3, 2, 4, 1), batch_of()
    error = (outputs[..., 0] - batch.y).square()
    expected = torch.stack([error[0].mean(), error[1, :2].mean()])
    torch.testing.assert_close(data_loss(outputs, batch), expected)


def test_calibration_of_a_head_that_reads_the_line_is_the_noise_it_reads():
    """E (g(Z) − y)² for the projection g on the line is 1/‖a − b‖²."""
    ends = 3 * normal(4, 1, 2, K)
    y = even_responses(200_000, dtype=torch.float64)
    samples = response_means(ends, y[None]) + normal(5, 1, len(y), K)
    found = response_calibration_loss(nearest_response(samples, ends), y)
    expected = 1 / (ends[0, 1] - ends[0, 0]).square().sum()
    torch.testing.assert_close(found[0], expected, rtol=0.02, atol=0)


def test_even_responses_stand_for_the_whole_range():
    y = even_responses(50, dtype=torch.float64)
    torch.testing.assert_close(y.mean(), torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(y.diff(), torch.full((49,), 0.02, dtype=torch.float64))


def test_the_nearest_response_is_the_likeliest_one():
    latent, ends = normal(6, 2, 3, K), normal(7, 2, 2, K)
    found = nearest_response(latent, ends)[..., 0].requires_grad_()
    distance = (latent - response_means(ends, found)).square().sum()
    (slope,) = torch.autograd.grad(distance, found)
    torch.testing.assert_close(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("y", [-0.5, 0.0, 0.25, 1.0])
def test_the_nearest_response_to_an_anchor_s_mean_is_its_own(y):
    ends = normal(8, 1, 2, K)
    means = response_means(ends, torch.tensor([[y]], dtype=torch.float64))
    assert nearest_response(means, ends).item() == pytest.approx(y)


def test_ends_at_the_same_place_give_no_nan():
    ends = torch.ones(1, 2, K)
    assert nearest_response(torch.randn(1, 3, K), ends).isfinite().all()
