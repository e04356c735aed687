"""Errors that a user can cause, as one tree.

FlicError
├── ConfigError          a setting is unknown, of the wrong type or impossible
├── DataError            a client's rows or labels cannot be used
│   └── SchemaMismatch   features do not fit what the client declares
├── NumericalError
│   └── Diverged         a loss left the finite numbers; the last good state is kept
├── FederationError
│   └── IncompatibleUpdate   an update holds names or shapes the server does not know
└── RunFolderError       a run folder is occupied, damaged or of another run
    ├── OtherRun         a checkpoint was made with other settings, data or code
    └── Damaged          a file, or a part of it, is not what flic wrote

Messages name who has the problem, what it got, what is expected, and what to do.
"""


class FlicError(Exception):
    """Base of all errors that flic raises on purpose."""


class ConfigError(FlicError):
    """A setting is unknown, of the wrong type, or impossible."""


class DataError(FlicError):
    """A client's rows, features or labels cannot be used."""


class SchemaMismatch(DataError):
    """Features do not fit what the client declares."""


class NumericalError(FlicError):
    """A computation got numbers that it is not defined for."""


class Diverged(NumericalError):
    """A loss is no longer finite."""


class FederationError(FlicError):
    """A round could not be done."""


class IncompatibleUpdate(FederationError):
    """An update holds names or shapes that the server does not know."""


class RunFolderError(FlicError):
    """A run folder is occupied, damaged, or belongs to another run."""


class OtherRun(RunFolderError):
    """A checkpoint was made with other settings, data or code than the run has."""


class Damaged(RunFolderError):
    """A file, or a part of it, is not what flic wrote."""
