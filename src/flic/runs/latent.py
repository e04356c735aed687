"""View of a checkpoint: embedded rows, anchors, distances, and tensors sent.

Nothing is trained; everything is computed as in the method's own prediction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flic.data.client_data import ClientData
from flic.data.stacked import StackedRows
from flic.data.task import Regression, Task
from flic.engine.clients import Clients
from flic.engine.engine import stack_of
from flic.engine.journal import Journal
from flic.engine.traffic import ClientTraffic, SentTensor
from flic.errors import Diverged
from flic.gaussians import Gaussian, wasserstein2_sq, wasserstein2_sq_interval
from flic.methods.flic.algorithm import Flic
from flic.methods.flic.anchors import mean_name
from flic.methods.network import NetworkMethod
from flic.methods.protocol import ServerState, VisitContext
from flic.seeding import generator
from flic.shapes import Named

POINTS = 3000  # rows in the view
BINS = 4  # ranges of responses in the view of a regression
SplitName = Literal["train", "test"]
SPLITS: Sequence[SplitName] = ("train", "test")


@dataclass(frozen=True)
class LatentPoint:
    """One embedded row in the plane of the view."""

    x: float
    y: float
    label: str
    client: str
    split: SplitName


@dataclass(frozen=True)
class Anchor:
    """Mean of a class's anchor in the plane of the view."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Latent:
    """A view of the latent space; `caption` says how its plane was found."""

    points: Sequence[LatentPoint]
    anchors: Sequence[Anchor] = ()
    caption: str = ""


@dataclass(frozen=True)
class AlignmentCell:
    """W₂² between a client's embedded rows of a class and the anchor.

    The 95 % interval needs more rows of the class than latent dimensions; otherwise it is None.
    """

    client: str
    label: str
    w2sq: float
    low: float | None
    high: float | None
    split: SplitName


@dataclass(frozen=True, eq=False)
class Seen:
    """Embedded rows of one split of one client, and the anchor of each of its classes."""

    client: str
    split: SplitName
    z: Tensor  # [rows, k]
    y: Tensor  # [rows], labels as in the data
    anchors: Mapping[int, Gaussian]


@dataclass(frozen=True, eq=False)
class Reading:
    """All clients of a run at its last checkpoint."""

    task: Task
    parts: Sequence[Seen]
    anchors: Mapping[str, Tensor]  # label → mean of the anchor, [k]
    sent: Mapping[str, Named]  # client → tensors of its update in a round
    asked: Named  # tensors that every client sends in a preparation instead
    kept: Sequence[str]  # names of the tensors that clients never send


def read(clients: Clients, method: NetworkMethod, journal: Journal, *, stack_width: int) -> Reading:
    """Embed every client's rows by its own φ."""
    server = journal.server or method.init_server()
    parts: list[Seen] = []
    sent: dict[str, dict[str, Tensor]] = {}
    private: dict[str, None] = {}
    with torch.no_grad():
        for names in clients.split(clients.names, stack_width=stack_width):
            context = _context(clients, method, server, journal, names)
            shared = method.each_shared(context)
            parts += _seen(method, context, shared)
            for update in method.updates(context, method.start(context), shared):
                sent[update.client] = {n: entry.value for n, entry in update.entries.items()}
            private |= dict.fromkeys(context.stack.private)
    order = {name: i for i, name in enumerate(clients.names)}
    parts.sort(key=lambda seen: order[seen.client])
    ordered = {name: sent[name] for name in clients.names}
    # The server drops a tensor that it needs only once, as soon as it has it.
    asked = {n: v for n, v in method.init_server().shared.items() if n not in server.shared}
    kept = _kept(private, {name for entries in sent.values() for name in entries})
    return Reading(clients.data.task, parts, _means(method, server), ordered, asked, kept)


def held_out(
    clients: Clients, method: NetworkMethod, journal: Journal, *, stack_width: int
) -> dict[str, Tensor]:
    """Scores of every client's model on its test rows."""
    server = journal.server or method.init_server()
    found: dict[str, Tensor] = {}
    for names in clients.split(clients.names, stack_width=stack_width):
        context = _context(clients, method, server, journal, names)
        rows = [client.test for client in context.data.clients]
        scores = method.predict(server, context.stack, context.data, rows)
        found |= dict(zip(names, scores, strict=True))
    return {name: found[name] for name in clients.names}


def _context(
    clients: Clients,
    method: NetworkMethod,
    server: ServerState,
    journal: Journal,
    names: Sequence[str],
) -> VisitContext:
    stack = stack_of(clients, method, names, journal.states(names))
    return VisitContext(server, stack, clients.stacked_data(names), ())


def _seen(method: NetworkMethod, context: VisitContext, shared: Named) -> Iterator[Seen]:
    """Both splits of every client of a stack."""
    phi = method.phi(context, context.stack.private, shared)
    for split in SPLITS:
        own = [getattr(client, split) for client in context.data.clients]
        rows = StackedRows.of(own, width=context.data.width, dtype=method.dtype)
        latent = context.stack.embedding.apply(phi, rows.x, rows=rows.counts)
        for i, (client, count) in enumerate(zip(context.data.clients, rows.counts, strict=True)):
            anchors = _own_anchors(method, context, shared, i, client)
            yield Seen(client.name, split, latent[i, :count], own[i].y, anchors)


def _own_anchors(
    method: NetworkMethod, context: VisitContext, shared: Named, i: int, client: ClientData
) -> dict[int, Gaussian]:
    """The client's copy of the anchor of each of its classes; none for responses."""
    if not isinstance(method, Flic):
        return {}
    copies = method.scheme.anchors.gaussian(shared)
    anchor_of = method.scheme.anchors_of_classes(context.server.shared, client.classes)
    return {c: copies[i, anchor] for c, anchor in anchor_of.items()}


def _means(method: NetworkMethod, server: ServerState) -> dict[str, Tensor]:
    if not isinstance(method, Flic):
        return {}
    task = method.population.task
    means = [server.shared[mean_name(c)] for c in range(method.scheme.num_anchors)]
    if isinstance(task, Regression):
        ends = (0, BINS - 1)
        return {_bin_name(task, at): mean for at, mean in zip(ends, means, strict=True)}
    return dict(zip(method.scheme.labels, means, strict=True))


def _kept(private: Iterable[str], gone: set[str]) -> list[str]:
    """Tensors that no update has: φ and the client's own part of the model."""
    left = [name for name in private if name not in gone]
    phi = [name for name in left if name.startswith("embedding.")]
    own = [name for name in left if name not in phi]
    kinds = {"φ, the embedding of the client's own features": phi, "the client's own model": own}
    return [f"{what}: {', '.join(names)}" for what, names in kinds.items() if names]


# ---- the view ----------------------------------------------------------------------------


def latent(reading: Reading, *, seed: int) -> Latent:
    """Rows and anchors in the plane of the largest spread of training rows and anchors."""
    z = torch.cat([part.z for part in reading.parts]).double()
    if not bool(z.isfinite().all()):
        raise Diverged(
            "rows embedded by the last checkpoint are no longer finite; expected numbers. Lower "
            "training.optimiser.learning_rate, and start a new run in another folder."
        )
    labels = [label for part in reading.parts for label in _labels(reading.task, part.y)]
    origin = [part for part in reading.parts for _ in range(len(part.z))]
    drawn = torch.randperm(len(z), generator=generator(seed, "report"))[:POINTS].sort().values
    z, chosen = z[drawn], drawn.tolist()
    means = [mean.double() for mean in reading.anchors.values()]
    is_train = torch.tensor([origin[i].split == "train" for i in chosen])
    plane = _plane(torch.cat([z[is_train], *(mean[None] for mean in means)]))
    return Latent(
        [
            LatentPoint(x, y, labels[i], origin[i].client, origin[i].split)
            for i, (x, y) in zip(chosen, plane.project(z), strict=True)
        ],
        [
            Anchor(*plane.project(mean[None])[0], label)
            for label, mean in zip(reading.anchors, means, strict=True)
        ],
        _caption(plane.share, len(chosen), len(labels), anchored=bool(means)),
    )


@dataclass(frozen=True, eq=False)
class _Plane:
    """Projection to at most two principal axes."""

    centre: Tensor  # [k]
    axes: Tensor  # [2, k]
    share: float  # of the variance

    def project(self, z: Tensor) -> list[tuple[float, float]]:
        """Coordinates of rows."""
        flat = (z - self.centre) @ self.axes.mT
        flat = torch.nn.functional.pad(flat, (0, 2 - flat.shape[1]))
        return [(x, y) for x, y in flat.tolist()]


def _plane(rows: Tensor) -> _Plane:
    """The plane of the first two principal components."""
    centre = rows.mean(0)
    _, s, axes = torch.linalg.svd(rows - centre, full_matrices=False)
    spread = s.square()
    share = float(spread[:2].sum() / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny))
    return _Plane(centre, axes[:2], share)


def _caption(share: float, shown: int, rows: int, *, anchored: bool) -> str:
    of = "training rows and anchors" if anchored else "training rows"
    said = [f"The plane of the first two principal components of {of}, {share:.0%} of variance."]
    if shown < rows:
        said.append(f"{shown:,} of {rows:,} rows, drawn at random.")
    if not anchored:
        said.append("This method has no anchors: points of different clients need not agree.")
    return " ".join(said).replace("%", "\u00a0%")


def _labels(task: Task, y: Tensor) -> list[str]:
    """Classes, or ranges of responses."""
    if not isinstance(task, Regression):
        return [str(c) for c in y.tolist()]
    bins = (task.encode(y) * BINS).floor().clamp(0, BINS - 1)
    return [_bin_name(task, int(at)) for at in bins.tolist()]


def _bin_name(task: Regression, at: int) -> str:
    low, high = (task.low + task.width * end / BINS for end in (at, at + 1))
    return f"{low:.4g} to {high:.4g}"


# ---- distances and traffic ---------------------------------------------------------------


def alignment(reading: Reading) -> list[AlignmentCell]:
    """W₂² of every client, class and split that has rows."""
    return [
        _cell(part, label, part.z[part.y == label])
        for part in reading.parts
        for label in part.anchors
        if bool((part.y == label).any())
    ]


def _cell(part: Seen, label: int, rows: Tensor) -> AlignmentCell:
    anchor = part.anchors[label]
    if len(rows) > rows.shape[1]:
        found = wasserstein2_sq_interval(rows, anchor)
        numbers = (found.estimate.item(), found.low.item(), found.high.item())
    else:
        wide = Gaussian(anchor.mean.double(), anchor.factor.double(), anchor.eps)
        distance = wasserstein2_sq(Gaussian.from_samples(rows.double()), wide)
        numbers = (distance.item(), None, None)
    return AlignmentCell(part.client, str(label), *numbers, part.split)


def traffic(reading: Reading, records: Iterable[Mapping[str, Any]]) -> list[ClientTraffic]:
    """Tensors that each client sent, and the number of times."""
    rounds, asked = dict.fromkeys(reading.sent, 0), 0
    for record in records:
        if not record.get("bytes_sent"):
            continue
        # No clients are drawn for a preparation: all of them do it.
        if "active" not in record and reading.asked:
            asked += 1
            continue
        for name in record.get("active", rounds):
            rounds[name] += 1
    return [
        ClientTraffic(client, _tensors(reading.asked, asked) + _tensors(sent, rounds[client]))
        for client, sent in reading.sent.items()
    ]


def _tensors(named: Named, times: int) -> list[SentTensor]:
    return [
        SentTensor(name, tuple(value.shape), value.numel() * value.element_size(), times)
        for name, value in named.items()
        if times
    ]
