"""List of the anchor schemes; a new one is a file beside this one and an entry here."""

import torch

from flic.errors import ConfigError
from flic.method_settings import MethodSettings
from flic.methods.flic.meta import ByMetaClass
from flic.methods.flic.response import ByResponse
from flic.methods.flic.scheme import AnchorScheme, ByClass
from flic.methods.protocol import Population

SCHEMES: tuple[type[AnchorScheme], ...] = (ByResponse, ByMetaClass, ByClass)


def scheme_of(
    settings: MethodSettings, population: Population, *, dtype: torch.dtype
) -> AnchorScheme:
    """The first scheme that fits the settings and the labels."""
    is_whole = settings.anchors.average_covariance == "barycentre"
    if settings.training.average == "trimmed" and is_whole:
        raise ConfigError(
            "training.average is 'trimmed' and anchors.average_covariance is 'barycentre', which "
            "counts every covariance whole; expected 'factors'. Change one of them."
        )
    kind = next(kind for kind in SCHEMES if kind.fits(settings, population.task))
    return kind(settings, population, dtype=dtype)
