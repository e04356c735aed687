"""Raw rows → ClientData: the first step of the flow."""

from flic.data.ceiling import bayes_accuracy as bayes_accuracy
from flic.data.client_data import ClientData as ClientData
from flic.data.client_data import FederatedData as FederatedData
from flic.data.client_data import Split as Split
from flic.data.client_data import hold_out_validation as hold_out_validation
from flic.data.digits import DigitsConfig as DigitsConfig
from flic.data.digits import make_digits as make_digits
from flic.data.eeg import EegConfig as EegConfig
from flic.data.eeg import make_eeg as make_eeg
from flic.data.images import MnistUspsConfig as MnistUspsConfig
from flic.data.images import make_mnist_usps as make_mnist_usps
from flic.data.inspect import Finding as Finding
from flic.data.inspect import inspect as inspect
from flic.data.inspect import refuse_unusable as refuse_unusable
from flic.data.modalities import ModalitiesConfig as ModalitiesConfig
from flic.data.modalities import make_modalities as make_modalities
from flic.data.partition import Holdings as Holdings
from flic.data.partition import deal_rows as deal_rows
from flic.data.partition import draw_classes as draw_classes
from flic.data.partition import draw_shards_with_repeats as draw_shards_with_repeats
from flic.data.partition import draw_uneven_classes as draw_uneven_classes
from flic.data.partition import subsample as subsample
from flic.data.regression import DiabetesConfig as DiabetesConfig
from flic.data.regression import MadeRegressionConfig as MadeRegressionConfig
from flic.data.regression import make_diabetes as make_diabetes
from flic.data.regression import make_regression as make_regression
from flic.data.schema import FeatureSchema as FeatureSchema
from flic.data.source import DataConfig as DataConfig
from flic.data.source import load as load
from flic.data.store import load_arrays as load_arrays
from flic.data.task import Classification as Classification
from flic.data.task import Regression as Regression
from flic.data.task import Task as Task
from flic.data.toy import ToyConfig as ToyConfig
from flic.data.toy import make_toy as make_toy
from flic.data.views import ViewsConfig as ViewsConfig
from flic.data.views import make_views as make_views

__all__ = [
    "Classification",
    "ClientData",
    "DataConfig",
    "DiabetesConfig",
    "DigitsConfig",
    "EegConfig",
    "FeatureSchema",
    "FederatedData",
    "Finding",
    "Holdings",
    "MadeRegressionConfig",
    "MnistUspsConfig",
    "ModalitiesConfig",
    "Regression",
    "Split",
    "Task",
    "ToyConfig",
    "ViewsConfig",
    "bayes_accuracy",
    "deal_rows",
    "draw_classes",
    "draw_shards_with_repeats",
    "draw_uneven_classes",
    "hold_out_validation",
    "inspect",
    "load",
    "load_arrays",
    "make_diabetes",
    "make_digits",
    "make_eeg",
    "make_mnist_usps",
    "make_modalities",
    "make_regression",
    "make_toy",
    "make_views",
    "refuse_unusable",
    "subsample",
]
