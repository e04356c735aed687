"""Parts of silos in a sum, number by number: layout of the numbers, and who adds to each of them.

Silos differ in columns, classes and in what they tell. A number to which one silo alone adds would
be that silo's own, however many silos are in the sum. So each says beforehand, signed, to which
numbers it would add, and adds only to those to which enough others would. The rest it keeps, and
adds to the sums that it is sent: its own predictors see the same as if it had told. That is said
of tensors, columns and classes. A product of two columns that a silo's own rules keep back is a 0
that it adds all the same, so that such a total may be one silo's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flic.data.task import Task
from flic.digests import digest_of, digest_of_arrays
from flic.engine.engine import EVALUATE
from flic.errors import FederationError
from flic.flower.federation_settings import FederationSettings
from flic.flower.pooling import FIRST, POSITIONS, linked_method, round_of
from flic.flower.secure.statements import Contents
from flic.flower.silo_figures import figure_names, figure_scales
from flic.flower.sums_form import LINEAR, MAPPED, SumsForm
from flic.methods.linked.sums import Moments
from flic.methods.protocol import Entry, Update
from flic.shapes import Named, under

Group = tuple[int, ...]
"""Silos that are sent the same totals, by the places of their columns; () if all are."""

FIGURE = "figure."
"""Beginning of the names of figures of held-out rows."""

_WEIGHT = "weight of "
_TOTALS = ("moments.", FIGURE)  # sums as they are; all else is averaged
_BY_COLUMN = (f"{LINEAR}along", f"{LINEAR}behind")
_BY_CLASS = (f"{MAPPED}count", f"{MAPPED}total")


@dataclass(frozen=True)
class SumLayout:
    """The numbers of one sum in their order, the same for all silos."""

    settings: FederationSettings
    stage: str
    round: int
    union: tuple[str, ...]  # keys of all linked columns

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors of the sum; what is averaged travels as n · v and n."""
        found: dict[str, tuple[int, ...]] = {}
        for name, value in self._added.items():
            found[name] = tuple(value.shape)
            if not name.startswith(_TOTALS):
                found[_WEIGHT + name] = ()
        return found

    @cached_property
    def _added(self) -> Named:
        """What silos add to, as the server knows it: figures, or all that they learn."""
        if self.stage == EVALUATE:
            names = figure_names(self.settings.common_task)
            return {FIGURE + name: torch.zeros((), dtype=torch.float64) for name in names}
        if self.settings.sends_sums:
            shared = linked_method(self.union, self.settings, apart=True).init_server().shared
            return {name: own for name, own in shared.items() if round_of(name) == self.round}
        method = self.settings.coordinated_method()
        shared = method.init_server().shared
        return {name: own for name, own in shared.items() if name not in method.fixed}

    @cached_property
    def size(self) -> int:
        """Count of the numbers."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    # ---- a silo's part -------------------------------------------------------------------

    def own(self, update: Update, keys: Sequence[str]) -> np.ndarray:
        """A silo's numbers, 0 where it has nothing to add; `keys` are of its linked columns."""
        tensors = {name: entry.value for name, entry in update.entries.items()}
        tensors |= self._form.among(keys, under(LINEAR, tensors), self.union)
        for name, entry in update.entries.items():
            if _WEIGHT + name in self.shapes:
                tensors[name] = entry.weight * entry.value
                tensors[_WEIGHT + name] = torch.tensor(entry.weight, dtype=torch.float64)
        return self._flat(tensors)

    def contents(self, update: Update, keys: Sequence[str], min_holders: int) -> Contents:
        """Statement of a silo's part, made beforehand."""
        place = {key: i for i, key in enumerate(self.union)}
        counts = [e.value for n, e in update.entries.items() if n.endswith(".count")]
        classes = counts[0].sum(1).nonzero().flatten().tolist() if counts else []
        return Contents(
            names=sorted(update.entries),
            columns=sorted(place[key] for key in keys),
            classes=classes,
            min_holders=min_holders,
        )

    def in_own_columns(self, numbers: np.ndarray, keys: Sequence[str]) -> Named:
        """Numbers of the sum as a silo is sent them: of its own columns and no others."""
        tensors = {n: v for n, v in self.tensors(numbers).items() if n.startswith("moments.")}
        if not self.is_of_columns or not tensors:
            return tensors
        place = {key: i for i, key in enumerate(self.union)}
        there = [place[key] for key in keys] + [len(self.union)] * self._form.responses
        return {**tensors, **self._form.of_columns(tensors, there)} if there else {}

    # ---- totals that silos are sent as they are ----------------------------------------------

    def group_of(self, keys: Sequence[str]) -> Group:
        """Group of a silo with these linked columns."""
        place = {key: i for i, key in enumerate(self.union)}
        return tuple(sorted(place[key] for key in keys)) if self.is_of_columns else ()

    def groups(self, contents: Iterable[Contents]) -> list[Group]:
        """Groups of silos in the order of their tags; none where all totals are averaged."""
        if not any(name.startswith("moments.") for name in self.shapes):
            return []
        linked = (own.columns for own in contents if own.columns)
        return sorted({self.group_of([self.union[i] for i in columns]) for columns in linked})

    def places(self, keys: Sequence[str]) -> Named:
        """Places in the sum of the totals that a silo of these columns is sent, by name."""
        return self.in_own_columns(np.arange(float(self.size)), keys)

    def places_of(self, group: Group) -> np.ndarray:
        """Places of the totals of a group, as one list."""
        found = self.places([self.union[i] for i in group])
        flat = [found[name].numpy().ravel() for name in sorted(found)]
        return np.concatenate(flat).astype(np.int64)

    # ---- what silos are sent -------------------------------------------------------------

    def sent(self, shared: Named, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """The shared part as a silo was sent it, its columns in the order of all silos'."""
        found = {name: value for name, value in shared.items() if name != POSITIONS}
        place = {key: i for i, key in enumerate(self.union)}
        found |= self._linear(found, sorted(range(len(keys)), key=lambda i: place[keys[i]]))
        return {name: value.numpy() for name, value in found.items()}

    def in_common(
        self, sent: Mapping[str, np.ndarray], own: Sequence[int], other: Sequence[int]
    ) -> str:
        """Digest of the sums and settings that two silos of these columns were both sent.

        Whoever sends silos different ones chooses what each adds: if all but one of them add what
        is known beforehand, the sum is that one's.
        """
        tensors = {name: torch.from_numpy(value) for name, value in sent.items()}
        found = {n: v for n, v in tensors.items() if not n.startswith("moments.")}
        if own and other:
            found |= under(MAPPED, tensors)
            found |= self._linear(tensors, [i for i, c in enumerate(own) if c in {*other}])
        arrays = {name: found[name].numpy() for name in sorted(found)}
        return digest_of([self.settings.agreement, digest_of_arrays(arrays)])

    def _linear(self, tensors: Named, chosen: Sequence[int]) -> Named:
        """Sums of some of the columns of which there are sums, and of a response."""
        if f"{LINEAR}total" not in tensors:
            return {}
        responses = self._form.responses
        width = tensors[f"{LINEAR}total"].shape[1]
        return self._form.of_columns(tensors, [*chosen, *range(width)[width - responses :]])

    # ---- who adds to what ----------------------------------------------------------------

    def num_adding(self, contents: Iterable[Contents]) -> np.ndarray:
        """Number of silos that add to each number, by what they said."""
        found = np.zeros(self.size, np.int64)
        for own in contents:
            found += self._is_added(own)
        return found

    def _is_added(self, own: Contents) -> np.ndarray:
        classes = self.settings.common_task.num_outputs
        if not self.has_room_for(own):
            raise FederationError(
                "a silo would add to columns or classes that are none of the sum's; expected those "
                "that all silos were told. Give all silos one version of flic."
            )
        is_held = torch.zeros(classes, 1, dtype=torch.float64)
        is_held[own.classes] = 1.0
        tensors: dict[str, Tensor] = {}
        if f"{LINEAR}total" in self.shapes:
            tensors = self._form.packed(self._ones(own.columns, is_held))
        has = self._has(own.columns)[: len(self.union)]
        along = {n: s for n, s in self.shapes.items() if n in _BY_COLUMN}
        tensors |= {n: has.view(-1, *(1,) * (len(s) - 1)).expand(s) for n, s in along.items()}
        tensors |= {n: is_held.expand(s) for n, s in self.shapes.items() if n in _BY_CLASS}
        every = {n: torch.ones(s) for n, s in self.shapes.items() if n not in tensors}
        said = {*own.names, *(_WEIGHT + name for name in own.names)}
        return self._flat({n: v for n, v in {**every, **tensors}.items() if n in said}) > 0

    def _ones(self, columns: Sequence[int], is_held: Tensor) -> Moments:
        """Sums of ones: who has the columns adds to them, by class and in pairs."""
        has = self._has(columns)
        pairs = has[:, None] * has
        return Moments(is_held * has, is_held * has, pairs, pairs)

    def _has(self, columns: Sequence[int]) -> Tensor:
        """1 for some of the columns, and for a response."""
        width = len(self.union) + self._form.responses
        has = torch.zeros(width, dtype=torch.float64)
        has[[*columns, *range(len(self.union), width)]] = 1.0
        return has

    def has_room_for(self, own: Contents) -> bool:
        """Return whether the columns and classes that a silo would add to are the sum's."""
        classes = self.settings.common_task.num_outputs
        return max([*own.columns, -1]) < len(self.union) and max([*own.classes, -1]) < classes

    # ---- numbers and tensors -------------------------------------------------------------

    @property
    def is_of_columns(self) -> bool:
        """True in the rounds of the columns' own sums, which silos have different ones of."""
        return any(name.startswith(LINEAR) for name in self._added)

    @property
    def _form(self) -> SumsForm:
        return SumsForm(self.settings)

    def _flat(self, tensors: Named) -> np.ndarray:
        found = np.zeros(self.size)
        at = 0
        for name, shape in self.shapes.items():
            length = int(np.prod(shape))
            if name in tensors:
                found[at : at + length] = tensors[name].double().numpy().ravel()
            at += length
        return found

    def tensors(self, numbers: np.ndarray) -> dict[str, Tensor]:
        """Numbers of the sum by name."""
        found: dict[str, Tensor] = {}
        at = 0
        for name, shape in self.shapes.items():
            length = int(np.prod(shape))
            part = numbers[at : at + length].reshape(shape)
            found[name] = torch.from_numpy(np.array(part, np.float64))
            at += length
        return found

    def pooled(self, numbers: np.ndarray, who: str) -> Update:
        """The sum as one update: totals as they are, means with the weight behind them."""
        tensors, entries = self.tensors(numbers), dict[str, Entry]()
        for name, value in tensors.items():
            if name.startswith(_TOTALS):
                entries[name] = Entry(value, 1.0)
            elif not name.startswith(_WEIGHT):
                weight = float(tensors[_WEIGHT + name])
                if weight > 0:
                    mean = (value / weight).to(self._added[name].dtype)
                    entries[name] = Entry(mean, weight)
        return Update(who, entries)


def figures_to_add(silo: str, figures: Mapping[str, float], task: Task) -> Update:
    """Figures as a silo adds them."""
    scale = figure_scales(task)
    totals = {name: torch.tensor(v / scale[name]).double() for name, v in figures.items()}
    return Update(silo, {FIGURE + name: Entry(value, 1.0) for name, value in totals.items()})


def added_figures(update: Update, task: Task) -> dict[str, float]:
    """Figures of all silos together."""
    scale = figure_scales(task)
    totals = {name.removeprefix(FIGURE): float(e.value) for name, e in update.entries.items()}
    return {name: scale[name] * value for name, value in totals.items()}


def is_masked(settings: FederationSettings, stage: str, round: int) -> bool:
    """Return whether what a stage of a round sends is masked: all but keys of columns.

    By what the stage sends, since the operator may ask for it in any round.
    """
    if not settings.masks_sums:
        return False
    if settings.sends_sums:
        return round > FIRST
    return stage == EVALUATE or settings.coordinated_method().stages[stage].sends


def sets_behind(contents: Mapping[str, Contents], own: str) -> dict[str, frozenset[str]]:
    """Members behind what one of them adds: as a whole, by tensor, and by column's place."""
    mine, found = contents[own], {"": frozenset(contents)}
    for name in mine.names:
        found[name] = frozenset(n for n, other in contents.items() if name in other.names)
    for place in mine.columns:
        found[f"column {place}"] = frozenset(
            n for n, other in contents.items() if place in other.columns
        )
    return found
