"""`flic fit`: fits models to a federation.toml, gives a verdict, and saves both in a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flic.cli.check import FederationPath, Format, need_tables
from flic.cli.run import Assignments, Quiet, Workers
from flic.cli.screen import StepDisplay, notice, say, table
from flic.notation import json_values

if TYPE_CHECKING:
    from flic.silos.fit_cache import FitCache
    from flic.silos.fit_settings import FitSettings
    from flic.tables import TableFederation

SHOWN = 10

OUT = typer.Option(metavar="DIR", help="New folder for the fitted federation.")


def fit(
    file: FederationPath,
    out: Annotated[Path, OUT],
    set_: Assignments = None,
    workers: Workers = 1,
    format: Format = "text",
    quiet: Quiet = False,
) -> None:
    """Train flic and every alternative on the same splits; say per client whether joining helps.

    Finished work is kept: after an interruption, the same command resumes.
    """
    need_tables("fit")
    from flic.silos import folder
    from flic.silos.fit_cache import FitCache
    from flic.silos.fitting import fit as fit_tables

    folder.refuse_unwritable(out)
    tables, settings = _loaded(file, set_)
    cache = FitCache.of(folder.unfinished(out), tables, settings)
    if not quiet:
        _tell_before(tables, cache)
    with StepDisplay("fit", quiet=quiet or format == "json") as display:
        fitted = fit_tables(tables, settings, workers=workers, on_step=display.advance, cache=cache)
    # Shown before it is saved, so that a full disk does not lose it.
    if format == "json":
        say(json.dumps(json_values(fitted.verdict.dump()), ensure_ascii=False))
    else:
        show_verdict(fitted.verdict)
        _tell(fitted.notices[len(tables.notices) :], quiet=quiet)
    folder.save(fitted, out)
    if format == "text":
        say(f"wrote the fitted federation to {out}; look at it with: flic report {out}")


def _loaded(file: Path, assignments: list[str] | None) -> "tuple[TableFederation, FitSettings]":
    """Tables that a federation.toml describes, and the settings of its fit."""
    from flic.settings import assigned, source_of
    from flic.silos.fit_settings import fit_settings
    from flic.tables import load_tables, read_federation

    description = read_federation(file)
    raw = assigned(description.fit, assignments)
    source = source_of(f"{file}, [fit]", assignments)
    settings = fit_settings(raw, task=description.task, source=source)
    return load_tables(description, file.parent), settings


def _tell_before(tables: "TableFederation", cache: "FitCache") -> None:
    """Show the notices about the tables, and whether an interrupted fit goes on."""
    for message in tables.notices:
        notice(message)
    if cache.is_begun:
        notice(f"resuming the interrupted fit whose finished parts are in {cache.folder.parent}")


def _tell(found: Sequence[str], *, quiet: bool) -> None:
    """Show the first findings of the fit; all of them are in the report."""
    for message in found[: 0 if quiet else SHOWN]:
        notice(message)
    if not quiet and len(found) > SHOWN:
        notice(f"and {len(found) - SHOWN} more notes; the report has them all")


def show_verdict(verdict: Any, *, only: str | None = None) -> None:
    """Show the verdict as a table, with a sentence and a reason for every client."""
    from flic.silos.verdict import as_text, signed

    metric = verdict.metric
    lines = [line for line in verdict.clients if only in (None, line.client)]
    rows = [
        [
            line.client,
            str(line.rows),
            f"{as_text(metric, line.alone_score)} {line.alone}",
            f"{as_text(metric, line.federation_score)} {line.federation or '–'}",
            signed(metric, line.difference.mean),
            f"{signed(metric, line.difference.low)} … {signed(metric, line.difference.high)}",
            line.difference.word,
            as_text(metric, line.kept_score),
            line.kept,
        ]
        for line in lines
    ]
    columns = [
        *("client", "rows", "alone", "federation", "difference", "95 % interval"),
        *("joining", "kept score", "keeps"),
    ]
    table(f"Held-out {metric}, {lines[0].splits} splits", columns, rows)
    say(
        "Each score uses the model chosen on that split's training rows. The name shown is the "
        "most frequent choice. What a client keeps is chosen on all its rows."
    )
    for line in lines:
        say(f"{line.sentence} Why: {line.reason}")
    if only is None:
        _show_candidates(verdict)


def _show_candidates(verdict: Any) -> None:
    from flic.silos.candidates import CANDIDATES
    from flic.silos.verdict import as_text, with_interval

    metric = verdict.metric
    rows = [
        [
            name,
            "federation" if CANDIDATES[name].federated else "alone",
            str(len(own)),
            as_text(metric, sum(f[metric] for f in own.values()) / len(own)),
            CANDIDATES[name].title,
        ]
        for name, own in verdict.candidates.items()
    ]
    columns = ["candidate", "", "clients", metric, "what it is"]
    table("Every candidate, mean over the clients it serves", columns, rows)
    best = CANDIDATES[verdict.best].title
    others = {
        "the models that clients would choose alone": verdict.kept_against_alone,
        f"{best} for all clients (the best in hindsight)": verdict.kept_against_best,
    }
    for other, kept in others.items():
        say(f"Mean over clients, kept models against {other}: {with_interval(metric, kept)}.")
