"""A study's results as files: a CSV per table, one Markdown page, a picture per figure."""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flic.errors import ConfigError, RunFolderError
from flic.files import FOR_ALL, read_json, write_atomically
from flic_paper.studies import STUDIES
from flic_paper.study import Scope, Study, Table, Value
from flic_paper.study_folder import finished, missing, scope_of_kept

QUICK = "Quick version: it shows that the study runs, not what it finds."

LISTED = 3  # unfinished cells that are named

_UNITS = ("seconds", "cpu_seconds")


def write_pages(study: Study, folder: Path, *, quick: bool) -> Sequence[Table]:
    """Write all files that the finished cells of any seed allow, and return the tables.

    results.md has the tables in brief, their files everything.
    """
    own = Scope(quick)
    kept = scope_of_kept(own, folder)
    found = finished(study, kept, folder)
    results = {key: value["result"] for key, value in found.items()}
    tables = study.tables(results, kept)
    for table in tables:
        write_atomically(folder / f"{table.name}.csv", _csv(table).encode(), mode=FOR_ALL)
    pictures = _draw(study, results, kept, folder)
    seconds = [sum(map(partial(_seconds, unit), found.values())) for unit in _UNITS]
    left = missing(study, own, folder)
    page = [
        *([QUICK] if quick else []),
        f"Paper: {study.paper}. {len(found)} of {len(found) + len(left)} cells, "
        f"{seconds[0]:,.0f} s, {seconds[1]:,.0f} CPU s; [versions and machine](environment.json).",
        *map(_section, tables),
        *[f"![{name}]({name}.png)" for name in pictures],
    ]
    if left:
        more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
        page.append(f"Not finished: {', '.join(left[:LISTED])}{more}.")
    content = "\n\n".join(page).encode() + b"\n"
    write_atomically(folder / "results.md", content, mode=FOR_ALL)
    return tables


def _section(table: Table) -> str:
    """A table in brief, its note, and the way to all of it."""
    shown, file = table.brief or table, f"[{table.name}.csv]({table.name}.csv)"
    rest = f"All rows and columns: {file}." if table.brief else f"As a file: {file}."
    return f"**{table.title}**\n\n{markdown(shown)}\n\n{f'{table.note} {rest}'.strip()}"


def _seconds(unit: str, cell: Mapping[str, Any]) -> float:
    """Seconds of a cell; if its result has them, those of its runs over all attempts."""
    result = cell["result"]
    return result[unit] if isinstance(result, dict) and unit in result else cell[unit]


def update_page(page: Path, results: Path) -> list[str]:
    """Put every study's results into a page, between the marks with its name.

    `<!-- begin NAME -->` and `<!-- end NAME -->` enclose what is replaced. Tables and figures are
    made anew from the finished cells; figures are copied into a folder beside the page. Returns
    the names of these studies; a page without any is refused.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{page} cannot be read ({error}); expected a page with marks.") from None
    marks = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
    named = [match[2] for match in marks.finditer(text)]
    if not named:
        raise RunFolderError(
            f"{page} has no marks; expected <!-- begin NAME --> and <!-- end NAME --> on lines of "
            "their own, with the name of a study. Put them where its results belong."
        )
    put: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        folder = results / match[2]
        if match[2] not in STUDIES or not (folder / "study.json").exists():
            return match[0]
        if read_json(folder / "study.json")["quick"]:
            raise ConfigError(
                f"{folder} holds a quick study; a page takes full ones. Leave it out."
            )
        write_pages(STUDIES[match[2]], folder, quick=False)
        put.append(match[2])
        return f"{match[1]}\n{_moved(folder, page.parent)}\n{match[3]}"

    text = marks.sub(replaced, text)
    if not put:
        raise RunFolderError(
            f"{results} holds no results of {', '.join(named)}; expected a folder with those of at "
            f"least one. Make them with: flic reproduce {named[0]}"
        )
    write_atomically(page, text.encode(), mode=FOR_ALL)
    return put


def _moved(folder: Path, to: Path) -> str:
    """A study's results.md for a page in another folder, with its pictures copied there."""
    body = (folder / "results.md").read_text(encoding="utf-8")
    (to / "figures").mkdir(exist_ok=True)
    for name in re.findall(r"\]\((.*?)\)", body):
        target = os.path.relpath(folder / name, to)
        if name.endswith(".png"):
            target = f"figures/{name}"
            write_atomically(to / target, (folder / name).read_bytes(), mode=FOR_ALL)
        body = body.replace(f"]({name})", f"]({target})")
    return body


def _draw(study: Study, results: dict[str, object], scope: Scope, folder: Path) -> list[str]:
    require_figures()
    names = []
    for name, figure in study.figures(results, scope).items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
        write_atomically(folder / f"{name}.png", buffer.getvalue(), mode=FOR_ALL)
        names.append(name)
    return names


def require_figures() -> None:
    """Refuse to start if figures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "flic reproduce draws figures with matplotlib, which is not installed. "
            "Run: pip install 'flic[figures]'"
        ) from None


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if value is None else value for value in row] for row in table.rows])
    return out.getvalue()


def markdown(table: Table) -> str:
    """The table as Markdown."""
    lines = [_escaped(table.columns), ["---"] * len(table.columns)]
    lines += [_escaped(row) for row in table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(line: Sequence[Value]) -> list[str]:
    return [shown(value).replace("|", "\\|") for value in line]


def shown(value: Value) -> str:
    """A field as text: four digits, or a dash if not known."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
