"""`flic link`: proposes further links between columns, and lists doubtful ones."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flic.cli.check import FederationPath, Format, need_tables
from flic.cli.screen import say, still, table

if TYPE_CHECKING:
    from flic.tables.linking import Proposal


def link(federation: FederationPath, format: Format = "text") -> None:
    """Propose further links between columns, and list doubtful ones; this changes nothing."""
    need_tables("link")
    from flic.tables import load_tables, read_federation
    from flic.tables.linking import doubtful_links, propose_links

    with still("comparing columns"):
        tables = load_tables(read_federation(federation), federation.parent).tables
        found, doubts = propose_links(tables), doubtful_links(tables)
    if format == "json":
        told = {"proposed": found, "doubtful": doubts}
        rows = {name: [_plain(own) for own in every] for name, every in told.items()}
        say(json.dumps(rows, ensure_ascii=False))
        return
    if doubts:
        _show_doubts(doubts)
    if not found:
        say("no further links to propose; columns with the same name and kind are linked already")
        return
    rows = [
        [": ".join(p.first), ": ".join(p.second), f"{p.score:.2f}", "; ".join(p.evidence)]
        for p in found
    ]
    table("Possible links", ["column", "may be", "score", "evidence"], rows)
    say("To confirm a link, add a line to the second column's client in the file, for example:")
    say(_line(found[0]))


def _plain(proposal: "Proposal") -> dict[str, object]:
    """A proposal as plain values, for JSON."""
    return {**vars(proposal), "link": proposal.link.model_dump()}


def _show_doubts(doubts: "Sequence[Proposal]") -> None:
    """Show links that are probably wrong, with their remedies."""
    rows = [[": ".join(p.second), ": ".join(p.first), "; ".join(p.evidence)] for p in doubts]
    table("Doubtful links", ["column", "is linked with", "evidence"], rows)
    known = next((p for p in doubts if "after" in p.evidence[0]), None)
    if known:
        say(f"To convert a unit, add a line to client {known.second[0]} in the file, for example:")
        say(_line(known))
        return
    who, column = doubts[0].second
    say(f"If they mean different things, add a line to client {who} in the file, for example:")
    say(f"unlinked = [{json.dumps(column)}]")
    say("If they mean the same, give them the same unit (links with a factor) or the same levels.")


def _line(proposal: "Proposal") -> str:
    """Line for a federation.toml."""
    name, link = json.dumps(proposal.link.name), proposal.link
    said = {"factor": link.factor} if link.factor != 1 else {}
    said |= {"offset": link.offset} if link.offset else {}
    units = "".join(f", {key} = {value:g}" for key, value in said.items())
    to = f"{{ name = {name}{units} }}" if units else name
    return f"links = {{ {json.dumps(proposal.second[1])} = {to} }}"
