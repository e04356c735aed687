"""One run as it lies in a silo's folder: settings, encoder, rows, and what the silo has learnt.

RUN/
  run.json            settings, columns, labels and the fitted encoder
  rows.safetensors    encoded rows, split once: what is held out stays so while the file grows
  trained.digests     by which training rows are known again in any file
  00007.safetensors   private parameters after round 7, and the shared part they were trained on
  links.json          which features others have too, and how many do, where columns are linked
  kept.safetensors    sums that too few other silos have as well, which the silo did not tell
  tags.json           keys to the tags of totals (flic.flower.secure.tags)
  sum.json sum.safetensors   the secure sum that is under way (flic.flower.secure.silo_sum)
  answers.json        which requests were answered (flic.flower.answers)

The last two rounds are kept, so that a request that is repeated gets the same answer.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from flic.data.client_data import ClientData, Split
from flic.data.schema import FeatureSchema
from flic.errors import Damaged, FederationError
from flic.files import read_bytes, read_json, write_atomically, write_json
from flic.flower.answers import Answers
from flic.flower.federation_settings import FederationSettings, federation_settings
from flic.flower.pooling import KEY_BYTES, LAST, feature_keys, round_of
from flic.flower.secure.tags import TagKey
from flic.flower.silo_engine import SiloEngine
from flic.flower.sums_form import SPACE
from flic.methods.linked.agreement import KEPT as KEPT_SUMS
from flic.methods.linked.hiding import rare_indicators
from flic.methods.linked.linked_client import LinkedClient
from flic.methods.protocol import Exported, ServerState
from flic.settings import damaged
from flic.shapes import Named, stripped, unlike_forms
from flic.silos.candidates import FLIC
from flic.silos.encoding import (
    EncodedSilo,
    in_own_units,
    in_shared_units,
    linked_features,
    linked_names,
)
from flic.silos.explanations import sentences
from flic.silos.fitted import FittedClient
from flic.silos.model import Saved
from flic.silos.models import (
    LinkedModel,
    NetworkModel,
    misfit,
)
from flic.silos.trained_rows import FILE as TRAINED
from flic.silos.trained_rows import Trained, digests_of, packed, unpacked
from flic.tables import Column, Declared, Labelling, SiloTable
from flic.tables.encoder import TableEncoder

TAG_KEYS = "tags.json"
FACTS, ROWS, LINKS, KEPT = "run.json", "rows.safetensors", "links.json", "kept.safetensors"


class SiloRun:
    """One run of a silo."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = federation_settings(facts["settings"], source=str(folder / FACTS))
        self.name: str = facts["name"]
        self.columns = tuple(Column(**column) for column in facts["columns"])
        self.declared = Declared.model_validate(facts["declared"])
        self.labelling = Labelling.model_validate(facts["labelling"])
        self.encoder = TableEncoder.model_validate(facts["encoder"])
        self.features: tuple[str, ...] = tuple(facts["features"])

    @classmethod
    def create(
        cls,
        folder: Path,
        table: SiloTable,
        silo: EncodedSilo,
        settings: FederationSettings,
        *,
        least: int,
    ) -> None:
        """Write the rows, and then the facts, whose presence says that all is there."""
        assert table.labelling is not None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        client = rows_of(silo, settings, least=least)
        train, test = client.train, client.test
        rows = {"train.x": train.x, "train.y": train.y, "test.x": test.x, "test.y": test.y}
        facts = {
            "settings": settings.model_dump(mode="json"),
            "name": table.name,
            "columns": [asdict(column) for column in table.columns],
            "declared": table.declared.model_dump(mode="json"),
            "labelling": table.labelling.model_dump(mode="json"),
            "encoder": silo.encoder.model_dump(mode="json"),
            "features": list(client.schema.features),
        }
        write_atomically(folder / TRAINED, packed(digests_of(silo.data.train)))
        write_atomically(folder / ROWS, _packed(rows))
        write_json(folder / FACTS, facts)

    @classmethod
    def open(cls, folder: Path) -> "SiloRun":
        """The run of a folder."""
        try:
            return cls(folder, read_json(folder / FACTS))
        except (ValueError, KeyError, TypeError, OSError, ValidationError) as error:
            raise _damaged(folder / FACTS, error) from error

    @cached_property
    def client(self) -> ClientData:
        """The silo's rows."""
        try:
            rows = _read_tensors(self.folder / ROWS)
            train, test = (Split(rows[f"{w}.x"], rows[f"{w}.y"]) for w in ("train", "test"))
        except KeyError as error:
            raise _damaged(self.folder / ROWS, error) from error
        is_linked = self.settings.sends_sums
        sources = self.encoder.source_numbers
        schema = FeatureSchema(SPACE if is_linked else self.name, self.features, sources=sources)
        nothing = test.take(torch.zeros(len(test), dtype=torch.bool))
        return ClientData(self.name, schema, train, nothing, test)

    @property
    def linked_names(self) -> list[str]:
        """Names under which the features are shared, as they are before they become keys."""
        return linked_names(self.encoder, self.declared, self.name)

    @property
    def trained(self) -> Trained | None:
        """Digests of the training rows; None of a run that an older version began."""
        path = self.folder / TRAINED
        if not path.exists():
            return None
        try:
            return unpacked(read_bytes(path))
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error

    @property
    def answers(self) -> Answers:
        """Requests that were answered."""
        return Answers(self.folder, self.name)

    @property
    def rounds(self) -> list[int]:
        """Rounds after which the silo's parameters are kept."""
        stems = (path.stem for path in self.folder.glob("[0-9]*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    @property
    def changed(self) -> float:
        """The time of its last training."""
        return max((_state(self.folder, t).stat().st_mtime for t in self.rounds), default=0.0)

    def round_before(self, round: int) -> int | None:
        """The round whose parameters a visit of `round` starts from; None before any.

        A coordinator that was restored from an old copy asks for rounds long done; what the silo
        has learnt since is then the best it has.
        """
        older = [t for t in self.rounds if t < round]
        return max(older) if older else min(self.rounds, default=None)

    def save(self, round: int, private: Named, shared: Named) -> None:
        """Keep the parameters after a round."""
        tensors = self._network(private, shared).save().tensors
        write_atomically(_state(self.folder, round), _packed(tensors))

    def save_linked(self, known: LinkedClient, holders: Sequence[int]) -> None:
        """Keep the model of linked columns, in the silo's own units, and what came of them."""
        silo = EncodedSilo((), self.declared, self.encoder, self.client, self.client)
        names = linked_features(silo)[0]
        with_others = {n: h - 1 for n, h in zip(names, holders, strict=True) if h > 1}
        told = {
            "holders": with_others,
            "notes": sentences({self.name: self.encoder}, {self.name: known}),
        }
        write_json(self.folder / LINKS, told)
        own = in_own_units(Exported("linked", known.model()), silo)
        write_atomically(_state(self.folder, LAST), _packed(own.tensors))

    @property
    def links(self) -> dict[str, int]:
        """Features that other silos have too, and how many do."""
        return self._links.get("holders", {})

    @property
    def notes(self) -> list[str]:
        """Sentences on what came of linked columns."""
        return self._links.get("notes", [])

    @property
    def _links(self) -> dict[str, Any]:
        path = self.folder / LINKS
        try:
            return dict(read_json(path)) if path.exists() else {}
        except (ValueError, TypeError, OSError) as error:
            raise _damaged(path, error) from error

    def private(self, round: int, silo: SiloEngine) -> Named:
        """Private parameters after a round, which must be of the silo's own network."""
        tensors = _read_tensors(_state(self.folder, round))
        private, shared = (stripped(part, tensors) for part in ("private.", "shared."))
        wrong = unlike_forms(silo.new(), private) + unlike_forms(silo.expected_shared, shared)
        if wrong:
            raise _damaged(_state(self.folder, round), misfit(", ".join(wrong)))
        return private

    def _load(self, round: int) -> NetworkModel:
        """The network after a round."""
        saved = self._network({}, {}).save()
        found = Saved(saved.kind, saved.facts, _read_tensors(_state(self.folder, round)))
        try:
            return NetworkModel.load(found, self.settings.common_task)
        except Damaged as error:
            raise _damaged(_state(self.folder, round), error) from error

    def _load_linked(self) -> LinkedModel:
        """The model of linked columns, after the last round."""
        facts = {"classes": list(self.client.classes)}
        found = Saved(LinkedModel.kind, facts, _read_tensors(_state(self.folder, LAST)))
        try:
            return LinkedModel.load(found, self.settings.common_task)
        except (Damaged, KeyError) as error:
            raise _damaged(_state(self.folder, LAST), error) from error

    def keep_tag_key(self, round: int, key: TagKey) -> None:
        """Remember the key to the tags of a round's totals."""
        known = {str(own): known.model_dump() for own, known in self.tag_keys.items()}
        write_json(self.folder / TAG_KEYS, {**known, str(round): key.model_dump()})

    @property
    def tag_keys(self) -> dict[int, TagKey]:
        """Keys to the tags of totals, by round."""
        path = self.folder / TAG_KEYS
        try:
            found = read_json(path) if path.exists() else {}
            return {int(round): TagKey.model_validate(own) for round, own in found.items()}
        except (ValueError, AttributeError, OSError) as error:
            raise _damaged(path, error) from error

    def keep_to_itself(self, sums: Named) -> None:
        """Remember sums that the silo did not tell, beside those of other rounds."""
        write_atomically(self.folder / KEPT, _packed({**self._kept, **sums}))

    def with_kept(self, server: ServerState) -> ServerState:
        """Pooled sums of earlier rounds with those that the silo did not tell, as if it had."""
        shared, told = server.shared, server.round
        kept = {n: v for n, v in self._kept.items() if n in shared and round_of(n) < told}
        wrong = [n for n in kept if kept[n].shape != shared[n].shape]
        if wrong:
            raise FederationError(
                f"silo {self.name!r} is sent {wrong[0]!r} of other columns than it told sums of; "
                "expected the same. Begin a new run."
            )
        whole = {n: shared[n] + v for n, v in kept.items()}
        beside = {KEPT_SUMS + n: v for n, v in kept.items()}
        return replace(server, shared={**shared, **whole, **beside})

    @property
    def _kept(self) -> Named:
        path = self.folder / KEPT
        return _read_tensors(path) if path.exists() else {}

    def keep(self, rounds: set[int]) -> None:
        """Remove the parameters of all other rounds."""
        for round in set(self.rounds) - rounds:
            with suppress(FileNotFoundError):
                _state(self.folder, round).unlink()

    def model(self) -> FittedClient:
        """The newest model, with all it takes to read raw rows."""
        is_linked = self.settings.sends_sums
        return FittedClient(
            name=self.name,
            columns=self.columns,
            declared=self.declared,
            labelling=self.labelling,
            encoder=self.encoder,
            candidate=LinkedModel.kind if is_linked else FLIC.name,
            temperature=None,
            model=self._load_linked() if is_linked else self._load(max(self.rounds)),
            task=self.settings.common_task,
            labels=self.settings.classes,
            trained=self.trained,
        )

    def _network(self, private: Named, shared: Named) -> NetworkModel:
        client = self.client
        return NetworkModel(
            method=self.settings.method,
            settings=self.settings.method_settings,
            task=self.settings.common_task,
            schema=client.schema,
            classes=client.classes,
            inputs=tuple(range(client.schema.dim)),
            private=private,
            shared=shared,
        )


def rows_of(silo: EncodedSilo, settings: FederationSettings, *, least: int) -> ClientData:
    """The silo's rows as the method reads them, under the names that its features travel by.

    The key of a level that fewer than `least` rows have is one that nobody can guess.
    """
    if not settings.sends_sums:
        return silo.data
    client = in_shared_units(silo, SPACE, least=least)
    keys = feature_keys(settings.salt, linked_features(silo)[0])
    rare = rare_indicators(client.train.x, least=least).tolist()
    hidden = (
        secrets.token_hex(KEY_BYTES // 2) if r else k for k, r in zip(keys, rare, strict=True)
    )
    return replace(client, schema=replace(client.schema, features=tuple(hidden)))


def _state(folder: Path, round: int) -> Path:
    return folder / f"{round:05d}.safetensors"


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(read_bytes(path))
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _packed(tensors: Named) -> bytes:
    return save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})


def _damaged(path: Path, error: Exception) -> Damaged:
    remedy = (
        "Restore it from a copy, or remove it: the silo then goes on from what is left, or from "
        "the beginning."
    )
    return damaged(path, error, remedy=remedy)
