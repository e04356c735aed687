"""Method: a list of stages, each with a client half and a server half, and their messages.

Paper: algo:FLIC-FEDREP. One round loop (flic.engine.rounds) runs the stages of every method, in
this process, in workers or over Flower. Everything private has a leading client axis; a real silo
is a stack of one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema, SharedFeatures, union
from flic.data.stacked import StackedData
from flic.data.task import Task, TaskName
from flic.errors import IncompatibleUpdate
from flic.method_settings import MethodSettings
from flic.networks.base import Embedding
from flic.networks.descent import Losses
from flic.notation import counted
from flic.shapes import Named, unlike_forms

Generators = Sequence[torch.Generator]
"""One generator per client of a stack."""


@dataclass(frozen=True)
class Entry:
    """One tensor that leaves a client, and the weight it counts for."""

    value: Tensor
    weight: float


@dataclass(frozen=True)
class Update:
    """The only thing that ever leaves a client: named tensors with their weights.

    There is no field for rows, φ_i or β_i, and the server refuses any name or shape that it
    does not itself hold (`check_update`).
    """

    client: str
    entries: Mapping[str, Entry]

    @property
    def num_bytes(self) -> int:
        """Size of the tensors on the wire."""
        return sum(e.value.numel() * e.value.element_size() for e in self.entries.values())

    @property
    def magnitude(self) -> float:
        """Largest absolute value of all tensors; NaN where one is NaN."""
        if not self.entries:
            return 0.0
        flat = torch.cat([entry.value.flatten() for entry in self.entries.values()])
        return float(flat.abs().max())


@dataclass(frozen=True)
class ServerState:
    """State of the server: shared tensors by name. Never φ_i or β_i."""

    round: int
    shared: Named


@dataclass(frozen=True)
class Population:
    """Public facts about the federation.

    `total_rows` is needed only where weights are normalised over absent clients too.
    """

    num_clients: int
    task: Task
    max_features: int
    total_rows: int
    spaces: Mapping[str, FeatureSchema]  # of each space, the features of all its clients
    shared: Mapping[str, SharedFeatures] = field(  # of each space
        default_factory=dict[str, SharedFeatures]
    )

    @classmethod
    def of(cls, clients: Sequence[ClientData], task: Task) -> "Population":
        """Facts about a federation whose clients are all in this process."""
        members: dict[str, list[FeatureSchema]] = {}
        for client in clients:
            members.setdefault(client.schema.space, []).append(client.schema)
        return cls(
            num_clients=len(clients),
            task=task,
            max_features=max(client.schema.dim for client in clients),
            total_rows=sum(len(client.train) for client in clients),
            spaces={space: union(schemas) for space, schemas in members.items()},
            shared={space: SharedFeatures.of(schemas) for space, schemas in members.items()},
        )


@dataclass(frozen=True)
class Stack:
    """Private state of one or many clients of one architecture; it never leaves them."""

    embedding: Embedding
    private: Named

    def __len__(self) -> int:
        return len(next(iter(self.private.values()))) if self.private else 0


@dataclass(frozen=True)
class Visit:
    """Result of one visit to a stack of clients: new private state, updates to send, losses."""

    stack: Stack
    updates: list[Update]
    losses: Losses
    rows_drawn: Int[Tensor, "clients slots"] | None = None  # by class, for the losses


@dataclass(frozen=True)
class VisitContext:
    """Everything a stack of clients can read during one visit."""

    server: ServerState
    stack: Stack
    data: StackedData
    rngs: Generators

    def __len__(self) -> int:
        return len(self.data)

    def each(self, shared: Named) -> dict[str, Tensor]:
        """A copy of shared tensors for each client of the stack."""
        return {n: v.expand(len(self), *v.shape).contiguous() for n, v in shared.items()}


@dataclass(frozen=True)
class Stage:
    """One piece of work: its clients, their part of it, and the server's use of their updates."""

    name: str  # seeds the random numbers of the work
    client_half: Callable[[VisitContext], Visit]
    server_half: Callable[[ServerState, Sequence[Update]], ServerState]
    who: Literal["everyone", "active"] = "everyone"
    sends: bool = True  # whether anything leaves the clients
    sums: bool = False  # whether it sends sums over rows, which may be of any size


@dataclass(frozen=True)
class Step:
    """A round: stages one after another, then perhaps an evaluation of all clients."""

    name: str
    round: int
    stages: tuple[Stage, ...] = ()
    measured: Literal["always", "when due", "never"] = "when due"

    @property
    def sends(self) -> bool:
        """True if anything leaves the clients in it."""
        return any(stage.sends for stage in self.stages)


@dataclass(frozen=True)
class Exported:
    """A client's model after a run: all that it predicts with, and no row of anyone."""

    kind: Literal["network", "linear", "boosting", "linked"]
    tensors: Named = field(default_factory=dict[str, Tensor])
    estimator: Any = None  # of scikit-learn, where tensors cannot say it


class Method(ABC):
    """One method of training: its stages, their order, and its predictions."""

    name: ClassVar[str]

    #: Shared tensors that the server alone decides: they leave no client.
    fixed: frozenset[str] = frozenset()

    #: Kinds of labels the method can learn.
    tasks: ClassVar[Sequence[TaskName]] = ("classification", "regression")

    #: Whether the method may run between machines: it sends something, and never φ.
    between_machines: ClassVar[bool] = False

    #: Whether the server shares made-up inputs, which are as wide as the widest client.
    shares_inputs: ClassVar[bool] = False

    #: Whether a stage sends sums over rows.
    sends_sums: ClassVar[bool] = False

    @abstractmethod
    def __init__(
        self, settings: MethodSettings, population: Population, *, seed: int, dtype: torch.dtype
    ) -> None: ...

    @property
    @abstractmethod
    def stages(self) -> Mapping[str, Stage]:
        """All work that the method has for clients, by name."""

    @abstractmethod
    def programme(self, rounds: int, *, final_round: bool) -> list[Step]:
        """The steps of a whole run; those before round 1 have the number 0 or negative ones."""

    @abstractmethod
    def init_server(self) -> ServerState:
        """Server state before the first step."""

    @abstractmethod
    def init_client(self, client: ClientData, embedding: Embedding) -> dict[str, Tensor]:
        """Private parameters of one client before its first visit, features unpadded."""

    def rows_behind(self, context: VisitContext, client: int) -> Mapping[str, int]:
        """Training rows of a client behind each tensor it sends that rests on a part of them.

        A silo keeps back what rests on too few. What is not named rests on all of its rows.
        """
        del context, client
        return {}

    def unsound(self, shared: Named) -> list[str]:
        """Names of shared tensors that no finished step leaves as they are.

        A method that begins with other tensors than it goes on with has its own version.
        """
        return unlike_forms(self.init_server().shared, shared)

    def explain(self, server: ServerState) -> Sequence[str]:
        """Results that a person may want to know, as sentences."""
        del server
        return ()

    @abstractmethod
    def predict(
        self, server: ServerState, stack: Stack, data: StackedData, splits: Sequence[Split]
    ) -> list[Float[Tensor, "rows outputs"]]:
        """Class scores of each client's rows, −∞ for classes it does not hold; or responses."""

    @abstractmethod
    def export(self, server: ServerState, client: ClientData, state: Named | None) -> Exported:
        """The client's model, from the shared part and its own; `state` is None without any."""


def check_update(server: ServerState, update: Update, fixed: frozenset[str] = frozenset()) -> None:
    """Refuse an update with a name, shape, type or value that the server cannot use."""
    who = f"update of client {update.client!r}"
    for name, entry in update.entries.items():
        if name in fixed:
            raise IncompatibleUpdate(
                f"{who} holds {name!r}, which the server alone decides; expected what clients "
                "learn. Drop it."
            )
        if name not in server.shared:
            raise IncompatibleUpdate(
                f"{who} holds {name!r}, which the server does not share. Only "
                f"{counted(len(server.shared), 'shared name')} may leave a client; drop it."
            )
        known = server.shared[name]
        if entry.value.shape != known.shape or entry.value.dtype != known.dtype:
            raise IncompatibleUpdate(
                f"{who}: {name!r} is {_kind(entry.value)}, expected {_kind(known)}. "
                "Give all clients the same model and engine settings."
            )
        if not (math.isfinite(entry.weight) and entry.weight > 0):
            raise IncompatibleUpdate(f"{who}: {name!r} has weight {entry.weight}; expected > 0.")

    if not math.isfinite(update.magnitude):
        bad = [n for n, e in update.entries.items() if not torch.isfinite(e.value).all()]
        raise IncompatibleUpdate(f"{who}: {bad[0]!r} holds NaN or infinite values; not counted.")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def gather_entries(updates: Iterable[Update]) -> dict[str, list[Entry]]:
    """Entries of all updates by name: the holders of each name."""
    holders: dict[str, list[Entry]] = {}
    for update in updates:
        for name, entry in update.entries.items():
            holders.setdefault(name, []).append(entry)
    return holders


def weighted_mean(
    entries: Sequence[Entry], *, total_weight: float | None = None
) -> Float[Tensor, "..."]:
    """Mean of the holders' tensors; divided by `total_weight` if given, else by their own sum."""
    weights = torch.tensor([e.weight for e in entries], dtype=torch.float64)
    values = torch.stack([e.value.to(torch.float64) for e in entries])
    total = (weights.view(-1, *[1] * (values.ndim - 1)) * values).sum(0)
    return (total / (total_weight or float(weights.sum()))).to(entries[0].value.dtype)


def trimmed_mean(entries: Sequence[Entry]) -> Float[Tensor, "..."]:
    """Mean of each number without its largest and its smallest quarter.

    At least one is left out on each side, so that of three holders none can move a number beyond
    the other two. With fewer than three, it is the plain mean.
    """
    count = len(entries)
    if count < 3:
        return weighted_mean(entries)
    cut = max(1, count // 4)
    values = torch.stack([e.value.to(torch.float64) for e in entries])
    middle = values.sort(0)
    weights = torch.tensor([e.weight for e in entries], dtype=torch.float64)
    weights = weights[middle.indices[cut : count - cut]]
    total = (weights * middle.values[cut : count - cut]).sum(0)
    return (total / weights.sum(0)).to(entries[0].value.dtype)
