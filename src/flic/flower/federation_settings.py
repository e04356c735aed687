"""Settings that all silos of a federation agree on: task, network, rules of a round.

The coordinator keeps it as JSON and sends it along with every request, so no silo has to be told
anything by hand.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from flic.data.task import Classification, Regression, Task, TaskName
from flic.method_settings import MIN_ROWS, MethodSettings, refuse_endless
from flic.methods import METHODS, build_method, own_methods
from flic.methods.protocol import Method, Population, Step
from flic.settings import Section, merge, strictly, validated
from flic.silos.fit_settings import NETWORK

NUMBER_BYTES = 8
"""Size of a weight, a loss term or a figure on the wire."""

LARGEST = 1e30
"""Numbers beyond this are neither losses nor sums of errors."""

MOST_ROWS = 1e9
"""Rows that a silo may claim to have."""

S = TypeVar("S", bound=Section)

_SET_ABOVE = ("rounds", "participation", "client_weight", "average")


#: Keys that cannot change while a run goes on; the others are rules of its rounds.
AGREED = (
    "task",
    "classes",
    "range",
    "method",
    "network",
    "seed",
    "weights",
    "min_rows",
    "max_features",
    "min_holders",
    "secure_sums",
    "salt",
)


MIN_HOLDERS = 3
"""Silos behind every total unless set: of two, each could read the other's part."""


class FederationSettings(Section):
    """All that a federation depends on besides the silos' tables."""

    task: TaskName = "classification"
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None  # of the responses of a regression
    method: str = "flic-class"
    network: dict[str, Any] = Field(default_factory=dict)  # on top of NETWORK, section by section
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=50, ge=1)
    evaluate_every: int = Field(default=5, ge=0)  # rounds; 0: at the end only
    participation: float = Field(default=1.0, gt=0, le=1)
    quorum: int = Field(default=2, ge=1)  # answers without which a round does not count
    deadline_s: float = Field(default=600.0, gt=0)
    weights: Literal["equal", "rows"] = "equal"
    average: Literal["mean", "trimmed", "auto"] = "auto"  # trimmed from five silos on
    min_rows: int = Field(default=MIN_ROWS, ge=1)  # fewer would show a person's embedding
    max_message_mb: float = Field(default=16.0, gt=0)
    norm_factor: float = Field(default=10.0, gt=1)  # of the median move of a round
    max_features: int = Field(default=0, ge=0)  # of the widest silo, encoded; for probe inputs
    min_holders: int = Field(
        default=MIN_HOLDERS, ge=2
    )  # silos behind every sum of linked columns, or masked
    # Whether silos mask what they send, so that the operator sees totals alone; None: linked
    # columns' sums, since of masked networks no single update can be checked.
    secure_sums: bool | None = None
    salt: str = Field(default="", pattern="^([0-9a-f]{2})*$")  # of linked columns' keys
    max_offences: int = Field(default=3, ge=1)

    @field_validator("method")
    @classmethod
    def _between_machines(cls, method: str) -> str:
        if method not in METHODS or not METHODS[method].between_machines:
            able = own_methods(lambda own: own.between_machines)
            raise ValueError(
                "expected a method that is installed here and may run between machines, such as "
                f"{', '.join(able)}"
            )
        return method

    @field_validator("network")
    @classmethod
    def _known_settings(cls, network: dict[str, Any]) -> dict[str, Any]:
        known = strictly(MethodSettings, merge(NETWORK, network))
        above = [key for key in _SET_ABOVE if key in network.get("training", {})]
        if above:
            raise ValueError(
                f"training.{above[0]} is set here; expected rounds, participation, weights and "
                "average beside network, where they hold for everyone"
            )
        if known.alignment.realign_epochs:
            raise ValueError(
                "alignment.realign_epochs is set; expected 0, since silos that are not active are "
                "not asked after a round"
            )
        if isinstance(known.anchors.meta_classes, int):
            raise ValueError(
                "anchors.meta_classes is a number; expected the meta-class of each class, since "
                "silos that join late cannot take part in finding them"
            )
        if known.embedding.frozen:
            raise ValueError(
                "embedding.frozen is true; expected false, since φ begins where seed and name put "
                "it, and whoever knows it there could read embedded rows"
            )
        if known.training.normalise == "literal":
            raise ValueError(
                "training.normalise is 'literal'; expected 'active', since nobody knows the rows "
                "of all silos"
            )
        return network

    @model_validator(mode="after")
    def _clear_task(self) -> Self:
        if self.task == "classification":
            if len(self.classes) < 2 or len({*self.classes} - {""}) < len(self.classes):
                raise ValueError(
                    f"classes are {list(self.classes)}; expected two or more names, all different "
                    "(--classes healthy,disease), or task = regression with a range"
                )
            if self.range is not None:
                raise ValueError("range is set; expected none in a classification")
        else:
            if self.range is None or not self.range[0] < self.range[1]:
                raise ValueError("range is missing or empty; expected [low, high] of the responses")
            if self.classes:
                raise ValueError("classes are set; expected none in a regression")
        return self

    @model_validator(mode="after")
    def _what_a_method_needs(self) -> Self:
        if METHODS[self.method].shares_inputs and not self.max_features:
            raise ValueError(
                f"method is {self.method} and max_features is 0; expected the encoded features of "
                "the widest silo (--set max_features=64), since its probe inputs are that wide"
            )
        return self

    @property
    def sends_sums(self) -> bool:
        """True if the method sends sums over rows, of columns that silos have linked."""
        return METHODS[self.method].sends_sums

    @property
    def masks_sums(self) -> bool:
        """True if silos send masked numbers: sums, or weighted versions of what is averaged."""
        return self.sends_sums if self.secure_sums is None else self.secure_sums

    @model_validator(mode="after")
    def _what_masks_allow(self) -> Self:
        """Refuse, of networks under masks, what needs more than one total over the same silos."""
        if self.sends_sums or not self.masks_sums:
            return self
        if self.average == "trimmed":
            raise ValueError(
                "average is 'trimmed' and secure_sums is set; expected 'mean', since nobody knows "
                "which silo's numbers are the extremes"
            )
        if self.participation < 1:
            raise ValueError(
                f"participation is {self.participation:g} and secure_sums is set; expected 1, "
                "since totals of two rounds over different silos can show the part of one"
            )
        if self.method_settings.anchors.average_covariance == "barycentre":
            raise ValueError(
                "anchors.average_covariance is 'barycentre' and secure_sums is set; expected "
                "'factors', since a barycentre is no sum"
            )
        return self

    def coordinated_method(self) -> Method:
        """The method as the coordinator knows it: other facts about silos are theirs."""
        population = Population(0, self.common_task, self.max_features, 0, spaces={})
        return build_method(self.method, self.method_settings, population, seed=self.seed)

    def programme(self, rounds: int) -> list[Step]:
        """The steps that silos are asked for; they prepare networks by themselves, on joining."""
        final = self.method_settings.training.final_round
        steps = self.coordinated_method().programme(rounds, final_round=final)
        return [step for step in steps if (step.sends if self.sends_sums else step.round > 0)]

    @property
    def common_task(self) -> Task:
        """The task of all silos."""
        if self.range is not None:
            return Regression(*self.range)
        return Classification(len(self.classes))

    @property
    def agreement(self) -> dict[str, Any]:
        """The settings that cannot change within a run."""
        return self.model_dump(mode="json", include=set(AGREED))

    @cached_property
    def method_settings(self) -> MethodSettings:
        """Settings of the networks."""
        training = {
            "rounds": self.rounds,
            "participation": self.participation,
            "client_weight": self.weights,
            "average": "mean" if self.masks_sums else self.average,
            "shared_sees_all_rows": True,  # few of a class would be drawn for the others' anchors
        }
        return MethodSettings.model_validate(
            merge(
                merge(NETWORK, self.network),
                {"training": training, "linked": {"min_rows": self.min_rows}},
            )
        )


def federation_settings(raw: Mapping[str, Any], *, source: str) -> FederationSettings:
    """The settings, or one error that lists every bad key."""
    within = {"network": MethodSettings}
    found = validated(FederationSettings, raw, source=source, within=within)
    refuse_endless(found.method_settings, source=source)
    return found
