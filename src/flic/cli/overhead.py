"""Tables of `flic coordinator bench`: what Flower and masks cost on this machine."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from flic.cli.screen import table

if TYPE_CHECKING:
    from flic.flower.ops.benchmark import Overhead
    from flic.flower.ops.masking_costs import MaskingCost

_Columns = Mapping[str, Callable[[Any], str]]

_OF_FLOWER: _Columns = {
    "silos": lambda own: f"{own.silos}",
    "s a round": lambda own: f"{own.flower_seconds:.1f}",
    "s in the simulator": lambda own: f"{own.simulator_seconds:.2f}",
    "bytes a silo and round": lambda own: f"{own.flower_bytes:.0f}",
    "bytes in the simulator": lambda own: f"{own.simulator_bytes:.0f}",
    "s to start": lambda own: f"{own.start_seconds:.0f}",
}

_OF_MASKS: _Columns = {
    "silos": lambda own: f"{own.silos}",
    "numbers": lambda own: f"{own.numbers}",
    "s of a silo": lambda own: f"{own.silo_seconds:.2f}",
    "s of the coordinator": lambda own: f"{own.coordinator_seconds:.2f}",
    "kB a silo sends": lambda own: f"{own.silo_sends / 1000:.1f}",
    "kB a silo is sent": lambda own: f"{own.silo_is_sent / 1000:.1f}",
}


def show_overhead(found: "Sequence[Overhead]", *, as_json: bool) -> None:
    """Print what rounds take in whole federations."""
    title = "Flower on this machine: all processes on loopback, TLS and keys"
    _show(found, title, _OF_FLOWER, as_json=as_json)
    if not as_json:
        typer.echo(
            "A silo imports torch once, when it starts; the coordinator imports it once a run. The "
            "rest is Flower, which passes messages by asking for them again and again."
        )


def show_masking_costs(found: "Sequence[MaskingCost]", *, as_json: bool) -> None:
    """Print what one secure sum takes without messages."""
    title = "One secure sum in this process: keys, shares and masks, without messages"
    _show(found, title, _OF_MASKS, as_json=as_json)


def _show(found: Sequence[Any], title: str, columns: _Columns, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    rows = [[of(one) for of in columns.values()] for one in found]
    table(title, [*columns], rows)
