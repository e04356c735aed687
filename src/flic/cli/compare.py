"""`flic compare`: compares several methods and seeds on the same federations."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.run import (
    Assignments,
    ClusterAddress,
    Quiet,
    Workers,
    connected,
    default_folder,
    show_notices,
    show_run,
)
from flic.cli.screen import StepDisplay, percent, say, table
from flic.errors import ConfigError
from flic.files import write_json
from flic.methods import METHODS
from flic.notation import counted

if TYPE_CHECKING:
    from flic.config import RunConfig
    from flic.engine.cluster import Cluster
    from flic.runs.comparison import Row
    from flic.runs.loaded import Loaded
    from flic.runs.run_folder import Finished

    Cells = Mapping[tuple[str, int], RunConfig]  # by method and seed
    Done = dict[tuple[str, int], Finished]


def compare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings of all runs.")],
    methods: Annotated[
        str, typer.Option(help=f"Methods, separated by commas: {', '.join(METHODS)}.")
    ] = "local,flic-class,flic-hl",
    seeds: Annotated[str, typer.Option(help="Seeds: 5 means 0-4; or a list such as 3,7.")] = "1",
    set_: Assignments = None,
    workers: Workers = 1,
    cluster: ClusterAddress = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all runs and the table.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Method to compare with; if not given, local or the first."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods with several seeds and print mean, spread and paired differences.

    Finished runs in the output folder are kept; interrupted ones are resumed.
    """
    names, numbers = _parse_methods(methods), parse_seeds(seeds)
    reference = reference or ("local" if "local" in names else names[0])
    if reference not in names:
        raise ConfigError(f"--reference: got {reference!r}; expected one of --methods {methods}.")
    from flic.config import load_config
    from flic.runs.loaded import Loaded, load_each, refuse_impossible

    settings = load_config(config, set_ or [])
    folder = out or default_folder("compare")
    cells = {
        (name, seed): settings.for_method(name, seed=seed) for seed, name in product(numbers, names)
    }
    with connected(cluster, workers=workers) as opened:
        first = Loaded.of(cells[names[0], numbers[0]])
        refuse_impossible(load_each([cells[name, numbers[0]] for name in names], first))
        if opened is None:
            done = _run_here(folder, cells, first, workers=workers, quiet=quiet)
        else:
            done = _run_there(opened, folder, cells, first, quiet=quiet)
    _compare(done, settings.data.problem, reference, folder)
    say(f"runs and comparison.json: {folder}")


def _folder(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-seed{seed}"


def _run_here(
    folder: Path, cells: "Cells", first: "Loaded", *, workers: int, quiet: bool
) -> "Done":
    """All runs, one after another."""
    from flic.runs.loaded import load_each

    done: Done = {}
    for cell, loaded in zip(cells, load_each(cells.values(), first), strict=True):
        tell = not done  # every method has the same data, and so the same notices
        done[cell] = _run(_folder(folder, *cell), loaded, workers=workers, quiet=quiet, tell=tell)
    return done


def _run_there(
    cluster: "Cluster", folder: Path, cells: "Cells", first: "Loaded", *, quiet: bool
) -> "Done":
    """All runs, those that are left to do side by side on a cluster."""
    from flic.runs.cluster_runs import finish
    from flic.runs.loaded import load_each

    cell_of = {_folder(folder, *cell): cell for cell in cells}
    left = [own for own in cell_of if not (own / "summary.json").exists()]
    runs = zip(left, load_each([cells[cell_of[p]] for p in left], first), strict=True)
    done: Done = {}
    with StepDisplay("runs on the cluster", quiet=quiet) as display:
        for own, finished in finish(cluster, runs):
            done[cell_of[own]] = finished
            display.advance(len(done), len(left), own.name)
    kept = [cell for cell in cells if cell not in done]
    for cell, loaded in zip(kept, load_each([cells[c] for c in kept], first), strict=True):
        done[cell] = _run(_folder(folder, *cell), loaded, workers=1, quiet=True, tell=False)
    if not quiet:
        show_notices(done[next(iter(cells))])
    return {cell: done[cell] for cell in cells}


def _compare(done: "Done", problem: str, reference: str, folder: Path) -> None:
    """Write and show the comparison of finished runs, which are given by method and seed."""
    from flic.runs.comparison import ComparedRun
    from flic.runs.comparison import compare as compare_runs

    runs = [
        ComparedRun(name, seed, one.outcome, one.seconds, one.bytes_sent)
        for (name, seed), one in done.items()
    ]
    rows = compare_runs(runs, reference=reference)
    write_json(folder / "comparison.json", [row.summary() for row in rows])
    measure = runs[0].outcome.last.measure
    _show(f"Test {measure}, {problem}", rows, reference)
    ceilings = [one.ceiling for one in done.values() if one.ceiling is not None]
    if ceilings:
        say(f"Bayes {measure}, the ceiling: {percent(fmean(ceilings))} %")


def _parse_methods(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise ConfigError(
            f"--methods: got {', '.join(unknown) or 'nothing'}; expected names among "
            f"{', '.join(METHODS)}."
        )
    return list(dict.fromkeys(names))


def parse_seeds(text: str) -> list[int]:
    """Seeds from their number, or from a list."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or ("," not in text and numbers[0] < 1):
        raise ConfigError(
            f"--seeds: got {text!r}; expected a number of seeds such as 5, or a list such as 0,3,7."
        )
    return list(dict.fromkeys(numbers)) if "," in text else list(range(numbers[0]))


def _run(folder: Path, loaded: "Loaded", *, workers: int, quiet: bool, tell: bool) -> "Finished":
    """One run, new, resumed or already finished."""
    from flic.runs import run_folder

    run_folder.begin(folder, loaded)
    return show_run(folder, loaded, workers=workers, quiet=quiet, tell=tell)


def _show(title: str, rows: "list[Row]", reference: str) -> None:
    columns = ["method", "mean %", "spread", "worst client %", "chosen round %"]
    columns += [f"gain over {reference}", "gain / lose", "time s", "kB sent"]
    lines = [
        [
            row.method,
            percent(row.mean),
            percent(row.spread),
            percent(row.worst),
            percent(row.chosen),
            _gain(row),
            f"{row.gaining} / {row.losing}" if row.gain is not None else "–",
            f"{row.seconds:.1f}",
            f"{row.bytes_sent / 1000:.0f}",
        ]
        for row in rows
    ]
    table(f"{title}, {counted(rows[0].seeds, 'seed')}", columns, lines)


def _gain(row: "Row") -> str:
    if row.gain is None:
        return "–"
    interval = "" if row.gain_interval is None else f" ± {100 * row.gain_interval:.1f}"
    return f"{100 * row.gain:+.1f}{interval}"
