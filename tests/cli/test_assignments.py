"""Options of the form NAME=VALUE."""

import pytest

from flic.cli.assignments import missing_values, values_of_classes
from flic.errors import ConfigError


def test_values_that_mean_not_measured():
    assert missing_values(["chol=0", "chol=-9", "bp=?"]) == {"chol": ("0", "-9"), "bp": ("?",)}
    assert missing_values(["a=b=c"]) == {"a": ("b=c",)}
    assert missing_values(None) == {}


def test_values_that_mean_a_class():
    assert values_of_classes(["ill=1, 2", "well=0"]) == {"ill": ("1", "2"), "well": ("0",)}
    assert values_of_classes(["ill=1", "ill=2"]) == {"ill": ("1", "2")}


@pytest.mark.parametrize("text", ["chol", "=0", "", "chol="])
@pytest.mark.parametrize("read", [missing_values, values_of_classes])
def test_what_says_nothing_is_refused(read, text):
    with pytest.raises(ConfigError, match=r"expected (COLUMN=VALUE, such as chol=0|NAME=VALUES)"):
        read([text])
