"""`flic predict` and `flic evaluate`: a client's model on new rows of that client."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flic.cli.check import Format, need_pandas
from flic.cli.screen import notice, table
from flic.errors import ConfigError

Fitted = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that flic fit made.")]
Encoding = Annotated[str, typer.Option(help="Of a text file, such as cp1252.")]
Name = Annotated[str, typer.Option("--client", metavar="NAME", help="Whose rows these are.")]


def predict(
    folder: Fitted,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV, Parquet or Feather.")],
    client: Name,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.csv", help="Predictions.")],
    encoding: Encoding = "utf-8",
) -> None:
    """Predict new rows of a client: class and probabilities, or value, in the order of the rows."""
    need_pandas("predict")
    from flic.silos.folder import load
    from flic.silos.predicting import predict_file

    if out.is_dir():
        raise ConfigError(f"--out is {out}, a folder; expected a file. Name one.")
    if out.exists() and data.exists() and out.samefile(data):
        raise ConfigError(f"--out is {out}, the file that is read; expected another file.")
    count = predict_file(load(folder).client(client), data, out, tell=notice, encoding=encoding)
    typer.echo(f"{count} predictions: {out}")


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

    rows, found = evaluate_file(load(folder).client(client), data, tell=notice, encoding=encoding)
    if format == "json":
        known = {name: None if value != value else value for name, value in found.items()}
        typer.echo(json.dumps({"client": client, "rows": rows, **known}))
        return
    shown = [[name.replace("_", " "), f"{value:.4f}"] for name, value in found.items()]
    table(f"{client}, {rows} rows", ["metric", "value"], shown)
