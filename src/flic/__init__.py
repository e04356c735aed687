"""flic: personalised federated learning on heterogeneous feature spaces.

Public names: data, Gaussians, methods, simulation, configuration, runs. Each is imported on first
use, so that a command imports only what it needs.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from flic.config import RunConfig as RunConfig
    from flic.config import load_config as load_config
    from flic.config import resolve as resolve
    from flic.data.client_data import ClientData as ClientData
    from flic.data.client_data import FederatedData as FederatedData
    from flic.data.client_data import Split as Split
    from flic.data.schema import FeatureSchema as FeatureSchema
    from flic.data.task import Classification as Classification
    from flic.data.task import Regression as Regression
    from flic.errors import FlicError as FlicError
    from flic.gaussians import Gaussian as Gaussian
    from flic.gaussians import Interval as Interval
    from flic.gaussians import bures_barycentre as bures_barycentre
    from flic.gaussians import wasserstein2_sq as wasserstein2_sq
    from flic.gaussians import wasserstein2_sq_interval as wasserstein2_sq_interval
    from flic.method_settings import MethodSettings as MethodSettings
    from flic.methods import METHODS as METHODS
    from flic.methods import build_method as build_method
    from flic.methods.protocol import Update as Update
    from flic.runs.metrics import Outcome as Outcome
    from flic.runs.run_folder import simulate as simulate
    from flic.silos.federation import Federation as Federation

_HOME = {
    "METHODS": "flic.methods",
    "Classification": "flic.data.task",
    "ClientData": "flic.data.client_data",
    "FeatureSchema": "flic.data.schema",
    "FederatedData": "flic.data.client_data",
    "Federation": "flic.silos.federation",  # needs the extra for tables
    "FlicError": "flic.errors",
    "Gaussian": "flic.gaussians",
    "Interval": "flic.gaussians",
    "MethodSettings": "flic.method_settings",
    "Outcome": "flic.runs.metrics",
    "Regression": "flic.data.task",
    "RunConfig": "flic.config",
    "Split": "flic.data.client_data",
    "Update": "flic.methods.protocol",
    "build_method": "flic.methods",
    "bures_barycentre": "flic.gaussians",
    "load_config": "flic.config",
    "resolve": "flic.config",
    "simulate": "flic.runs.run_folder",
    "wasserstein2_sq": "flic.gaussians",
    "wasserstein2_sq_interval": "flic.gaussians",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _HOME:
        raise AttributeError(f"module 'flic' has no attribute {name!r}")
    try:
        return getattr(_import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pandas", "skops"):
            raise
        message = f"flic.{name} needs {error.name}. Install it with: pip install 'flic[tables]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return [*__all__]
