"""Rows of one client, and of all clients.

Every loader returns these types.
Paper: sec:methodo, D_i = {(x_i^(j), y_i^(j))}.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from flic.data.schema import FeatureSchema
from flic.data.task import Classification, Regression, Task
from flic.digests import digest_of, digest_of_arrays
from flic.errors import ConfigError, SchemaMismatch
from flic.seeding import generator

# eq=False below: tensors have no single truth value, so field-wise equality would raise.


@dataclass(frozen=True, eq=False)
class Split:
    """Rows and their labels."""

    x: Tensor  # [n, k_i], float32
    y: Tensor  # [n], int64 for classes, float for responses

    def __post_init__(self) -> None:
        _require(self.x, "x", ndim=2, kinds=("float",))
        _require(self.y, "y", ndim=1, kinds=("int64", "float"))

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def empty(cls, dim: int) -> "Split":
        """Split of no rows and `dim` features."""
        return cls(torch.empty(0, dim), torch.empty(0, dtype=torch.int64))

    def take(self, rows: Tensor) -> "Split":
        """Split of the given rows, in the given order."""
        return Split(self.x[rows], self.y[rows])


def _require(value: object, name: str, *, ndim: int, kinds: Sequence[str]) -> None:
    """Refuse anything but a tensor with that many axes and one of those types."""
    if isinstance(value, Tensor):
        if value.ndim == ndim and any(kind in str(value.dtype) for kind in kinds):
            return
        got = f"a tensor of shape {list(value.shape)} and type {value.dtype}"
    else:
        got = f"a {type(value).__name__}"
    raise SchemaMismatch(
        f"a Split got {got} as {name}; expected a torch tensor with {ndim} axes and type "
        f"{' or '.join(kinds)}. Convert it, for instance with torch.as_tensor."
    )


@dataclass(frozen=True, eq=False)
class ClientData:
    """All data of one client; none of it leaves the client."""

    name: str
    schema: FeatureSchema
    train: Split
    validation: Split  # may be empty, x of shape [0, k_i]
    test: Split
    ceiling: float | None = None  # Bayes accuracy, or R², on the test rows, where it is known

    @cached_property
    def class_counts(self) -> dict[int, int]:
        """Training rows per class, in the order of the classes; responses are one class, 0."""
        if self.train.y.is_floating_point():
            return {0: len(self.train)}
        classes, counts = self.train.y.unique(return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))

    @property
    def classes(self) -> tuple[int, ...]:
        """Sorted distinct labels of the training rows, 𝒴_i."""
        return tuple(self.class_counts)

    @property
    def digest(self) -> str:
        """SHA-256 of its features, rows and labels."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        rows = {f"{n}.x": s.x.numpy() for n, s in splits.items()}
        labels = {f"{n}.y": s.y.numpy() for n, s in splits.items()}
        return digest_of([self.name, asdict(self.schema), digest_of_arrays(rows | labels)])


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All clients of a federation and the task they share."""

    name: str
    task: Task
    clients: tuple[ClientData, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.task, Classification | Regression):
            raise SchemaMismatch(
                f"data {self.name!r} got {self.task!r} as their task; expected the kind of labels, "
                "such as Classification(3) for 3 classes or Regression(0.0, 1.0) for numbers."
            )

    @property
    def digest(self) -> str:
        """SHA-256 of all clients' features, rows and labels, and of the task."""
        return digest_of([repr(self.task), *(client.digest for client in self.clients)])

    def with_validation(self, share: float, *, seed: int) -> "FederatedData":
        """The same federation with a validation split held out on every client."""
        held_out = (hold_out_validation(client, share, seed=seed) for client in self.clients)
        return replace(self, clients=tuple(held_out))


def hold_out_validation(client: ClientData, share: float, *, seed: int) -> ClientData:
    """Client with `share` of each class's training rows moved to its validation split.

    Every class keeps a training row; rows with responses are one class. Identical rows stay on
    one side: subsampling with replacement repeats rows, and a repeat in validation would reward
    memorising. If a client already has validation rows, nothing is moved.
    """
    if not 0 <= share < 1:
        raise ConfigError(
            f"Validation share is {share}; expected at least 0 and below 1. "
            "Choose a share such as 0.2, or 0 for none."
        )
    if share == 0 or len(client.validation) > 0:
        return client
    rng = generator(seed, "validation", client.name)
    is_held_out = _stratified_mask(client.train, share, rng=rng)
    return replace(
        client,
        train=client.train.take(~is_held_out),
        validation=client.train.take(is_held_out),
    )


def _stratified_mask(split: Split, share: float, *, rng: torch.Generator) -> Tensor:
    """Boolean mask of the rows to hold out, drawn class by class."""
    mask = torch.zeros(len(split), dtype=torch.bool)
    labels = torch.zeros_like(split.y) if split.y.is_floating_point() else split.y
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        distinct, group = split.x[rows].unique(dim=0, return_inverse=True)
        # even with a share below 1, rounding can ask for all of a small class
        size = min(round(share * len(distinct)), len(distinct) - 1)
        held_out = torch.randperm(len(distinct), generator=rng)[:size]
        mask[rows] = torch.isin(group, held_out)
    return mask
