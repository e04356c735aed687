"""Tables of all that leaves a silo, shown to its owner before it joins a federation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from flic.cli.screen import notice, say, table
from flic.notation import counted

if TYPE_CHECKING:
    from flic.flower.announcement import Leaving
    from flic.flower.federation_settings import FederationSettings
    from flic.flower.silo_folder import SiloFolder


def show_leaving(silo: "SiloFolder", settings: "FederationSettings") -> None:
    """Print all that leaves under these settings, how large it is, and what never does."""
    from flic.flower.announcement import announce

    leaving = announce(silo, settings)
    rows = [[e.what, str(list(e.shape)), str(e.num_bytes), _when(e)] for e in leaving]
    most = "at most" if settings.sends_sums else "and nothing else"
    title = f"What leaves this machine, {most} ({silo.name})"
    table(title, ["what", "shape", "bytes", "when"], rows)
    _show_bytes(leaving, are_masked=settings.masks_sums)
    if settings.sends_sums:
        _show_sums(silo, settings)
    else:
        typer.echo(
            "never: rows, labels, names and kinds of columns, the embedding φ and the head β, "
            "their gradients, the private key"
        )
    if settings.sends_sums or settings.masks_sums:
        _show_who_sees(silo, settings)


def _show_bytes(leaving: "Sequence[Leaving]", *, are_masked: bool) -> None:
    """Print the bytes of each round and evaluation."""
    for when in dict.fromkeys(entry.when for entry in leaving):
        of_all = [entry for entry in leaving if entry.when == when]
        total = sum(entry.num_bytes for entry in of_all)
        sure = sum(entry.num_bytes for entry in of_all if not entry.linked)
        told = f"{total}" if sure == total else f"{sure} to {total}"
        is_masked = are_masked and any(entry.is_in_sum for entry in of_all)
        before = ", before masks" if is_masked else ""
        say(f"bytes {when.removeprefix('once, ').replace('every', 'in every')}{before}: {told}")


def _show_sums(silo: "SiloFolder", settings: "FederationSettings") -> None:
    """Say what sums are of, and the silo's limits on them."""
    typer.echo("never: single rows and labels, column names (only keys of them), your model")
    notice(
        "the shapes above count all your columns. Sums contain only columns that at least "
        f"{silo.min_holders(settings)} silos have (min_holders), and each is over at least "
        f"{counted(silo.min_rows(settings), 'row')} (min_rows). Besides sums by class, at most "
        f"{silo.max_numbers_per_value(settings):g} sums are sent per encoded value of your "
        "rows (max_numbers_per_value): from more, rows could be computed. Likelihoods are "
        "rounded, so that no row alone moves one by more than a step. SECURITY.md says what is "
        "known about this."
    )


def _show_who_sees(silo: "SiloFolder", settings: "FederationSettings") -> None:
    """Say whether the operator sees these sums, and what a federation of two would show."""
    if settings.masks_sums:
        least = silo.min_holders(settings)
        size = ", and there is one for every linked column of any silo" * settings.sends_sums
        typer.echo(
            f"masked: the operator sees totals over {least} silos or more, not yours. A masked "
            f"number has 16 bytes{size}. Beside them go keys and signatures of each sum, and to "
            "which of these numbers you add."
        )
        notice(
            f"if fewer than {least} silos take part, this silo sends no sums: with two, each could "
            "subtract its own sums from the total and read the other's. Before the first run, "
            "compare and trust the others' keys: flic silo trust"
        )
    else:
        notice(
            "this federation was made with --no-secure-sums: its operator sees all sums above as "
            "they are, class means and covariances of your rows."
        )


def _when(entry: "Leaving") -> str:
    return entry.when + (f", if {entry.linked} columns are linked" if entry.linked > 1 else "")
