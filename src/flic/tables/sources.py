"""Raw rows of all clients, from the files that a description names.

There is one file per client, or one wide file with a site column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from flic.data.findings import Finding
from flic.errors import DataError
from flic.notation import are, counted, quoted
from flic.tables.declared import Declared
from flic.tables.federation_file import Client, FederationFile
from flic.tables.labels import LabelNames, key_texts
from flic.tables.reading import read_table
from flic.tables.values import text_of


@dataclass(frozen=True, eq=False)
class RawClient:
    """Rows of a client as read, and the declarations about them."""

    name: str
    frame: pd.DataFrame
    label: str
    declared: Declared
    own: frozenset[str] = frozenset()  # columns that must exist, since the client names them
    labels: LabelNames | None = None
    site: tuple[str, str] | None = None  # the column that tells sites apart, and its value here
    empty_share: float = 1.0  # columns with a larger share of missing values are not its features


def fatal(client: str | None, message: str) -> Finding:
    """Finding that stops a fit."""
    return Finding(client, True, _by(client, message))


def notice(client: str | None, message: str) -> Finding:
    """Finding that is only worth mentioning."""
    return Finding(client, False, _by(client, message))


def _by(client: str | None, message: str) -> str:
    return message if client is None else f"Client '{client}': {message}"


def raw_clients(file: FederationFile, root: Path) -> tuple[list[RawClient], list[Finding]]:
    """Rows of the clients whose files can be read, and findings about the others."""
    if file.data is not None:
        try:
            return _raw_sites(file, root)
        except DataError as error:
            return [], [fatal(None, str(error))]
    raw: list[RawClient] = []
    findings: list[Finding] = []
    for client in file.clients:
        try:
            raw.append(raw_client(client, file, root))
        except DataError as error:
            findings.append(fatal(client.name, str(error)))
    return raw, findings


def raw_client(client: Client, file: FederationFile, root: Path) -> RawClient:
    """Rows of one client that has a file of its own."""
    label = client.label or file.label
    if label is None:
        raise DataError("has no `label`; expected the name of its label column. Add `label`.")
    frame = read_table(
        root / client.data,
        query=client.query,
        encoding=client.encoding or file.encoding,
        max_bytes=file.max_bytes,
        max_seconds=file.max_query_s,
    )
    own = client.only()
    return RawClient(
        name=client.name,
        frame=frame,
        label=label,
        declared=own.over(file.only()).apart(frame.columns),
        own=frozenset(own.columns),
        labels=client.labels,
    )


def _raw_sites(file: FederationFile, root: Path) -> tuple[list[RawClient], list[Finding]]:
    """One client per value of the site column, in the order of the file or of `sites`."""
    assert file.data is not None
    assert file.site is not None
    path = root / file.data
    if file.label is None:
        raise DataError(f"{path}: got no `label`; expected the name of its label column. Add it.")
    frame = read_table(
        path,
        query=file.query,
        encoding=file.encoding,
        max_bytes=file.max_bytes,
        max_seconds=file.max_query_s,
    )
    if file.site not in frame.columns:
        raise DataError(
            f"{path}: has no site column '{file.site}'; expected one of its columns "
            f"{quoted(frame.columns)}. Correct `site`."
        )
    declared_sites = [text_of(site) for site in file.sites or ()]
    sites = key_texts(frame, file.site, file, names=declared_sites)
    found = list(dict.fromkeys(site for site in sites if site is not None))
    wanted = found if file.sites is None else declared_sites
    findings = list(_about_sites(path, sites, found, wanted))
    declared = file.only()
    rows = frame.drop(columns=file.site)
    raw = [
        RawClient(
            name=site,
            frame=rows.loc[sites == site].reset_index(drop=True),
            label=file.label,
            declared=declared,
            site=(file.site, site),
            empty_share=file.empty_share,
        )
        for site in wanted
        if site in found
    ]
    return raw, findings


def _about_sites(
    path: Path, sites: np.ndarray, found: list[str], wanted: list[str]
) -> Iterator[Finding]:
    nowhere = sum(site is None for site in sites)
    if nowhere:
        yield notice(
            None, f"{path}: {counted(nowhere, 'row')} without a site {are(nowhere)} dropped."
        )
    unknown = [site for site in wanted if site not in found]
    if unknown:
        yield fatal(
            None,
            f"{path}: `sites` has {quoted(unknown)}; expected values of the site column, "
            f"{quoted(found)}. Correct `sites`.",
        )
