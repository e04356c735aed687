"""A silo's own folder: where its rows lie, what it has learnt, and the work of one visit.

SILO/
  silo.toml             name, data file and label keys; a person may edit it
  log.jsonl             a line per visit: what was done, and why something was refused
  runs/RUN/
    run.json            settings, columns, labels and the fitted encoder
    rows.safetensors    encoded rows, split once: what is held out stays so while the file grows
    00007.safetensors   private parameters after round 7, and the shared part they were trained on

The last two rounds are kept, so that a request that is repeated gets the same answer.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from flic.algorithms import ServerState, Update, build_algorithm
from flic.alignment.anchors import factor_name, mean_name
from flic.alignment.meta_classes import MAP
from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.schema import FeatureSchema
from flic.data.tables import Client, Column, Declared, Labelling, SiloTable, load_client
from flic.data.tables.check import toml_key
from flic.data.tables.encoder import TableEncoder
from flic.data.task import Regression
from flic.errors import ConfigError, DamagedModel, FederationError, RunFolderError
from flic.federation.checkpoint import write_atomically
from flic.federation.roster import Roster
from flic.federation.work import Stage, Task, Workshop
from flic.flower.log import note
from flic.flower.settings import (
    NUMBER_BYTES,
    FederationSettings,
    federation_settings,
    validated,
)
from flic.report.run_folder import alone_in
from flic.settings import merge, read_toml
from flic.shapes import Named
from flic.silos.candidates import FlicNetwork
from flic.silos.encoding import EncodedSilo, encode
from flic.silos.fitted import FittedClient
from flic.silos.models import NetworkModel, Saved
from flic.silos.splits import cross_validation

FILE, FACTS, ROWS = "silo.toml", "run.json", "rows.safetensors"

#: A visit of a few steps, which sends what a whole one sends.
_SHORT = {"training": {"local": "2 steps", "shared": "1 steps"}, "pretraining": {"epochs": 0}}


class SiloFile(Client):
    """silo.toml: where a silo's rows lie, how many are held out, what it does not tell."""

    test_share: float = Field(default=0.25, gt=0, le=0.5)
    min_rows_per_class: int = Field(default=5, ge=1)  # the federation's counts where it is larger


@dataclass(frozen=True)
class Trained:
    """What one visit gives: the update that leaves, and the loss terms."""

    update: Update
    losses: Mapping[str, float]


@dataclass(frozen=True)
class Leaving:
    """One thing that leaves a silo."""

    what: str
    shape: tuple[int, ...]
    num_bytes: int
    when: Literal["round", "evaluation"]


class SiloFolder:
    """One silo: it trains, measures and predicts on its own rows."""

    def __init__(self, folder: Path, file: SiloFile) -> None:
        self.folder = folder
        self.file = file

    @classmethod
    def create(cls, folder: Path, client: Client, *, test_share: float = 0.25) -> Self:
        """A new folder for a client whose data file is named from there."""
        if (folder / FILE).exists():
            raise ConfigError(
                f"{folder / FILE} is there already; expected none, since it would be overwritten. "
                "Edit it, move it away, or choose another folder."
            )
        stated = {**_stated(client), "test_share": test_share}
        file = validated(SiloFile, stated, source=FILE)
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{key} = {_toml(value)}\n" for key, value in stated.items())
        write_atomically(folder / FILE, text.encode())
        return cls(folder, file)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The silo of a folder."""
        file = validated(SiloFile, read_toml(folder / FILE), source=str(folder / FILE))
        return cls(folder, file)

    @property
    def name(self) -> str:
        """Name of the silo, from which its random numbers come too."""
        return self.file.name

    def read(self, settings: FederationSettings) -> tuple[SiloTable, list[str]]:
        """The silo's table and notices about it.

        Raises:
            DataError: listing every problem of the rows.
        """
        client = Client(**_stated(self.file))
        return load_client(client, self.folder, task=settings.question, labels=settings.classes)

    def announce(self, settings: FederationSettings) -> list[Leaving]:
        """Exactly what will leave in every round and in every evaluation, found by a short visit.

        Beside it, every answer carries the number of its round.
        """
        short = settings.model_copy(update={"network": merge(settings.network, _SHORT)})
        short = federation_settings(short.model_dump(mode="json"), source="announcement")
        place = _Place(self._encode(self.read(short)[0], short).data, short)
        server = ServerState(1, place.workshop.algorithm.init_server().shared)
        state = place.prepared(server)
        trained, private = place.train("update", server, state, self._least_rows(short))
        return [
            *(_tensor(name, e.value.shape, e.value) for name, e in trained.update.entries.items()),
            *(_number(f"weight of {name}", "round") for name in trained.update.entries),
            *(_number(f"loss {term}", "round") for term in trained.losses),
            *(_number(name, "evaluation") for name in place.figures(server, private)),
        ]

    def train(
        self,
        server: ServerState,
        settings: FederationSettings,
        stage: Stage = "update",
        *,
        run: str,
    ) -> Trained:
        """One visit from the silo's own state before the round; asked again, the same again."""
        with alone_in(self.folder):
            own = self._run(run, settings)
            begun = own.round_before(server.round)
            if begun is None:
                begun = server.round - 1
                own.save(begun, own.place.prepared(server), server.shared)
            least = self._least_rows(settings)
            trained, private = own.place.train(stage, server, own.load(begun).private, least)
            own.save(server.round, private, server.shared)
            own.keep({begun, server.round})
        return trained

    def evaluate(
        self, server: ServerState, settings: FederationSettings, *, run: str
    ) -> dict[str, float]:
        """Figures of the silo's own held-out rows: sums, and nothing of single rows."""
        own = self._run(run, settings)
        begun = own.round_before(server.round + 1)
        if begun is None:
            raise FederationError(
                f"silo {self.name!r} is asked for figures and has not trained yet; expected a "
                "round first. It will have figures after its first one."
            )
        return own.place.figures(server, own.load(begun).private)

    def model(self) -> FittedClient:
        """The silo's newest model, which reads and predicts raw rows."""
        newest = max(self._runs(), key=lambda run: run.changed, default=None)
        if newest is None or not newest.rounds:
            raise RunFolderError(
                f"silo {self.name!r} has no model yet; expected a finished round in {self.folder}. "
                "Take part in a federation first."
            )
        return newest.model()

    def status(self) -> dict[str, Any]:
        """Name, and the rounds that the silo holds, by run."""
        rounds = {run.folder.name: max(run.rounds, default=0) for run in self._runs()}
        return {"name": self.name, "rounds": rounds}

    def note(self, event: str, **facts: Any) -> None:
        """Add a line to the silo's own log."""
        note(self.folder, event, **facts)

    def _least_rows(self, settings: FederationSettings) -> int:
        # The silo has the last word on what its rows may show.
        return max(settings.min_rows_per_class, self.file.min_rows_per_class)

    def _runs(self) -> list["_Run"]:
        found = (path.parent for path in sorted((self.folder / "runs").glob(f"*/{FACTS}")))
        return [_Run.open(folder) for folder in found]

    def _run(self, run: str, settings: FederationSettings) -> "_Run":
        """The folder of a run, made at the first visit."""
        folder = self.folder / "runs" / run
        if not all((folder / file).exists() for file in (FACTS, ROWS)):
            table, _ = self.read(settings)
            _Run.create(folder, table, self._encode(table, settings), settings)
        found = _Run.open(folder)
        if found.settings.agreement != settings.agreement:
            raise FederationError(
                f"silo {self.name!r} is asked to go on with run {run} under another question, "
                "network or seed; expected those it began with. Begin a new run."
            )
        return found

    def _encode(self, table: SiloTable, settings: FederationSettings) -> EncodedSilo:
        """Training and held-out rows, split by the federation's seed."""
        rows = held_out(table, self.file.test_share, seed=settings.seed)
        return encode([table], settings.question, {table.name: rows}).silos[0]


def held_out(table: SiloTable, share: float, *, seed: int) -> tuple[Any, Any]:
    """Positions of a silo's training rows and of the rows it is measured on."""
    split = next(cross_validation([table], round(1 / share), seed=seed, path=("federation",)))
    return split[table.name]


class _Place:
    """A roster of one, and what is needed to work for it."""

    def __init__(self, client: ClientData, settings: FederationSettings) -> None:
        self.client = client
        own = settings.method_settings
        data = FederatedData("silo", settings.question, (client,))
        roster = Roster(data, own.embedding, dtype=torch.float32)
        seed = settings.seed
        algorithm = build_algorithm(settings.method, own, roster.population, seed=seed)
        self.workshop = Workshop(algorithm, roster, seed)

    def prepared(self, server: ServerState) -> Named:
        """Private parameters before a first visit: φ_i fitted to the anchors as they are now."""
        roster, algorithm = self.workshop.roster, self.workshop.algorithm
        name = self.client.name
        if not algorithm.preparations:
            return algorithm.init_client(self.client, roster.architecture(name))
        task = Task("prepare", ServerState(0, server.shared), (name,), [None])
        return self.workshop.do(task).states[name]

    def train(
        self, stage: Stage, server: ServerState, state: Named, least_rows: int
    ) -> tuple[Trained, Named]:
        """What leaves, and the private parameters that stay."""
        name = self.client.name
        answer = self.workshop.do(Task(stage, server, (name,), [state]))
        update = answer.updates[0] if answer.updates else Update(name, {})
        few = _anchors_of_few(self.client, server, self.workshop, least_rows)
        entries = {name: e for name, e in update.entries.items() if name not in few}
        return Trained(Update(name, entries), answer.losses[name]), answer.states[name]

    def figures(self, server: ServerState, state: Named) -> dict[str, float]:
        name = self.client.name
        answer = self.workshop.do(Task("evaluate", server, (name,), [state]))
        figures = answer.scores[name].figures()
        return {name: float(v) for name, v in figures.items() if name.startswith("test_")}


def _anchors_of_few(
    client: ClientData, server: ServerState, workshop: Workshop, least: int
) -> set[str]:
    """Names of the anchors for which the silo has rows, but too few to hide one among them."""
    rows: Counter[int] = Counter()
    meta_of = server.shared.get(MAP)
    for c, count in client.class_counts.items():
        rows[c if meta_of is None else int(meta_of[c])] += count
    if isinstance(workshop.roster.data.task, Regression):
        rows = Counter(dict.fromkeys((0, 1), len(client.train)))  # all rows pull at both ends
    few = [anchor for anchor, count in rows.items() if count < least]
    return {name(anchor) for anchor in few for name in (mean_name, factor_name)}


class _Run:
    """One run as it lies in a silo's folder."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = federation_settings(facts["settings"], source=str(folder / FACTS))
        self.name: str = facts["name"]
        self.columns = tuple(Column(**column) for column in facts["columns"])
        self.declared = Declared.model_validate(facts["declared"])
        self.labelling = Labelling.model_validate(facts["labelling"])
        self.encoder = TableEncoder.model_validate(facts["encoder"])

    @classmethod
    def create(
        cls, folder: Path, table: SiloTable, silo: EncodedSilo, settings: FederationSettings
    ) -> None:
        """Write the rows, and then the facts, whose presence says that all is there."""
        assert table.labelling is not None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        train, test = silo.data.train, silo.data.test
        rows = {"train.x": train.x, "train.y": train.y, "test.x": test.x, "test.y": test.y}
        facts = {
            "settings": settings.model_dump(mode="json"),
            "name": table.name,
            "columns": [asdict(column) for column in table.columns],
            "declared": table.declared.model_dump(mode="json"),
            "labelling": table.labelling.model_dump(mode="json"),
            "encoder": silo.encoder.model_dump(mode="json"),
        }
        write_atomically(folder / ROWS, _packed(rows))
        write_atomically(folder / FACTS, json.dumps(facts, indent=1).encode())

    @classmethod
    def open(cls, folder: Path) -> "_Run":
        try:
            return cls(folder, json.loads((folder / FACTS).read_bytes()))
        except (ValueError, KeyError, TypeError, OSError, ValidationError) as error:
            raise _damaged(folder / FACTS, error) from error

    @cached_property
    def place(self) -> _Place:
        """The silo's rows, ready for work."""
        try:
            rows = load_tensors((self.folder / ROWS).read_bytes())
            train, test = (Split(rows[f"{w}.x"], rows[f"{w}.y"]) for w in ("train", "test"))
        except (SafetensorError, KeyError, OSError) as error:
            raise _damaged(self.folder / ROWS, error) from error
        schema = FeatureSchema(self.name, self.encoder.features)
        nothing = test.take(torch.zeros(len(test), dtype=torch.bool))
        return _Place(ClientData(self.name, schema, train, nothing, test), self.settings)

    @property
    def rounds(self) -> list[int]:
        """Rounds after which the silo's parameters are kept."""
        stems = (path.stem for path in self.folder.glob("[0-9]*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    @property
    def changed(self) -> float:
        """When it was last trained."""
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

    def load(self, round: int) -> NetworkModel:
        """The network after a round."""
        path = _state(self.folder, round)
        try:
            saved = self._network({}, {}).save()
            tensors = load_tensors(path.read_bytes())
            return NetworkModel.load(
                Saved(saved.kind, saved.facts, tensors), self.settings.question
            )
        except (SafetensorError, OSError, DamagedModel) as error:
            raise _damaged(path, error) from error

    def keep(self, rounds: set[int]) -> None:
        """Remove the parameters of all other rounds."""
        for round in set(self.rounds) - rounds:
            with suppress(FileNotFoundError):
                _state(self.folder, round).unlink()

    def model(self) -> FittedClient:
        """The newest network, with all it takes to read raw rows."""
        return FittedClient(
            name=self.name,
            columns=self.columns,
            declared=self.declared,
            labelling=self.labelling,
            encoder=self.encoder,
            candidate=FlicNetwork.name,
            temperature=None,
            model=self.load(max(self.rounds)),
            task=self.settings.question,
            labels=self.settings.classes,
        )

    def _network(self, private: Named, shared: Named) -> NetworkModel:
        client = self.place.client
        return NetworkModel(
            method=self.settings.method,
            settings=self.settings.method_settings,
            task=self.settings.question,
            schema=client.schema,
            classes=client.classes,
            inputs=tuple(range(client.schema.dim)),
            private=private,
            shared=shared,
        )


def _state(folder: Path, round: int) -> Path:
    return folder / f"{round:05d}.safetensors"


def _packed(tensors: Named) -> bytes:
    return save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})


def _damaged(path: Path, error: Exception) -> DamagedModel:
    return DamagedModel(
        f"{path} is not what flic wrote ({error}); expected it unchanged. Restore it from a copy, "
        "or remove it: the silo then goes on from what is left, or from the beginning."
    )


def _tensor(name: str, shape: Sequence[int], value: torch.Tensor) -> Leaving:
    return Leaving(name, tuple(shape), value.numel() * value.element_size(), "round")


def _number(what: str, when: Literal["round", "evaluation"]) -> Leaving:
    return Leaving(what, (), NUMBER_BYTES, when)


def _stated(client: Client) -> dict[str, Any]:
    """What was said of a client and its file, and nothing that was not."""
    said = [key for key in Client.model_fields if key in client.model_fields_set]
    return {key: value for key in said if (value := getattr(client, key)) is not None}


def _toml(value: Any) -> str:
    """A value as TOML, whose texts, numbers and lists are those of JSON."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(k)} = {_toml(v)}' for k, v in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
