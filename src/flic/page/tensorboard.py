"""Metrics per round for TensorBoard, from the same report as the page."""

from pathlib import Path
from tempfile import TemporaryDirectory

from flic.errors import ConfigError
from flic.files import make_folder, write_atomically
from flic.page.contents import Report, Round

EVENTS = "events.out.tfevents.flic"
"""Fixed name, so that a second report replaces the first instead of doubling every curve."""


def write_scalars(report: Report, folder: Path) -> Path:
    """Write the scores, loss terms and bytes of every round; returns the file."""
    with TemporaryDirectory() as temporary:
        _write_events(report, Path(temporary))
        [written] = Path(temporary).iterdir()
        make_folder(folder)
        write_atomically(folder / EVENTS, written.read_bytes())
    return folder / EVENTS


def _write_events(report: Report, folder: Path) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "flic report --tensorboard needs the package tensorboard, which is not installed. "
            "Run: pip install 'flic[tensorboard]'"
        ) from None
    with SummaryWriter(str(folder)) as writer:
        for round in report.rounds:
            for name, value in _scalars(round, report.measure.name).items():
                writer.add_scalar(name, value, round.number)


def _scalars(round: Round, measure: str) -> dict[str, float]:
    scores = {f"{measure}/test": round.test, f"{measure}/validation": round.validation}
    known = {name: value for name, value in scores.items() if value is not None}
    losses = {f"loss/{term}": value for term, value in round.losses.items()}
    return known | losses | {"traffic/bytes": round.bytes_sent}
