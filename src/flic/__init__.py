"""flic: personalised federated learning on heterogeneous feature spaces.

Public names in the order of the flow: data, Gaussians, methods, simulation, configuration, runs.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from flic.algorithms import METHODS as METHODS
from flic.algorithms import MethodSettings as MethodSettings
from flic.algorithms import Update as Update
from flic.algorithms import build_algorithm as build_algorithm
from flic.config import RunConfig as RunConfig
from flic.config import load_config as load_config
from flic.config import resolve as resolve
from flic.data.client_data import ClientData as ClientData
from flic.data.client_data import FederatedData as FederatedData
from flic.data.client_data import Split as Split
from flic.data.schema import FeatureSchema as FeatureSchema
from flic.data.source import load as load_data
from flic.data.task import Classification as Classification
from flic.data.task import Regression as Regression
from flic.errors import FlicError as FlicError
from flic.gaussians import Gaussian as Gaussian
from flic.gaussians import Interval as Interval
from flic.gaussians import bures_barycentre as bures_barycentre
from flic.gaussians import wasserstein2_sq as wasserstein2_sq
from flic.gaussians import wasserstein2_sq_interval as wasserstein2_sq_interval
from flic.report.metrics import Outcome as Outcome
from flic.report.run_folder import simulate as simulate

if _TYPE_CHECKING:
    from flic.silos.federation import Federation as Federation


def __getattr__(name: str) -> object:
    """Names of the extra for tables, which `import flic` does without."""
    if name == "Federation":
        from flic.silos.federation import Federation

        return Federation
    raise AttributeError(f"module 'flic' has no attribute {name!r}")


__all__ = [
    "METHODS",
    "Classification",
    "ClientData",
    "FeatureSchema",
    "FederatedData",
    "Federation",
    "FlicError",
    "Gaussian",
    "Interval",
    "MethodSettings",
    "Outcome",
    "Regression",
    "RunConfig",
    "Split",
    "Update",
    "build_algorithm",
    "bures_barycentre",
    "load_config",
    "load_data",
    "resolve",
    "simulate",
    "wasserstein2_sq",
    "wasserstein2_sq_interval",
]
