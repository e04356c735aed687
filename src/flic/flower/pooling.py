"""Linked features over Flower: the coordinator's part of the closed form, five rounds in all.

A silo's features are known by keys, which are salted hashes of their names. In the first round a
silo sends its keys alone. In the second it sends sums of those features that enough silos have; the
coordinator lays these side by side, and from then on a silo is sent the pooled sums of its own
features and of no others. In the third, silos send sums of these along the directions between
classes.

DIR/pooled/NAME.json          the keys of a silo
DIR/pooled/NAME.safetensors   its sums, until the run is done: if a silo fails later, the others
                              begin anew as if it had never been there
"""

import hmac
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median_low

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from flic.data.schema import FeatureSchema, SharedFeatures
from flic.digests import digest
from flic.files import parse_json, write_atomically, write_json
from flic.flower.federation_settings import FederationSettings
from flic.flower.sums_form import LINEAR, MAPPED, SPACE, SumsForm
from flic.method_settings import MethodSettings
from flic.methods.linked.link_checks import UNLIKE
from flic.methods.linked.linked import Linked
from flic.methods.linked.linked_client import scores_name
from flic.methods.linked.sums import ALONG, SENT, Moments
from flic.methods.linked.tuning import WORST
from flic.methods.protocol import Entry, Population, ServerState, Update
from flic.settings import damaged, read_object
from flic.shapes import stripped, under

FIRST, SUMS, DIRECTIONS, LAST = -4, -3, -2, 0
"""Rounds of the closed form: keys, sums of linked features, sums along directions between classes,
and two that are built on these."""

KEY_BYTES = 32
_KEY = re.compile(rf"[0-9a-f]{{{KEY_BYTES}}}")
SCORES = tuple(scores_name(name, SPACE) for name in ("own", "linked", "mix"))

POSITIONS = "links.places"
"""The name of the tensor of linked features: their positions among the silo's keys."""


def feature_keys(salt: str, names: Iterable[str]) -> tuple[str, ...]:
    """Keys for features' names on the wire: equal for equal names and salts."""
    secret = bytes.fromhex(salt)
    digests = (hmac.new(secret, name.encode(), "sha256").hexdigest() for name in names)
    return tuple(own[:KEY_BYTES] for own in digests)


def are_keys(keys: Sequence[str]) -> bool:
    """Return whether these could be the keys of a silo's features."""
    return len({*keys}) == len(keys) > 0 and all(map(_KEY.fullmatch, keys))


def round_of(name: str) -> int:
    """The round in which sums or likelihoods of a name leave a silo."""
    is_along = name.rpartition(".")[2] in ALONG
    if name.startswith("moments."):
        return SUMS + int(is_along) + int(name.startswith(MAPPED))
    return LAST if name == SCORES[-1] else DIRECTIONS + 1


def rounds_of_sums(settings: FederationSettings) -> list[int]:
    """The rounds in which sums of rows leave silos, beside likelihoods or without."""
    shared = linked_method(["any"], settings).init_server().shared
    return sorted({round_of(name) for name in shared if name.startswith("moments.")})


def linked_method(
    keys: Sequence[str],
    settings: FederationSettings,
    method: MethodSettings | None = None,
    *,
    apart: bool = False,
) -> Linked:
    """The method among features of these keys; `apart` where each has holders of its own."""
    block = tuple(range(len(keys))) if apart else (0,) * len(keys)
    spaces = {SPACE: FeatureSchema(SPACE, tuple(keys))}
    shared = {SPACE: SharedFeatures(tuple(keys), block)}
    population = Population(0, settings.common_task, len(keys), 0, spaces, shared)
    own = method or settings.method_settings
    return Linked(own, population, seed=settings.seed, dtype=torch.float64)


@dataclass(frozen=True)
class Pooling:
    """Sums of silos, laid side by side."""

    folder: Path
    settings: FederationSettings

    @property
    def form(self) -> SumsForm:
        """The form in which sums travel."""
        return SumsForm(self.settings)

    def expected(self, keys: Sequence[str], round: int) -> ServerState:
        """Names and shapes of what is sent in a round of sums of features with these keys."""
        method = linked_method(keys, self.settings, apart=round > SUMS)
        shared = method.init_server().shared.items()
        return ServerState(round, {name: own for name, own in shared if round_of(name) == round})

    def among_all(self, update: Update, names: Iterable[str]) -> Update:
        """A silo's update with its sums of columns among those that several silos have."""
        names, entries = [*names], dict(update.entries)
        own = {name: e.value for name, e in entries.items() if name.startswith(LINEAR)}
        found = self.form.among(self.linked(update.client, names), own, self.union(names))
        entries |= {name: Entry(value, 1.0) for name, value in found.items()}
        return replace(update, entries=entries)

    def keep_keys(self, keys: Mapping[str, Sequence[str]]) -> None:
        """Have the keys of silos on the disk."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for name, own in keys.items():
            write_json(self._file(name, "json"), {"keys": list(own)})

    def keep(self, updates: Iterable[Update], names: Iterable[str]) -> None:
        """Have the sums of silos on the disk, which are of features that several of these have."""
        names = sorted(names)
        for update in updates:
            tensors = {name: entry.value for name, entry in update.entries.items()}
            told = {"keys": json.dumps(self.linked(update.client, names))}
            write_atomically(self._file(update.client, "safetensors"), save(tensors, told))

    def start(self, names: Iterable[str]) -> ServerState:
        """The shared part after the sums, as if only these silos had ever been there."""
        names = sorted(names)
        method, union = self.method(names), self.union(names)
        shared = dict(method.init_server().shared)
        if union:
            sent = [own for own in map(self._load, names) if own[1]]
            pooled = [self.form.spread(*own, union) for own in sent]
            shared |= self.form.packed(sum(pooled[1:], start=pooled[0])) if pooled else {}
        return ServerState(SUMS, shared)

    def linked(self, name: str, names: Iterable[str]) -> list[str]:
        """Keys of a silo's features that enough of some silos have, in its own order."""
        union = {*self.union(names)}
        return [key for key in self._keys(name) if key in union]

    def method(self, names: Iterable[str]) -> Linked:
        """The method among all linked features of these silos."""
        return linked_method(self.union(names), self.settings, apart=True)

    def shared_with(self, name: str, server: ServerState, names: Iterable[str]) -> ServerState:
        """The shared part as one silo is sent it: of its own linked features and no others."""
        keys, union = self._keys(name), self.union(names)
        known = {key: i for i, key in enumerate(union)}
        own = [i for i, key in enumerate(keys) if key in known]
        shared = {n: v for n, v in server.shared.items() if not n.startswith("moments.")}
        if own and server.shared:
            there = [known[keys[i]] for i in own] + [len(union)] * self.form.responses
            shared |= self.form.of_columns(server.shared, there)
            shared |= under(MAPPED, server.shared)
        shared[POSITIONS] = torch.tensor(own, dtype=torch.int64)
        return ServerState(server.round, shared)

    def holders(self, name: str, names: Iterable[str]) -> tuple[int, ...]:
        """Number of silos that have each feature of a silo, itself included."""
        held = Counter(key for own in names for key in self._keys(own))
        return tuple(held[key] for key in self._keys(name))

    def lacking(self, update: Update, *, needed: bool) -> str | None:
        """The reason why an update's sums cannot be read: some lack others. None if they can."""
        for prefix in (LINEAR, MAPPED):
            sent = {*stripped(prefix, update.entries)}
            first = [{*names} - {*ALONG} for names in SENT.values()]
            is_needed = sent or (needed and prefix == LINEAR)
            if is_needed and sent not in [*first, {*ALONG}]:
                return (
                    f"update of silo {update.client!r} has the sums {', '.join(sorted(sent))}; "
                    f"expected at least {', '.join(SENT['off'])}, and others in pairs, or "
                    f"{', '.join(ALONG)} together. Give all silos one version of flic."
                )
        return None

    def outliers(
        self, updates: Sequence[Update], keys: Mapping[str, Sequence[str]], factor: float
    ) -> dict[str, str]:
        """Updates whose means or deviations are out of proportion to others' of the same key."""
        found: dict[str, str] = {}
        sums = self._sizes_of(updates, LINEAR)
        mapped = self._sizes_of(updates, MAPPED)
        # Of a map, some features are hardly ever above zero: they count as a whole, without the
        # response, which may be of any size.
        width = self.settings.method_settings.linked.random_features
        whole = {name: own[:width].square().mean()[None].sqrt() for name, own in mapped.items()}
        columns = {name: (*own, *("",) * self.form.responses) for name, own in keys.items()}
        checks = [(sums, columns), (whole, dict.fromkeys(whole, ("map",)))]
        for prefix in (LINEAR, MAPPED):
            along = self._sizes_along(updates, prefix)
            names = {name: tuple(map(str, range(len(own)))) for name, own in along.items()}
            checks.append((along, names))
        for sized, known in checks:
            for name, why in _out_of_proportion(sized, known, factor).items():
                found[name] = f"sums of silo {name!r} {why}"
        for update in updates:
            if self._counts_too_much(update):
                found[update.client] = (
                    f"update of silo {update.client!r} counts more unlike features than it has; "
                    "expected shares of its own."
                )
            scores = [e.value for n, e in update.entries.items() if n in SCORES]
            if any(bool(((v > 0) | (v < WORST)).any()) for v in scores):
                found[update.client] = (
                    f"update of silo {update.client!r} has likelihoods that are none; expected "
                    f"logarithms from {WORST:g} to 0."
                )
        return found

    def _counts_too_much(self, update: Update) -> bool:
        """Return whether shares are not in [0, 1], or are of more features than the silo has."""
        if UNLIKE not in update.entries:
            return False
        entry, features = update.entries[UNLIKE], len(self._keys(update.client))
        is_share = bool(((entry.value >= 0) & (entry.value <= 1)).all())
        return not is_share or not 0 < entry.weight <= features

    def _sizes_of(self, updates: Sequence[Update], prefix: str) -> dict[str, Tensor]:
        named = {u.client: {n: e.value for n, e in u.entries.items()} for u in updates}
        return {
            client: _sizes(self.form.unpacked(own, prefix))
            for client, own in named.items()
            if f"{prefix}count" in own
        }

    def _sizes_along(self, updates: Sequence[Update], prefix: str) -> dict[str, Tensor]:
        """Root mean square along each of the directions; NaN where it is none."""
        found: dict[str, Tensor] = {}
        for update in updates:
            if f"{prefix}core" in update.entries:
                core = update.entries[f"{prefix}core"].value.diagonal()
                rows = update.entries[f"{prefix}behind"].value.amax()
                found[update.client] = (core / rows).sqrt()
        return found

    def forget(self) -> None:
        """Remove what was kept for a failure that did not come."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: str, suffix: str) -> Path:
        return self.folder / f"{digest(name.encode())[:16]}.{suffix}"

    def _keys(self, name: str) -> tuple[str, ...]:
        """Keys of all features of a silo."""
        path = self._file(name, "json")
        keys = read_object(path).get("keys")
        if not isinstance(keys, list) or not are_keys(keys):
            raise damaged(path, "the keys are none")
        return tuple(keys)

    def _load(self, name: str) -> tuple[tuple[str, ...], dict[str, Tensor]]:
        """Sums of a silo, and the keys that they are of."""
        path = self._file(name, "safetensors")
        try:
            with safe_open(path, "pt") as file:
                keys = tuple(parse_json(file.metadata()["keys"]))
                return keys, {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error

    def union(self, names: Iterable[str]) -> list[str]:
        """Keys that enough silos have."""
        held = Counter(key for name in names for key in self._keys(name))
        return sorted(key for key, count in held.items() if count >= self.settings.min_holders)


def _sizes(sums: Moments) -> Tensor:
    """Root mean square of each feature at one silo; NaN where sums cannot be those of rows."""
    pairs = sums.dof.diagonal()
    variance = sums.scatter.diagonal() / pairs.clamp_min(1)
    sound = (sums.count >= 0).all() & (pairs >= 0).all() & (variance >= 0).all()
    size = (sums.mean.square() + variance).sqrt()
    return size if bool(sound) else torch.full_like(size, float("nan"))


def _out_of_proportion(
    sized: Mapping[str, Tensor], keys: Mapping[str, Sequence[str]], factor: float
) -> dict[str, str]:
    """Reasons by silo why sums cannot be counted; two that disagree are both left out."""
    found = {name: "are of no rows" for name, own in sized.items() if not own.isfinite().all()}
    sound = {name: own.tolist() for name, own in sized.items() if name not in found}
    of_key: dict[str, list[float]] = {}
    for name, own in sound.items():
        for key, size in zip(keys[name], own, strict=True):
            of_key.setdefault(key, []).append(size)
    usual = {key: median_low(own) for key, own in of_key.items() if len(own) > 1}
    least = 0.01 * median_low(usual.values()) if usual else 0.0
    for name, own in sound.items():
        ratios = []
        for key, size in zip(keys[name], own, strict=True):
            if key in usual and max(usual[key], least) > 0:
                pair = len(of_key[key]) == 2
                ratios.append((max(of_key[key]) if pair else size) / max(usual[key], least))
        root = fmean(ratio**2 for ratio in ratios) ** 0.5 if ratios else 0.0
        if root > factor:
            found[name] = (
                f"are {root:.3g} times as large as others' of the same columns; expected "
                f"{factor:g} times at most. Use the same units everywhere."
            )
    return found
