"""federation.toml: the clients, the files of their rows, and the task.

docs/federation-file.md explains every key. `loading` checks the rows themselves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError, field_validator

from flic.data.task import TaskName
from flic.errors import ConfigError
from flic.settings import Section, explain, read_toml, strictly
from flic.tables.databases import MAX_SECONDS
from flic.tables.declared import Declared, Raw
from flic.tables.labels import LabelNames

S = TypeVar("S", bound=Section)


class Client(Declared):
    """One client with a file of its own."""

    name: str = Field(min_length=1)
    data: str  # relative to the federation file
    query: str | None = None
    encoding: str | None = None
    label: str | None = None
    labels: LabelNames | None = None


class FederationFile(Declared):
    """A federation: clients with files of their own, or one file with a site column."""

    task: TaskName = "classification"
    label: str | None = None
    labels: LabelNames | None = None
    range: tuple[float, float] | None = None  # of the responses of a regression
    data: str | None = None
    query: str | None = None
    encoding: str = "utf-8"
    site: str | None = None
    sites: tuple[Raw, ...] | None = None
    empty_share: float = Field(default=0.5, ge=0, le=1)
    max_file_mb: float = Field(default=1024.0, gt=0, le=1e9)
    max_query_s: float = Field(default=MAX_SECONDS, gt=0, le=1e6)
    clients: tuple[Client, ...] = ()
    fit: dict[str, Any] = Field(default_factory=dict)  # validated by the fit

    @property
    def max_bytes(self) -> int:
        """Size of the largest file that is read."""
        return int(self.max_file_mb * 2**20)

    @field_validator("sites", mode="plain")
    @classmethod
    def _values(cls, sites: Any) -> tuple[Raw, ...]:
        if not isinstance(sites, list | tuple) or not all(isinstance(s, Raw) for s in sites):
            raise ValueError("expected a list of values of the site column")
        if not sites:
            raise ValueError("expected at least one value; leave it out to take all")
        return tuple(sites)


def unusable_name(name: str) -> str | None:
    """Problem with a client's name, if any; a folder is named after it."""
    if name and not name.startswith(".") and "/" not in name and name.isprintable():
        return None
    return (
        f"client name '{name}' cannot name a folder; expected letters, no leading dot, no slash "
        "and no control characters. Choose another."
    )


def read_federation(path: Path) -> FederationFile:
    """Read the description of a federation.

    Raises:
        ConfigError: listing every key that is unknown or of the wrong type.
    """
    file, problems = describe(read_toml(path))
    if problems or file is None:
        raise ConfigError("\n  ".join([f"{path}:", *problems]))
    return file


def describe(raw: Mapping[str, Any]) -> tuple[FederationFile | None, list[str]]:
    """Description that the settings give, and all problems with them.

    Unknown keys are skipped, so that the rows can still be checked. Settings that cannot be
    understood give no description.
    """
    rest = {key: value for key, value in raw.items() if key != "clients"}
    file, problems = _validated(FederationFile, rest)
    entries = raw.get("clients", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None, [*problems, "clients: expected [[clients]], one such table per client"]
    clients: list[Client] = []
    for number, entry in enumerate(entries, start=1):
        client, own = _validated(Client, entry)
        name = entry.get("name")
        who = f"client '{name}'" if isinstance(name, str) else f"client number {number}"
        problems += [f"{who}: {problem}" for problem in own]
        if client is not None:
            problems += [f"{who}: {problem}" for problem in client.contradictions()]
            clients.append(client)
    if file is None or len(clients) < len(entries):
        return None, problems
    file = file.model_copy(update={"clients": tuple(clients)})
    unclear = _unclear_sources(file)
    problems += [*unclear, *_unclear_task(file), *file.contradictions()]
    return None if unclear else file, problems


def refuse_unclear(file: FederationFile) -> None:
    """Refuse settings that contradict each other."""
    problems = [*_unclear_sources(file), *_unclear_task(file)]
    problems += [problem for part in (file, *file.clients) for problem in part.contradictions()]
    if problems:
        raise ConfigError("\n  ".join(["the federation:", *problems]))


def _validated(model: type[S], raw: Mapping[str, Any]) -> tuple[S | None, list[str]]:
    try:
        return strictly(model, raw), []
    except ValidationError as error:
        found = error.errors()
    problems = [explain(problem, model) for problem in found]
    if any(problem["type"] != "extra_forbidden" for problem in found):
        return None, problems
    unknown = {problem["loc"][0] for problem in found}
    known = {key: value for key, value in raw.items() if key not in unknown}
    return _validated(model, known)[0], problems


def _unclear_sources(file: FederationFile) -> list[str]:
    """Problems that leave it open where the rows are."""
    if file.clients:
        only_without = ("data", "query", "site", "sites")
        extra = [key for key in only_without if getattr(file, key) is not None]
        return [
            f"{key}: got it beside [[clients]]; expected it only for one file that holds all. "
            "Remove it, or the clients"
            for key in extra
        ]
    if file.data is None:
        return [
            "clients: missing; expected [[clients]] with a name and data each, or `data` and "
            "`site` for one file that holds all. Add them"
        ]
    if file.site is None:
        return ["site: missing; expected the column of `data` with each row's client. Name it"]
    return []


def _unclear_task(file: FederationFile) -> list[str]:
    """Problems that leave the task open."""
    if file.task == "classification":
        if file.range is None:
            return []
        return [
            "range: got one; expected none, since the task is classification. Remove it, or write "
            'task = "regression"'
        ]
    problems: list[str] = []
    if file.range is None:
        problems.append(
            "range: missing; expected [low, high], between which the responses of a regression "
            "can lie, from knowledge of the domain. Add it"
        )
    elif not file.range[0] < file.range[1]:
        problems.append(f"range: got {list(file.range)}; expected the lower number first")
    if any(part.labels is not None for part in (file, *file.clients)):
        problems.append(
            "labels: got some; expected none, since the task is regression. Remove them"
        )
    return problems
