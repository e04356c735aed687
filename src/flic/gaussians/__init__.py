"""Gaussians: distances and their confidence intervals, averages, and maps between them."""

from flic.gaussians.barycentre import bures_barycentre as bures_barycentre
from flic.gaussians.barycentre import factor_average as factor_average
from flic.gaussians.bures import block_nuclear_norm as block_nuclear_norm
from flic.gaussians.bures import bures_sq as bures_sq
from flic.gaussians.bures import nuclear_norm as nuclear_norm
from flic.gaussians.bures import nuclear_norm_gram as nuclear_norm_gram
from flic.gaussians.bures import polar_gram as polar_gram
from flic.gaussians.bures import polar_gram_blocks as polar_gram_blocks
from flic.gaussians.bures import wasserstein2_sq as wasserstein2_sq
from flic.gaussians.gaussian import Gaussian as Gaussian
from flic.gaussians.inference import Interval as Interval
from flic.gaussians.inference import bures_excess as bures_excess
from flic.gaussians.inference import limit_variance as limit_variance
from flic.gaussians.inference import wasserstein2_sq_interval as wasserstein2_sq_interval
from flic.gaussians.sqrtm import inv_sqrtm as inv_sqrtm
from flic.gaussians.sqrtm import sqrtm as sqrtm
from flic.gaussians.transport import AffineMap as AffineMap
from flic.gaussians.transport import affine_map as affine_map
from flic.gaussians.transport import optimal_map as optimal_map

__all__ = [
    "AffineMap",
    "Gaussian",
    "Interval",
    "affine_map",
    "block_nuclear_norm",
    "bures_barycentre",
    "bures_excess",
    "bures_sq",
    "factor_average",
    "inv_sqrtm",
    "limit_variance",
    "nuclear_norm",
    "nuclear_norm_gram",
    "optimal_map",
    "polar_gram",
    "polar_gram_blocks",
    "sqrtm",
    "wasserstein2_sq",
    "wasserstein2_sq_interval",
]
