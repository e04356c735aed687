"""Finding about a client's rows: it stops a run, or is only worth mentioning."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem: fatal, or a notice of something that is handled."""

    client: str | None
    fatal: bool
    message: str
