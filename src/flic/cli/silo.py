"""`flic silo …`: commands for an organisation that takes part in a real federation."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flic.cli.assignments import Classes, Dropped, Missing, missing_values, values_of_classes
from flic.cli.check import Format
from flic.cli.coordinator import Foreground, need_flower, split_names
from flic.cli.leaving import show_leaving
from flic.cli.predict import Out, measure, write_predictions
from flic.cli.screen import notice, say, table
from flic.errors import ConfigError
from flic.files import read_json
from flic.notation import counted
from flic.settings import in_words

if TYPE_CHECKING:
    from flic.flower.federation_settings import FederationSettings
    from flic.flower.ops.membership import Membership
    from flic.tables import Client

app = typer.Typer(help="Take part in a federation with your own table.", no_args_is_help=True)

FILE = "silo.toml"

Scatter = Literal["off", "diagonal", "directions", "projected", "full"]

SiloPath = Annotated[
    Path,
    typer.Argument(metavar="SILO.toml", help="The silo's settings, or the folder they are in."),
]
OwnName = Annotated[
    str | None,
    typer.Option(help="Your name in the federation; the folder's name if not given."),
]
OwnScatter = Annotated[
    Scatter | None,
    typer.Option(
        help="How much to send about how linked columns vary: off, nothing; diagonal, each "
        "column by itself; directions, also along what tells classes apart; projected, random "
        "mixtures; full, every pair. Never more than was agreed (the default)."
    ),
]
FederationFile = Annotated[
    Path | None,
    typer.Option(metavar="federation.json", help="The federation's settings, if you have them."),
]


def _names(help: str) -> Any:
    """An option with several names."""
    return typer.Option(metavar="A,B,…", help=help)


Categories = Annotated[
    str | None, _names("Columns to read as categories, even if they hold numbers.")
]


def _folder(path: Path) -> Path:
    """The silo's folder, from its own path or that of its settings."""
    if path.suffix == ".toml" and path.name != FILE:
        raise ConfigError(
            f"{path}: expected a file named {FILE} in a folder of its own; such as "
            f"{path.stem}/{FILE}."
        )
    return path.parent if path.name == FILE else path


def _open(path: Path) -> "Membership":
    need_flower("silo")
    from flic.flower.ops.membership import Membership
    from flic.flower.silo_folder import SiloFolder

    return Membership(SiloFolder.open(_folder(path)))


@app.command()
def init(
    path: SiloPath,
    data: Annotated[Path, typer.Option(metavar="FILE", help="Your table.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Its label column.")],
    name: OwnName = None,
    classes: Annotated[str | None, _names("The federation's classes, in its order.")] = None,
    meaning: Classes = None,
    missing: Missing = None,
    drop: Dropped = None,
    ids: Annotated[str | None, _names("Columns that identify rows; left out.")] = None,
    numbers: Annotated[str | None, _names("Columns to read as numbers.")] = None,
    categories: Categories = None,
    dates: Annotated[str | None, _names("Columns to read as dates.")] = None,
    texts: Annotated[str | None, _names("Columns to read as free text.")] = None,
    scatter: OwnScatter = None,
    federation: FederationFile = None,
) -> None:
    """Check your table, make your key, and show what will leave this machine."""
    need_flower("silo init")
    folder = _folder(path)
    kinds = {"ids": ids, "numbers": numbers, "categories": categories, "dates": dates}
    client = _client(
        _usable(folder.resolve().name if name is None else name),
        data=str(data.resolve()),
        label=label,
        labels=values_of_classes(meaning) or None,
        drop=tuple(drop or ()),
        missing=missing_values(missing),
        **{k: split_names(own) for k, own in {**kinds, "texts": texts}.items() if own},
    )
    settings = _settings(client, federation, split_names(classes))
    _check_table(client, folder, settings)
    member = _make_member(folder, client, scatter, settings if federation else None)
    show_leaving(member.silo, settings)
    if federation is None:
        notice(
            "this is for a federation with the usual settings; --federation federation.json shows "
            "it for yours."
        )
    typer.echo(f"send {member.public_key} to the operator, who types:")
    typer.echo(f"  flic coordinator admit DIR {client.name} {member.public_key.name}")


def _usable(name: str) -> str:
    """The name, unless no silo can have it."""
    from flic.tables.federation_file import unusable_name

    if problem := unusable_name(name):
        raise ConfigError(problem)
    return name


def _client(name: str, **declared: Any) -> "Client":
    """The silo's table and what is declared of it, unless that contradicts itself."""
    from flic.tables import Client

    client = Client(name=name, **declared)
    if problems := client.contradictions():
        raise ConfigError(f"{problems[0]}.")
    return client


def _check_table(client: "Client", folder: Path, settings: "FederationSettings") -> None:
    """Read the table, and show notices about it; an error if it cannot be learnt from."""
    from flic.tables import load_client

    _, notices = load_client(client, folder, task=settings.common_task, labels=settings.classes)
    for message in notices:
        notice(message)


def _make_member(
    folder: Path, client: "Client", scatter: Scatter | None, agreed: "FederationSettings | None"
) -> "Membership":
    """Make the silo's folder, which only its owner can read, and the key."""
    from flic.flower.ops.membership import Membership
    from flic.flower.silo_folder import SiloFolder

    near = Path(os.path.relpath(client.data, folder.resolve())).as_posix()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    placed = client.model_copy(update={"data": near})
    member = Membership(SiloFolder.create(folder, placed, scatter=scatter, agreed=agreed))
    member.make_key()
    return member


def _settings(
    client: "Client", federation: Path | None, classes: list[str] | None
) -> "FederationSettings":
    """The federation's settings, or default ones for classes that are named or found."""
    from flic.flower.federation_settings import federation_settings

    if federation is not None:
        try:
            raw: dict[str, Any] = read_json(federation)["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"--federation {federation}: cannot be read ({in_words(error)}); expected the "
                "federation.json of the operator."
            ) from None
        return federation_settings(raw, source=str(federation))
    names = classes or list(client.labels or ()) or _found_classes(client)
    return federation_settings({"classes": names}, source="--classes")


def _found_classes(client: "Client") -> list[str]:
    from flic.tables import read_table
    from flic.tables.labels import label_texts, sort_values

    texts = label_texts(read_table(Path(client.data)), client.label or "", client)
    return sort_values({text for text in texts if text is not None})


@app.command()
def fingerprint(path: SiloPath) -> None:
    """Show the fingerprint of the silo's key, to be compared with what others were sent."""
    member = _open(path)
    typer.echo(f"{member.silo.name} {member.fingerprint()}")


@app.command()
def trust(
    path: SiloPath,
    keys: Annotated[Path, typer.Argument(metavar="LIST", help="The operator's list of keys.")],
    compared: Annotated[
        bool,
        typer.Option("--compared", help="Say that you compared every fingerprint with its silo."),
    ] = False,
) -> None:
    """Trust the keys of other silos in secure sums, once you compared their fingerprints."""
    member = _open(path)
    from flic.flower.keys import fingerprint as fingerprint_of
    from flic.flower.pinned_keys import pinned_peers, read_peers

    lines, known = read_peers(keys), pinned_peers(member.folder)
    rows = [
        [name, fingerprint_of(line), "trusted" if known.get(name) == line else "new"]
        for name, line in lines.items()
    ]
    table(f"Keys in {keys.name}", ["silo", "fingerprint", "is"], rows)
    if not compared:
        notice(
            "nothing is trusted yet. Ask each silo, by telephone or the like and not through the "
            "operator, what flic silo fingerprint shows there. If all are the same, type: flic "
            f"silo trust {path} {keys} --compared"
        )
        return
    member.trust(lines)
    typer.echo(f"{member.silo.name} trusts {counted(len(lines), 'key')}, its own included")


@app.command()
def start(
    path: SiloPath,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the coordinator.")],
    ca: Annotated[
        Path | None, typer.Option(metavar="ca.crt", help="The federation's certificate.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; on this machine only.")
    ] = False,
    foreground: Foreground = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for admission.")] = 90,
) -> None:
    """Start the silo under a supervisor; it keeps running after this command has ended."""
    member = _open(path)
    from flic.flower.ops.membership import ServerAddress

    where = ServerAddress.of(server, ca, insecure=insecure)
    if foreground:
        member.become(where)
    node = member.start(where, seconds=wait)
    typer.echo(f"{member.silo.name} takes part as node {node}; log: {member.service.log}")


@app.command()
def status(path: SiloPath, format: Format = "text") -> None:
    """Show whether the silo runs, its last visit, and its last refusal."""
    found = _open(path).status()
    if format == "json":
        say(json.dumps(found, ensure_ascii=False))
        return
    stands = f"runs and {found['standing']}" if found["running"] else "does not run"
    typer.echo(f"{found['name']} {stands}")
    for run, round in found["rounds"].items():
        what = "parameters of round " + str(round) if round > 0 else "model of linked columns"
        typer.echo(f"run {run}: has its {what}")
    for run, links in found["links"].items():
        told = ", ".join(f"{name} ({count})" for name, count in links.items())
        say(f"run {run}: linked columns, with the number of other silos that have them: {told}")
    for run, notes in found["notes"].items():
        for message in notes:
            say(f"run {run}: {message}")
    if visit := found["last_visit"]:
        when = f" in round {visit['round']}" if visit["round"] > 0 else ""
        typer.echo(f"last visit: {visit['time']}, {visit['event']}{when}")
    if refusal := found["last_refusal"]:
        notice(f"{refusal['time']}: {refusal['message']}")


@app.command()
def predict(
    path: SiloPath,
    data: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Table of new rows: CSV, TSV, Parquet or Feather."),
    ],
    out: Out,
) -> None:
    """Predict new rows with the silo's newest model, on this machine."""
    write_predictions(_open(path).silo.model(), data, out)


@app.command()
def evaluate(
    path: SiloPath,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Rows with known labels.")],
    format: Format = "text",
) -> None:
    """Measure the silo's newest model on labelled rows; rows it was trained on are left out."""
    measure(_open(path).silo.model(), data, format, who="silo")


@app.command()
def leave(path: SiloPath) -> None:
    """Stop taking part; the folder and the model stay yours."""
    member = _open(path)
    ran = member.leave()
    name = member.silo.name
    typer.echo(f"{name} {'has left' if ran else 'did not run'}; {member.folder} stays as it is.")
    typer.echo(
        f"to exclude the silo for good, the operator runs: flic coordinator revoke DIR {name}"
    )
    typer.echo("to come back before that, start it again as you did: flic silo start …")
