"""A finding about a client's rows: something that stops a run, or something worth saying."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem: fatal, or a notice of something that is handled."""

    client: str | None
    fatal: bool
    message: str
