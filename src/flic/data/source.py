"""Data sources that a configuration can name.

Two need no files and are part of flic. Other packages, such as the paper's, add theirs by an
entry point of the group `flic.problems` that names a `Problem`.
"""

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import Field

from flic.data.digits import DigitsConfig
from flic.data.problem import Problem
from flic.data.toy import ToyConfig


def _problems() -> dict[str, type[Problem]]:
    """Value of `problem` → settings of the source that it names."""
    added = [entry.load() for entry in sorted(entry_points(group="flic.problems"))]
    kinds: list[type[Problem]] = [ToyConfig, DigitsConfig, *added]
    return {
        name: kind for kind in kinds for name in get_args(kind.model_fields["problem"].annotation)
    }


PROBLEMS = _problems()

if TYPE_CHECKING:
    DataConfig = Problem
else:
    DataConfig = Annotated[
        Union[tuple(dict.fromkeys(PROBLEMS.values()))],  # noqa: UP007
        Field(discriminator="problem"),
    ]
"""Settings of any source; `problem` tells which."""
