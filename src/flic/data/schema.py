"""Feature schema of one client.

A schema names the client's space and its features in that space. Their number is k_i, the input
dimension of its embedding φ_i.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flic.errors import SchemaMismatch
from flic.notation import counted


@dataclass(frozen=True)
class FeatureSchema:
    """Features of one client, by name, inside a named space.

    Paper: sec:methodo, 𝒳_i ⊆ ℝ^{k_i}.
    Clients that declare the same space read the same features under the same names; names
    of different spaces have nothing to do with each other.
    """

    space: str
    features: tuple[str, ...]
    shape: tuple[int, int] | None = None  # rows and columns of an image; None for a vector
    # Number of the table column that each feature was made from; levels of one exclude each
    # other. Empty where features were not made from columns.
    sources: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.shape is not None and self.shape[0] * self.shape[1] != self.dim:
            raise SchemaMismatch(
                f"space {self.space!r} declares {counted(self.dim, 'feature')} and images of "
                f"{self.shape[0]}×{self.shape[1]} pixels; expected a feature per pixel. Leave out "
                "the shape where pixels are missing: the features are then a vector."
            )

    @property
    def dim(self) -> int:
        """Number of features, k_i."""
        return len(self.features)

    @classmethod
    def of_images(cls, space: str, rows: int, columns: int) -> "FeatureSchema":
        """Schema of grey images, pixels in reading order."""
        return cls(space, pixel_names(rows, columns), (rows, columns))


def pixel_names(rows: int, columns: int) -> tuple[str, ...]:
    """Names of an image's pixels, in reading order."""
    return tuple(f"px{row}_{column}" for row in range(rows) for column in range(columns))


def union(schemas: Sequence[FeatureSchema]) -> FeatureSchema:
    """Schema with every feature that clients of one space have."""
    if len(set(schemas)) == 1:
        return schemas[0]
    shaped = [schema for schema in schemas if schema.shape is not None]
    if shaped:
        kinds = sorted({str(schema.shape or counted(schema.dim, "feature")) for schema in schemas})
        raise SchemaMismatch(
            f"space {schemas[0].space!r} is declared with {' and with '.join(kinds)}; expected "
            "images of one size, or vectors, in one space. Name the spaces apart."
        )
    names = sorted({name for schema in schemas for name in schema.features})
    return FeatureSchema(schemas[0].space, tuple(names))


@dataclass(frozen=True)
class SharedFeatures:
    """Features of a space that two or more clients have; all of a block have the same holders."""

    names: tuple[str, ...] = ()
    block: tuple[int, ...] = ()

    @classmethod
    def of(cls, schemas: Sequence[FeatureSchema]) -> "SharedFeatures":
        """Features that clients of one space share."""
        holders: dict[str, list[int]] = {}
        for i, schema in enumerate(schemas):
            for name in schema.features:
                holders.setdefault(name, []).append(i)
        names = [name for name, own in holders.items() if len(own) > 1]
        if len({schema.features for schema in schemas}) > 1:
            names.sort()  # independent of the clients' order; if all have all, theirs saves work
        number: dict[tuple[int, ...], int] = {}
        blocks = [number.setdefault(tuple(holders[name]), len(number)) for name in names]
        return cls(tuple(names), tuple(blocks))
