"""Tables of clients: read from files or frames, described, typed, checked and encoded."""

from flic.tables.columns import conform as conform
from flic.tables.columns import find_columns as find_columns
from flic.tables.declared import KINDS as KINDS
from flic.tables.declared import Declared as Declared
from flic.tables.declared import Kind as Kind
from flic.tables.federation_file import Client as Client
from flic.tables.federation_file import FederationFile as FederationFile
from flic.tables.federation_file import read_federation as read_federation
from flic.tables.labels import Labelling as Labelling
from flic.tables.loading import client_from_frame as client_from_frame
from flic.tables.loading import load_client as load_client
from flic.tables.loading import load_tables as load_tables
from flic.tables.loading import tables_from_frames as tables_from_frames
from flic.tables.reading import as_pandas as as_pandas
from flic.tables.reading import read_table as read_table
from flic.tables.reading import stream_table as stream_table
from flic.tables.table import Column as Column
from flic.tables.table import SiloTable as SiloTable
from flic.tables.table import TableFederation as TableFederation

__all__ = [
    "KINDS",
    "Client",
    "Column",
    "Declared",
    "FederationFile",
    "Kind",
    "Labelling",
    "SiloTable",
    "TableFederation",
    "as_pandas",
    "client_from_frame",
    "conform",
    "find_columns",
    "load_client",
    "load_tables",
    "read_federation",
    "read_table",
    "stream_table",
    "tables_from_frames",
]
