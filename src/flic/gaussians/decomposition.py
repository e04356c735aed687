"""Matrix decompositions that fail with a sentence instead of a LAPACK code.

All but `cholesky` are detached: callers freeze the factors they get and differentiate an expression
linear in their input, so that repeated or vanishing eigenvalues never enter a backward pass.
"""

# torch has no types for torch.linalg; the annotations below add them.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false

import math

import torch
from jaxtyping import Float
from torch import Tensor

from flic.errors import NumericalError


def _require_finite(name: str, a: Float[Tensor, "*batch n k"]) -> None:
    """Refuse entries that are not finite: LAPACK would fail or return garbage, by size."""
    if math.isfinite(a.sum()):  # then every entry is finite; cheaper than testing each
        return
    finite = torch.isfinite(a).flatten(-2).all(-1)
    if not bool(finite.all()):
        raise NumericalError(
            f"The {name} of a tensor of shape {tuple(a.shape)} got entries that are not finite in "
            f"{int((~finite).sum())} of its {finite.numel()} matrices, first at batch index "
            f"{(~finite).nonzero()[0].tolist()}; expected finite numbers. Look for a diverged "
            "loss: lower the learning rate, or standardise the features."
        )


@torch.no_grad()
def eigh(
    a: Float[Tensor, "*batch k k"],
) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch k k"]]:
    """Eigenvalues in increasing order and eigenvectors of symmetric matrices, detached."""
    _require_finite("eigendecomposition", a)
    values, vectors = torch.linalg.eigh(a)
    return values, vectors


@torch.no_grad()
def svd(
    y: Float[Tensor, "*batch n k"],
) -> tuple[Float[Tensor, "*batch n r"], Float[Tensor, "*batch r"], Float[Tensor, "*batch r k"]]:
    """Thin singular value decomposition, values in decreasing order, detached."""
    _require_finite("singular value decomposition", y)
    u, s, vh = torch.linalg.svd(y, full_matrices=False)
    return u, s, vh


@torch.no_grad()
def orthonormal_basis(y: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n r"]:
    """Q of the thin decomposition Y = QR, detached."""
    _require_finite("QR decomposition", y)
    return torch.linalg.qr(y).Q


def cholesky(a: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k k"]:
    """Lower triangular F with FFᵀ = A; differentiable, for A well above singular."""
    try:
        return torch.linalg.cholesky(a)
    except torch.linalg.LinAlgError as error:
        raise NumericalError(
            f"A covariance in a tensor of shape {tuple(a.shape)} has no Cholesky factor; expected "
            "finite entries and an eps above their rounding error. Raise eps, or lower the "
            "learning rate."
        ) from error


def solve_lower(
    root: Float[Tensor, "*batch k k"], rows: Float[Tensor, "*batch n k"]
) -> Float[Tensor, "*batch n k"]:
    """Rows x with F x = row, for lower triangular F."""
    return torch.linalg.solve_triangular(root, rows.mT, upper=False).mT
