"""`flic run`: runs one method with one seed in one folder, or resumes an interrupted run."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.screen import StepDisplay, notice, percent, say, table
from flic.errors import ConfigError

if TYPE_CHECKING:
    from flic.config import RunConfig
    from flic.engine.cluster import Cluster
    from flic.runs.loaded import Loaded
    from flic.runs.run_folder import Finished

WORKER_BYTES = 2 * 10**8
"""Memory that a worker process takes before it works."""


def refuse_crowd(workers: int) -> int:
    """Refuse more processes than memory allows to start."""
    from flic.settings import refuse_beyond_memory

    refuse_beyond_memory({"processes": workers * WORKER_BYTES}, source=f"--workers {workers}")
    return workers


Quiet = Annotated[bool, typer.Option("--quiet", help="Show the result only, no progress.")]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        callback=refuse_crowd,
        help="Processes that share the work. Results change by rounding alone.",
    ),
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Dask scheduler whose workers do the work, such as tcp://host:8786.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
]


SHOWN_NOTICES = 2


@contextmanager
def connected(cluster: str | None, *, workers: int) -> Generator["Cluster | None"]:
    """Connect to a cluster, if one is named."""
    if cluster is None:
        yield None
        return
    if workers > 1:
        raise ConfigError(
            f"got --workers {workers} and --cluster {cluster}; expected one of them, since a "
            "cluster has workers of its own. Leave --workers out."
        )
    from flic.engine.cluster import open_cluster

    with open_cluster(cluster) as opened:
        yield opened


def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="Settings of the run.")
    ] = None,
    set_: Assignments = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    workers: Workers = 1,
    cluster: ClusterAddress = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="New folder for the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of an interrupted run to resume.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train one method on one federation and write a run folder."""
    if (config is None) == (resume is None):
        got = "neither" if config is None else "both"
        raise ConfigError(
            f"flic run: got {got}; expected CONFIG.toml or --resume DIR, one of them."
        )
    if resume is not None and (set_ or seed is not None or out is not None):
        raise ConfigError(
            "flic run --resume resumes the run as it is; --set, --seed and --out cannot "
            "change it. Leave them out, or start a new run."
        )
    with connected(cluster, workers=workers) as opened:
        if resume is not None:
            folder, loaded = resume, _load(resume)
        else:
            assert config is not None
            folder, loaded = _create(config, set_ or [], seed, out)
        finished = show_run(folder, loaded, workers=workers, cluster=opened, quiet=quiet)
    _show(finished, loaded.config)


def _load(folder: Path) -> "Loaded":
    """The run of a folder."""
    from flic.runs.loaded import Loaded
    from flic.runs.run_folder import read_config

    return Loaded.of(read_config(folder))


def _create(
    config: Path, assignments: list[str], seed: int | None, out: Path | None
) -> tuple[Path, "Loaded"]:
    """A new run and its folder."""
    from flic.config import load_config
    from flic.runs.run_folder import create

    settings = load_config(config, assignments)
    own_seed = settings.seed if seed is None else seed
    settings = settings.for_method(settings.method, seed=own_seed)
    folder = out or default_folder(settings.method)
    return folder, create(folder, settings)


def default_folder(name: str) -> Path:
    """Default run folder: runs/NAME-TIME below the current folder."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def show_run(
    folder: Path,
    loaded: "Loaded",
    *,
    workers: int,
    cluster: "Cluster | None" = None,
    quiet: bool,
    tell: bool = True,
) -> "Finished":
    """Do the run's remaining steps with a progress display, then show its notices."""
    from flic.runs import run_folder

    title = f"{loaded.config.method} (seed {loaded.config.seed})"
    with StepDisplay(title, quiet=quiet) as display:
        finished = run_folder.resume(
            folder,
            loaded=loaded,
            workers=workers,
            cluster=cluster,
            on_step=display.step,
            on_damage=notice,
        )
    if tell and not quiet:
        show_notices(finished)
    return finished


def show_notices(finished: "Finished") -> None:
    """Show the first notices; all of them are in summary.json."""
    for message in finished.notices[:SHOWN_NOTICES]:
        notice(message)
    more = len(finished.notices) - SHOWN_NOTICES
    if more > 0:
        notice(f"and {more} more, all in {finished.folder / 'summary.json'}")


def _show(finished: "Finished", settings: "RunConfig") -> None:
    rows = []
    outcome = finished.outcome
    for label, scores in (("last", outcome.last), ("chosen by validation", outcome.chosen)):
        if scores is not None:
            figures = [percent(scores.mean), percent(scores.worst), percent(scores.weighted)]
            errors = [f"{error:.4g}" for error in scores.errors.values()]
            rows.append([label, str(scores.round), *figures, *errors])
    columns = ["round", "number", "mean %", "worst client %", "mean over rows %"]
    columns += [name.upper() for name in outcome.last.errors]
    table(f"{settings.method}, seed {settings.seed}: test {outcome.last.measure}", columns, rows)
    before, last = finished.cpu_seconds
    say(
        f"took {finished.seconds:.1f} s. CPU time of this process: {before:.1f} s, and {last:.1f} "
        "s for the last step, which trains and measures all clients"
    )
    say(f"run folder: {finished.folder}")
