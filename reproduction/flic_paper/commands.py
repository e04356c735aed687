"""`flic reproduce`: reproduces a table or figure of the paper, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.compare import parse_seeds
from flic.cli.run import ClusterAddress, Quiet, connected, refuse_crowd
from flic.cli.screen import latest_line, notice, say, table
from flic.errors import ConfigError
from flic.notation import counted

if TYPE_CHECKING:
    from flic.engine.cluster import Cluster
    from flic_paper.study import Scope, Study, Table

RESULTS = Path("runs") / "reproduce"


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A study; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all studies.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, in less than a minute.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds: 5 means 0-4; or a list such as 3,7.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, callback=refuse_crowd, help="Processes that share the cells.")
    ] = 1,
    cluster: ClusterAddress = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the results; with --page, the folder of all studies' results.",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Compute only cells whose key contains this text.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md", help="Write all results so far to a page; compute nothing."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure of the paper, beside honest baselines.

    Finished cells are kept: the same command resumes, and several processes may share the folder.
    """
    from flic_paper.pages import QUICK, require_figures, shown, update_page
    from flic_paper.studies import STUDIES
    from flic_paper.study import Scope
    from flic_paper.study_folder import missing, open_folder, outdated

    if list_:
        width = max(map(len, STUDIES))
        for study in STUDIES.values():
            say(f"{study.name:{width}}  {study.title} ({study.paper})")
        return
    if page is not None:
        if name is not None:
            raise ConfigError(
                f"flic reproduce: got {name} and --page; expected one of them, since a page gets "
                f"all results so far. Leave {name} out."
            )
        say(f"{page}: {', '.join(update_page(page, out or RESULTS))}")
        return
    if name not in STUDIES:
        raise ConfigError(
            f"flic reproduce: got {name or 'no name'}; expected one of {', '.join(STUDIES)}."
        )
    require_figures()
    study = STUDIES[name]
    scope = Scope(quick, None if seeds is None else tuple(parse_seeds(seeds)))
    folder = out or RESULTS / (f"{name}-quick" if quick else name)
    if only is not None and not any(only in cell.key for cell in study.cells(scope)):
        raise ConfigError(
            f"--only: no cell of {name} has {only!r} in its key; expected part of one such as "
            f"{study.cells(scope)[0].key!r}."
        )
    with connected(cluster, workers=workers) as opened:
        open_folder(study, scope, folder)
        old = outdated(study, scope, folder)
        if old:
            notice(
                "results of an earlier revision of the method are computed again "
                f"({len(old)}): {_first_of(old)}"
            )
        try:
            tables = _work(
                study, scope, folder, workers=workers, cluster=opened, only=only or "", quiet=quiet
            )
        except KeyboardInterrupt:
            notice(f"stopped; finished cells are kept in {folder}, and the same command resumes.")
            raise typer.Exit(130) from None
    if quick:
        say(QUICK)
    for found in tables:
        rows = [[shown(value) for value in row] for row in found.rows]
        table(found.title, list(found.columns), rows)
    left = missing(study, scope, folder)
    if left:
        notice(f"{counted(len(left), 'cell')} still to be done: {_first_of(left)}")
    say(f"wrote tables, figures and results.md to {folder}")


def _work(
    study: "Study",
    scope: "Scope",
    folder: Path,
    *,
    workers: int,
    cluster: "Cluster | None",
    only: str,
    quiet: bool,
) -> "Sequence[Table]":
    """Do the cells, then write all pages."""
    from flic_paper.pages import write_pages
    from flic_paper.study_cluster import work_through_on
    from flic_paper.study_folder import work_through

    try:
        with latest_line(quiet=quiet) as tell:
            if cluster is None:
                work_through(study, scope, folder, workers=workers, tell=tell, only=only)
            else:
                work_through_on(cluster, study, scope, folder, tell=tell, only=only)
    finally:  # an interrupted study also gets its pages
        tables = write_pages(study, folder, quick=scope.quick)
    return tables


def _first_of(keys: Sequence[str]) -> str:
    from flic_paper.pages import LISTED

    return ", ".join(keys[:LISTED]) + (" …" if len(keys) > LISTED else "")
