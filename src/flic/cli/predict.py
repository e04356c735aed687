"""`flic predict` and `flic evaluate`: use a client's model on new rows of that client."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flic.cli.check import Format, need_pandas
from flic.cli.screen import notice, say, table
from flic.errors import ConfigError
from flic.notation import counted

if TYPE_CHECKING:
    from flic.silos.fitted import FittedClient
    from flic.silos.predicting import Measured

Fitted = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that flic fit made.")]
Encoding = Annotated[str, typer.Option(help="Of a text file, such as cp1252.")]
Name = Annotated[str, typer.Option("--client", metavar="NAME", help="Whose rows these are.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE.csv", help="Predictions.")]


def predict(
    folder: Fitted,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV, Parquet or Feather.")],
    client: Name,
    out: Out,
    encoding: Encoding = "utf-8",
) -> None:
    """Predict new rows of a client: class and probabilities, or value, in the order of the rows."""
    need_pandas("predict")
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
            f"--out is {out}; expected a name that ends in .csv, since that is written."
        )
    if out.exists() and data.exists() and out.samefile(data):
        raise ConfigError(f"--out is {out}, the file that is read; expected another file.")
    count = predict_file(model, data, out, tell=notice, encoding=encoding)
    say(f"{counted(count, 'prediction')}: {out}")


def evaluate(
    folder: Fitted,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Rows with known labels.")],
    client: Name,
    format: Format = "text",
    encoding: Encoding = "utf-8",
) -> None:
    """Measure a client's model on rows of that client whose labels are known."""
    need_pandas("evaluate")
    from flic.silos.folder import load
    from flic.silos.predicting import evaluate_file

    fitted = load(folder).client(client)
    measured = evaluate_file(fitted, data, tell=notice, encoding=encoding)
    show_metrics(fitted.name, measured, format, who="client")


def show_metrics(name: str, measured: "Measured", format: Format, *, who: str, **more: int) -> None:
    """Print the metrics of a model on labelled rows, with `more` numbers for programs."""
    if format == "json":
        known = {name: None if v != v else v for name, v in measured.figures.items()}
        say(json.dumps({who: name, "rows": measured.rows, **more, **known}))
        return
    shown = [[name.replace("_", " "), f"{v:.4f}"] for name, v in measured.figures.items()]
    table(f"{name}, {counted(measured.rows, 'row')}", ["metric", "value"], shown)
