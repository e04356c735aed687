"""`flic link`: further columns that might be the same thing, for a person to confirm."""

import json
from dataclasses import asdict

import typer

from flic.cli.check import FederationPath, Format, need_pandas
from flic.cli.screen import table


def link(federation: FederationPath, format: Format = "text") -> None:
    """Propose columns of different names that may be linked; it never links by itself."""
    need_pandas("link")
    from flic.data.tables import load_tables, read_federation
    from flic.data.tables.linking import propose_links

    file = read_federation(federation)
    found = propose_links(load_tables(file, federation.parent).tables)
    if format == "json":
        typer.echo(json.dumps([asdict(proposal) for proposal in found], ensure_ascii=False))
        return
    if not found:
        typer.echo("no further links to propose: columns of one name and kind are linked already")
        return
    rows = [
        [": ".join(p.first), ": ".join(p.second), f"{p.score:.2f}", "; ".join(p.evidence)]
        for p in found
    ]
    table("Possible links", ["column", "may be", "score", "evidence"], rows)
    typer.echo("To confirm one, write at the client of the second column, for example:")
    best = found[0]
    unit = f"{{ name = {json.dumps(best.first[1])}, factor = {best.factor:g} }}"
    to = json.dumps(best.first[1]) if best.factor == 1 else unit
    typer.echo(f"links = {{ {json.dumps(best.second[1])} = {to} }}")
