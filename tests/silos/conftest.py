"""The small fitted federation, as a value and as a folder."""

from pathlib import Path

import pytest
from wards import fitted_wards

from flic.silos import folder as folders
from flic.silos.fitted import FittedFederation

LONG_CHECKS = (
    "[SiloClassifier()-check_classifiers_train",
    "[SiloClassifier()-check_classifiers_classes",
    "[SiloClassifier()-check_classifier_data_not_an_array",
    "[SiloClassifier()-check_estimators_dtypes",
    "[SiloRegressor()-check_regressor_data_not_an_array",
)


@pytest.fixture(scope="session")
def fitted() -> FittedFederation:
    """Three wards after a fit; each keeps another kind of model."""
    return fitted_wards()


@pytest.fixture(scope="session")
def fitted_stays() -> FittedFederation:
    """The same wards, asked for a number."""
    return fitted_wards("regression")


@pytest.fixture
def folder(fitted, tmp_path) -> Path:
    """The federation as a folder."""
    folders.save(fitted, tmp_path / "fitted")
    return tmp_path / "fitted"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """scikit-learn's checks bring their own parameters; those that train long are marked here."""
    for item in items:
        if any(check in item.nodeid for check in LONG_CHECKS):
            item.add_marker(pytest.mark.slow)
