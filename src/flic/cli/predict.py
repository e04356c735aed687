"""`flic predict` and `flic evaluate`: use a client's model on new rows of that client."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.check import Format, need_tables
from flic.cli.screen import notice, say, table
from flic.errors import ConfigError
from flic.notation import counted

if TYPE_CHECKING:
    from flic.silos.fitted import FittedClient
    from flic.silos.predicting import Measured

Fitted = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that flic fit made.")]
Encoding = Annotated[str, typer.Option(help="Encoding of a text file, such as cp1252.")]
Name = Annotated[
    str, typer.Option("--client", metavar="NAME", help="Client that the rows belong to.")
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE.csv", help="File for the predictions.")
]


def predict(
    folder: Fitted,
    data: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Table of new rows: CSV, TSV, Parquet or Feather."),
    ],
    client: Name,
    out: Out,
    encoding: Encoding = "utf-8",
) -> None:
    """Predict new rows of a client, in their order: a class with probabilities, or a value."""
    need_tables("predict")
    from flic.silos.folder import load

    write_predictions(load(folder).client(client), data, out, encoding=encoding)


def write_predictions(
    model: "FittedClient", data: Path, out: Path, *, encoding: str = "utf-8"
) -> None:
    """Predict the rows of a file, and show the path of the predictions."""
    from flic.silos.predicting import predict_file

    if out.is_dir():
        raise ConfigError(f"--out is {out}, a folder; expected a file. Name one.")
    if out.suffix.lower() in (".parquet", ".feather", ".arrow", ".xlsx"):
        raise ConfigError(
            f"--out is {out}; expected a name that ends in .csv, since CSV is what flic writes."
        )
    if out.exists() and data.exists() and out.samefile(data):
        raise ConfigError(f"--out is {out}, the file that is read; expected another file.")
    count = predict_file(model, data, out, tell=notice, encoding=encoding)
    say(f"wrote {counted(count, 'prediction')} to {out}")


def evaluate(
    folder: Fitted,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Table of rows with known labels.")],
    client: Name,
    format: Format = "text",
    encoding: Encoding = "utf-8",
) -> None:
    """Measure a client's model on labelled rows; rows that it was trained on are left out."""
    need_tables("evaluate")
    from flic.silos.folder import load

    measure(load(folder).client(client), data, format, who="client", encoding=encoding)


def measure(
    model: "FittedClient", data: Path, format: Format, *, who: str, encoding: str = "utf-8"
) -> None:
    """Measure a model on the labelled rows of a file, and say which of them it was trained on."""
    from flic.silos.predicting import evaluate_file

    found = evaluate_file(model, data, tell=notice, encoding=encoding)
    _show_metrics(model.name, found, format, who=who)
    if found.left_out:
        notice(f"left out {counted(found.left_out, 'row')} that the model was trained on.")
    if found.trained:
        notice("the model was trained on all of these rows; expect worse figures on new rows.")
    if model.trained is None:
        notice("an older version of flic made the model: which rows it saw is not recorded.")


def _show_metrics(name: str, measured: "Measured", format: Format, *, who: str) -> None:
    """Print the metrics of a model on labelled rows."""
    if format == "json":
        known = {name: None if v != v else v for name, v in measured.figures.items()}
        rows = {"trained_rows": measured.trained, "trained_rows_left_out": measured.left_out}
        say(json.dumps({who: name, "rows": measured.rows, **rows, **known}))
        return
    shown = [[name.replace("_", " "), f"{v:.4f}"] for name, v in measured.figures.items()]
    table(f"{name}, {counted(measured.rows, 'row')}", ["metric", "value"], shown)
