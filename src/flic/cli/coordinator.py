"""`flic coordinator …`: commands for the operator of a real federation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.check import Format, need_tables
from flic.cli.overhead import show_masking_costs, show_overhead
from flic.cli.run import Assignments, Quiet
from flic.cli.screen import StepDisplay, complain, facts_of, notice, table
from flic.errors import ConfigError
from flic.notation import counted

if TYPE_CHECKING:
    from flic.engine.journal import Record
    from flic.flower.federation_settings import FederationSettings
    from flic.flower.ops.deployment import Deployment

app = typer.Typer(
    help="Run the coordinator of a federation between machines.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The coordinator's folder.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the silo.")]
Foreground = Annotated[
    bool, typer.Option("--foreground", help="Stay in the foreground, for systemd.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="NAME", help="Name or IP that silos connect to; may be repeated."
    ),
]


def need_flower(command: str) -> None:
    """Refuse a command if flic was installed without Flower, or with another version."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"flic {command} runs on Flower, which is not installed. "
            "Run: pip install 'flic[flower]'"
        ) from None
    from flic.flower.patches import refuse_other_version

    refuse_other_version()
    need_tables(command)


def _open(folder: Path) -> "Deployment":
    need_flower("coordinator")
    from flic.flower.ops.deployment import Deployment

    return Deployment.open(folder)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder.")],
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Names of the classes. For a regression, leave this out and give --set "
            "task=regression --set range=[0,10].",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Method: flic-class (the default), flic-hl, linked, …"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of training.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    host: Hosts = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that silos connect to.")] = 9443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; on this machine only.")
    ] = False,
    secure_sums: Annotated[
        bool | None,
        typer.Option(
            "--secure-sums/--no-secure-sums",
            help="Whether silos mask what they send, so that you see totals alone. By default "
            "linked columns are masked, and networks are not: you can then check each update.",
        ),
    ] = None,
    set_: Assignments = None,
) -> None:
    """Make a coordinator: settings, certificates, and folders that only you can read."""
    need_flower("coordinator init")
    from flic.flower.federation_settings import federation_settings
    from flic.flower.ops.deployment import Address, Deployment
    from flic.settings import assigned, source_of

    named = {"method": method, "rounds": rounds, "seed": seed, "classes": split_names(classes)}
    given = {key: value for key, value in named.items() if value is not None}
    given |= {} if secure_sums is None else {"secure_sums": secure_sums}
    source = source_of("flic coordinator init", set_)
    settings = federation_settings(assigned({}, set_) | given, source=source)
    address = Address(hosts=tuple(host or ["localhost"]), port=port, insecure=insecure)
    made = Deployment.create(folder, settings, address)
    typer.echo(f"made {folder}; start it with: flic coordinator start {folder}")
    _tell_next(made)
    if settings.sends_sums:
        _tell_of_sums(made, settings)
    if settings.masks_sums:
        _tell_of_masks(settings)


def _tell_of_masks(settings: "FederationSettings") -> None:
    """Say what masks need, and what they take away."""
    typer.echo(
        "sums are masked: once all silos are admitted, write the list of their keys with flic "
        "coordinator keys, and have every silo compare and trust it."
    )
    if not settings.sends_sums:
        notice(
            f"under masks a run needs {settings.min_holders} silos or more (min_holders), the same "
            "in every round, and you cannot see which of them sends nonsense. Have silos take "
            "federation.json at init: without it they would take part without masks too."
        )


def _tell_of_sums(made: "Deployment", settings: "FederationSettings") -> None:
    """Say what to keep secret, who will see which sums, and how many silos it takes."""
    from flic.method_settings import MIN_ROWS

    if not made.address.insecure:
        notice("federation.json holds the salt that hides column names: send it to silos only.")
    notice(
        f"linked columns need {settings.min_holders} silos or more (min_holders): with two, "
        "each could subtract its own sums from the total and read the other's."
    )
    if settings.min_rows < MIN_ROWS:
        notice(
            f"with min_rows = {settings.min_rows}, numbers may rest on fewer than {MIN_ROWS} rows, "
            "and show single ones. A silo holds to its own min_rows, which is larger unless its "
            "owner lowers it too."
        )
    if not settings.masks_sums:
        notice(
            "without secure sums, whoever runs this coordinator sees the sums of every silo: class "
            "means and covariances of its rows. Silos are told so."
        )


def _tell_next(made: "Deployment") -> None:
    """Say which files silos need, and where silos may run."""
    if made.address.insecure:
        notice("without TLS, silos must run on this machine, and no silo's key is checked.")
        return
    typer.echo(
        f"send to silos: {made.certificates.authority} and {made.folder / 'federation.json'}"
    )
    if made.address.is_local:
        notice("silos can connect from this machine only; for others, make it with --host NAME.")


def split_names(text: str | None) -> list[str] | None:
    """Names between commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


@app.command()
def start(folder: Folder, foreground: Foreground = False) -> None:
    """Start the coordinator under a supervisor; it keeps running after this command has ended."""
    deployment = _open(folder)
    if foreground:
        deployment.become()
    deployment.start()
    address = deployment.address
    typer.echo(f"the coordinator listens on port {address.port}; log: {deployment.service.log}")


@app.command()
def admit(
    folder: Folder,
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY.pub", help="The silo's public key.")],
) -> None:
    """Admit a silo by its public key."""
    node = _open(folder).admit(name, key)
    typer.echo(f"{name} is admitted as node {node}")


@app.command()
def revoke(folder: Folder, name: Name) -> None:
    """Exclude a silo; its contributions to finished rounds stay."""
    _open(folder).revoke(name)
    typer.echo(f"{name} is not admitted any more")


@app.command()
def keys(
    folder: Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the list.")],
) -> None:
    """Write the list of the silos' public keys, for silos to compare and trust."""
    deployment = _open(folder)
    from flic.files import write_atomically
    from flic.flower.pinned_keys import peers_text

    lines = deployment.lines()
    write_atomically(out, peers_text(lines).encode())
    typer.echo(f"wrote {counted(len(lines), 'key')} to {out}; send it to every silo, which types:")
    typer.echo(f"  flic silo trust SILO.toml {out.name}")


@app.command()
def renew(folder: Folder, host: Hosts = None) -> None:
    """Make a new certificate for the coordinator; silos keep the ca.crt that they have."""
    made = _open(folder).renew(tuple(host or ()))
    ends = made.certificates.expires()
    typer.echo(f"valid until {ends:%Y-%m-%d} for {', '.join(made.address.hosts)}")
    if made.service.running:
        notice(
            f"the old one is still in use; run: flic coordinator stop {folder}; then start it again"
        )


@app.command()
def train(folder: Folder, quiet: Quiet = False) -> None:
    """Start or resume the run, and show its rounds; it keeps running without this command."""
    deployment = _open(folder)
    seconds: list[float] = []
    with StepDisplay("train", quiet=quiet) as display:

        def show(record: "Record", total: int, done: int) -> None:
            seconds.append(record["seconds"])
            left = (total - done) * sum(seconds) / len(seconds)
            display.advance(done, total, facts(record, left), stage=record["stage"])
            for name, why in {**record["absent"], **record["refused"]}.items():
                notice(f"round {record['round']}, without {name}: {why}")

        try:
            deployment.train(show, notice)
        except KeyboardInterrupt:
            complain(
                "the run goes on without this command. Look at it with: flic coordinator status "
                f"{folder}; end it with: flic coordinator stop {folder}"
            )
            raise typer.Exit(130) from None
    found = deployment.status()
    typer.echo(
        f"done: {counted(found['rounds'], 'round')}, {found['plan']}; {facts(found['last'], 0.0)}"
    )


def facts(record: "Record", seconds_left: float) -> str:
    """Summary of a round in one line: silos, loss terms, score, time left."""
    parts = [counted(len(record["active"]), "silo")]
    parts.append(facts_of(record))
    if seconds_left:
        parts.append(f"{seconds_left:.0f} s left")
    return ", ".join(filter(None, parts))


@app.command()
def status(folder: Folder, format: Format = "text") -> None:
    """Show whether the coordinator runs, its progress, and the connected silos."""
    found = _open(folder).status()
    if format == "json":
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    runs = "runs" if found["running"] else "does not run"
    trains = ", training" if found["training"] else ""
    typer.echo(f"the coordinator at {found['address']} {runs}{trains}")
    typer.echo(f"rounds: {found['rounds_done']} of {found['rounds']} done, {found['plan']}")
    if found["last"]:
        typer.echo(f"last round: {facts(found['last'], 0.0)}")
    if found["certificate_ends"]:
        typer.echo(f"the certificate ends on {found['certificate_ends'][:10]}")
    rows = [
        [
            name,
            "yes" if own["online"] else "no",
            str(own["last_round"] or "–"),
            f"{own['offences']}{', suspended' if own['suspended'] else ''}",
        ]
        for name, own in found["silos"].items()
    ]
    table("Silos", ["silo", "online", "last round", "refused updates"], rows)
    if found["problem"]:
        notice(found["problem"])


@app.command()
def stop(folder: Folder) -> None:
    """Stop the coordinator and its run; all finished rounds are kept."""
    ran = _open(folder).stop()
    typer.echo("stopped" if ran else "it did not run")


@app.command()
def bench(
    silos: Annotated[
        list[int] | None, typer.Option(min=2, help="Number of silos; may be repeated.")
    ] = None,
    secure_sums: Annotated[
        bool, typer.Option("--secure-sums", help="Under masks, which takes three silos or more.")
    ] = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="With --secure-sums: masks alone, without Flower's messages."
        ),
    ] = False,
    format: Format = "text",
) -> None:
    """Measure Flower's cost on this machine: seconds and bytes per round, by number of silos."""
    need_flower("coordinator bench")
    from flic.flower.federation_settings import MIN_HOLDERS

    if in_process and not secure_sums:
        raise ConfigError("--in-process measures masks; expected --secure-sums beside it. Add it.")
    if secure_sums and min(silos or [MIN_HOLDERS]) < MIN_HOLDERS:
        raise ConfigError(
            f"--silos is {min(silos or [])} with --secure-sums; expected {MIN_HOLDERS} at least: "
            "with two, each could read the other's part. Measure more silos."
        )
    as_json = format == "json"
    if in_process:
        from flic.flower.ops.masking_costs import masking_costs

        show_masking_costs(masking_costs(silos or [3, 8, 32]), as_json=as_json)
        return
    from flic.flower.ops.benchmark import measure

    with StepDisplay("bench", quiet=as_json) as display:
        found = measure(
            silos or [3, 8],
            lambda record, total, done: display.advance(done, total, facts(record, 0.0)),
            secure_sums=secure_sums,
        )
    show_overhead(found, as_json=as_json)
