"""The one place where a data section of a config becomes clients.

First step of the flow: a new loader adds its config to `DataConfig` and a case to `load`.
"""

from typing import Annotated

from pydantic import Field

from flic.data.client_data import FederatedData
from flic.data.digits import DigitsConfig, make_digits
from flic.data.eeg import EegConfig, make_eeg
from flic.data.images import MnistUspsConfig, make_mnist_usps
from flic.data.modalities import ModalitiesConfig, make_modalities
from flic.data.regression import (
    DiabetesConfig,
    MadeRegressionConfig,
    make_diabetes,
    make_regression,
)
from flic.data.toy import ToyConfig, make_toy
from flic.data.views import ViewsConfig, make_views

DataConfig = Annotated[
    ToyConfig
    | DigitsConfig
    | MnistUspsConfig
    | ModalitiesConfig
    | ViewsConfig
    | EegConfig
    | MadeRegressionConfig
    | DiabetesConfig,
    Field(discriminator="problem"),
]
"""Settings of any data source, told apart by `problem`."""


def load_data(config: DataConfig, *, seed: int) -> FederatedData:
    """Clients that `config` describes; the same ones for the same seed."""
    match config:
        case ToyConfig():
            return make_toy(config, seed=seed)
        case DigitsConfig():
            return make_digits(config, seed=seed)
        case MnistUspsConfig():
            return make_mnist_usps(config, seed=seed)
        case ModalitiesConfig():
            return make_modalities(config, seed=seed)
        case ViewsConfig():
            return make_views(config, seed=seed)
        case EegConfig():
            return make_eeg(config, seed=seed)
        case MadeRegressionConfig():
            return make_regression(config, seed=seed)
        case DiabetesConfig():
            return make_diabetes(config, seed=seed)
