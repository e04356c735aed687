"""Arms of the tables: methods with their settings, the same for every federation.

An arm is a method with changes to its settings. It has the same budget as the arm that its gain is
measured against, unless its name says otherwise, and all arms have the same search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flic.config import RunConfig, resolve
from flic.errors import ConfigError
from flic.settings import merge, read_toml

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One line of a table."""

    name: str
    method: str
    changes: Changes = field(default_factory=dict)
    reference: str = "local"  # arm that its gain is measured against

    @property
    def search(self) -> Sequence[Changes]:
        """Settings of the search; the mean of the clients' validation scores chooses one."""
        return _SEARCH.get(self.method, _NETWORK_SEARCH)


_NETWORK_SEARCH = [
    {"training": {"optimiser": {"learning_rate": rate}}} for rate in (3e-4, 1e-3, 3e-3)
]

_SEARCH: dict[str, Sequence[Changes]] = {
    "logistic": [{"estimators": {"logistic_c": c}} for c in (0.03, 0.3, 3.0)],
    "boosting": [{"estimators": {"boosting_rate": rate}} for rate in (0.03, 0.1, 0.3)],
    "lda": [{}],  # Ledoit and Wolf's shrinkage is a formula, so there is nothing to choose
    "linked": [{}],  # it chooses by its own cross-validation over the federation
}

_NO_HIDDEN: Changes = {"model": {"hidden_layer": False}}

LOCAL = Arm("local", "local")

# The paper's columns come first. Its Local has neither FLIC's pre-training nor its hidden layer.
PAPER = [
    Arm("local-rounds", "local", {"training": {"baseline_budget": "rounds"}, **_NO_HIDDEN}),
    Arm("fedhenn", "fedhenn"),
    Arm("flic-class", "flic-class"),
    Arm("flic-hl", "flic-hl"),
]

HONEST = [
    LOCAL,
    Arm("lda", "lda"),
    Arm("logistic", "logistic"),
    Arm("boosting", "boosting"),
    Arm("hetfedrep", "hetfedrep"),
    Arm("within-space", "within-space"),
    Arm("fedavg", "fedavg", _NO_HIDDEN),
    Arm("linked", "linked"),
    Arm("permuted-anchors", "permuted-anchors", _NO_HIDDEN),
]


def _at_preset(preset: str, *, variant: str = "") -> list[Arm]:
    """FLIC, its control and Local at another preset, whose Local is the reference of all three.

    `authors` aligns all clients again after every round and `recommended` has dropout: compared
    with a Local without these, a gain could come from them alone.
    """
    changes: Changes = {"preset": preset}
    reference = f"local@{preset}"
    return [
        Arm(reference, "local", changes, reference),
        Arm(f"flic-class@{preset}", f"flic-class{variant}", changes, reference),
        Arm(f"flic-hl@{preset}", f"flic-hl{variant}", changes, reference),
        Arm(
            f"permuted-anchors@{preset}",
            f"permuted-anchors{variant}",
            {**changes, **_NO_HIDDEN},
            reference,
        ),
    ]


PRESETS = [*_at_preset("authors", variant="-authors"), *_at_preset("recommended")]

_SHARED_HEAD: Changes = {"preset": "recommended", "training": {"personalisation": "fedavg-ft"}}

# `recommended` with one head for all, fine-tuned by each client: prediction is by the nearest
# anchor, and the head only shapes φ.
SHARED_HEAD = [
    Arm("flic-class@shared-head", "flic-class", _SHARED_HEAD, "local@recommended"),
    Arm(
        "permuted-anchors@shared-head",
        "permuted-anchors",
        merge(_SHARED_HEAD, _NO_HIDDEN),
        "local@recommended",
    ),
]

ALL = [*PAPER, *HONEST, *PRESETS, *SHARED_HEAD]

# Arms of a table in brief: the paper's columns and their controls.
IN_BRIEF = (*(arm.name for arm in PAPER), "local", "lda", "permuted-anchors")

# Raised when a method's results change: its cells are then done again.
REVISIONS: dict[str, int] = {"linked": 3}


def revision(method: str) -> int:
    """Revision of a method's results."""
    return REVISIONS.get(method, 1)


def configure(experiment: str, arm: Arm, seed: int, *changes: Changes) -> RunConfig:
    """Configuration of an arm on an experiment, with changes on top; later ones win."""
    raw = read_toml(experiments_folder() / f"{experiment}.toml")
    for change in (arm.changes, *changes):
        raw = merge(raw, change)
    return resolve(raw, source=experiment).for_method(arm.method, seed=seed)


def experiments_folder() -> Path:
    """The project's folder of experiments: beside the source, or below the current folder."""
    for root in (Path(__file__).parents[2], Path.cwd()):
        if (root / "experiments").is_dir():
            return root / "experiments"
    raise ConfigError(
        f"no folder experiments/ in {Path.cwd()}; expected the project's own. Run flic reproduce "
        "in the project's folder."
    )
