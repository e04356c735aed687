"""Best possible accuracy on synthetic data."""

import torch
from torch import Tensor

from flic.data.client_data import Split


def bayes_accuracy(test: Split, means: Tensor, covariances: Tensor) -> float:
    """Accuracy of the Bayes classifier on the test rows, with their class frequencies as priors.

    Args:
        test: rows drawn from the Gaussians.
        means: mean of every class [C, d].
        covariances: covariance of every class [C, d, d].
    """
    classes, target, counts = test.y.unique(return_inverse=True, return_counts=True)
    # float64, since random maps give covariances of condition 10⁴ and more
    gaussians = torch.distributions.MultivariateNormal(
        means[classes].double(), covariances[classes].double()
    )
    scores = gaussians.log_prob(test.x.double()[:, None, :]) + counts.double().log()
    return (scores.argmax(dim=1) == target).double().mean().item()
