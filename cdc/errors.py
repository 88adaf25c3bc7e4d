"""Errors of the program, the table ``error -> action``, and their JSON form.

::

    CdcError(message, *, hint, **context)
      ConfigError                          PAUSE        exit 2
      PrerequisiteError                    RETRY        exit 3
      SourceError
        SourceUnavailable                  RETRY        exit 3
        SourceRewound                      ABORT_OPEN
        PositionLost, ServerMismatch, DecodeError, SchemaMismatch,
        DdlStop, UnsupportedRowFormat, SnapshotIncomplete, SourceActionRequired, ReaderConflict   PAUSE
      SinkError
        SinkUnavailable, SinkBusy          RETRY        exit 3 (SinkUnavailable)
        CommitOutcomeUnknown               RESOLVE
        PreparedLoadLost                   REPLAY
        LoadRejected, TargetMismatch, TargetLost, SinkOwnershipError, SinkLimitExceeded   PAUSE
      LeaseLost                            EXIT
      CheckpointError                      RETRY        exit 3
      any other exception                  RETRY
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.model.schema_change import SchemaChange

GAP_HINT = "`cdc resume NAME --accept-gap` omits these changes and loads the table again, if the source has tables."
GAP_SNAPSHOT_HINT = (
    "`cdc resume NAME --accept-gap` omits these changes; then load the tables that they changed again with "
    "`cdc snapshot`."
)
GAP_OLDEST_HINT = (
    "`cdc resume NAME --accept-gap` continues with the oldest changes that the server has, and loads all mapped "
    "tables again."
)
MISSING_FILES_HINT = (
    "Restore the complete files, then `cdc resume NAME`. If they are lost, `cdc resume NAME --accept-gap` continues "
    "without their changes."
)
OTHER_FILES_HINT = (
    "Restore the files that the job has read, or correct `source.path`. Read other files with a job of another name."
)

_WITHOUT_VALUES = (  # names of ``context`` that never have values of rows
    "table", "tables", "column", "topic", "partition", "file", "position", "server", "host", "port", "path",
)  # fmt: skip
STATEMENT_START = 200  # characters of a statement in the context of an error

_COMMAND = re.compile(
    r"`cdc (?P<verb>pause|resume|replay-bad|snapshot|status|stop|logs|restart|verify)"
    r"(?: NAME| \.\.\.|(?! [a-z0-9_]))(?P<end>[` ])"
)


def with_job(hint: str, job: str) -> str:
    """Return a hint with the job's name in its commands. The code that raises an error does not know the name."""

    def named(found: re.Match[str]) -> str:
        table = " TABLE" if found["verb"] == "snapshot" and found["end"] == "`" else ""
        return f"`cdc {found['verb']} {job}{table}{found['end']}"

    return _COMMAND.sub(named, hint)


class CdcError(Exception):
    """An error: what failed, where, and how to fix it.

    ``hint`` is one command or setting. ``context`` names table, label, position and so on, never a secret.
    Message and ``context`` may have values of rows, ``hint`` never has.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context = context

    @property
    def location(self) -> str:
        """Return ``context`` as text, "" if it is empty."""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.context.items())

    def __str__(self) -> str:
        location = self.location
        return " ".join(part for part in (self.message, f"({location})." if location else "", self.hint) if part)


class ConfigError(CdcError):
    """The job file or the command line is not valid. The job did not start."""

    exit_code = 2


class PrerequisiteError(CdcError):
    """Something that the program needs is missing: Java, a free port, a server of the demo."""

    exit_code = 3


class SourceError(CdcError):
    """The base of all errors of the source."""


class SourceUnavailable(SourceError):
    """The source server cannot be reached, or does not accept connections at the moment."""

    exit_code = 3


class SourceRewound(SourceError):
    """After a reconnect the receiver cannot continue at the position that it reached. The open cycle is read again."""


class PositionLost(SourceError):
    """The source no longer has the changes after the job's position."""


class ServerMismatch(SourceError):
    """The server at the address is another one, and it does not have the job's history."""


class DecodeError(SourceError):
    """The source sent bytes that do not follow the format. ``context`` has file, offset, event, table and column."""


class SchemaMismatch(SourceError):
    """A row does not match the known schema of its table."""


class DdlStop(SourceError):
    """A DDL statement changes a mapped table. The job's position is just before the statement."""

    change: SchemaChange | None = None  # what the statement does, if it could be read


class UnsupportedRowFormat(SourceError):
    """The binlog has row images that are not FULL, or statement-based DML, for a mapped table."""


class SnapshotIncomplete(SourceError):
    """A snapshot has read far fewer rows of a table than the server counts in it."""


class SourceActionRequired(SourceError):
    """Only a person can resolve the state of the source, for example a prepared XA transaction."""


class ReaderConflict(SourceActionRequired):
    """Another reader uses this job's server id, for example an older process of this job."""


class SinkError(CdcError):
    """The base of all errors of the sink."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached at the moment."""

    exit_code = 3


class SinkBusy(SinkError):
    """The sink is overloaded. Retry after ``after_s`` seconds."""

    def __init__(self, message: str, *, hint: str, after_s: float, **context: object) -> None:
        super().__init__(message, hint=hint, **context)
        self.after_s = after_s


class CommitOutcomeUnknown(SinkError):
    """The reply to a commit was lost. The job asks for ``state(load)``, then commits, aborts or loads again."""


class PreparedLoadLost(SinkError):
    """The sink no longer has prepared loads. ``context['labels']`` names them; their range is read and loaded again."""


class LoadRejected(SinkError):
    """The sink rejected rows. ``context`` has the first rejected rows and their keys."""


class TargetMismatch(SinkError):
    """The target table does not match the mapping."""


class TargetLost(SinkError):
    """A target table that had committed rows is missing, was replaced or is an older copy."""


class SinkOwnershipError(SinkError):
    """The sink has commits of another incarnation of this job, or commits that the job's state does not have."""


class SinkLimitExceeded(SinkError):
    """A load exceeds a limit of the sink. The message names the setting."""


class CheckpointError(CdcError):
    """The state store cannot be read or written (disk full, locked, damaged)."""

    exit_code = 3


class LeaseLost(CdcError):
    """Another process runs this job now."""


class ErrorAction(Enum):
    """The actions that follow from an error. Each comment names the code that performs the action."""

    RETRY = "retry"  # with back-off, without limit: receivers reconnect, Committer commits again, Job starts a new run
    PAUSE = "pause"  # Consumer: commit whole transactions first. Job: PAUSED until a person acts; the hint says how
    RESOLVE = "resolve"  # Committer: ask the sink for the state of the loads before the commit is repeated
    REPLAY = "replay"  # Consumer, Recovery: replay, which means to read and load the range first..last again
    ABORT_OPEN = "abort_open"  # Consumer: abort the OPEN checkpoint and read its range again
    EXIT = "exit"  # Job: the process ends


_ACTIONS: dict[type[BaseException], ErrorAction] = {
    CdcError: ErrorAction.RETRY,
    ConfigError: ErrorAction.PAUSE,
    PrerequisiteError: ErrorAction.RETRY,
    SourceError: ErrorAction.RETRY,
    SourceUnavailable: ErrorAction.RETRY,
    SourceRewound: ErrorAction.ABORT_OPEN,
    PositionLost: ErrorAction.PAUSE,
    ServerMismatch: ErrorAction.PAUSE,
    DecodeError: ErrorAction.PAUSE,
    SchemaMismatch: ErrorAction.PAUSE,
    DdlStop: ErrorAction.PAUSE,
    UnsupportedRowFormat: ErrorAction.PAUSE,
    SnapshotIncomplete: ErrorAction.PAUSE,
    SourceActionRequired: ErrorAction.PAUSE,
    ReaderConflict: ErrorAction.PAUSE,
    SinkError: ErrorAction.RETRY,
    SinkUnavailable: ErrorAction.RETRY,
    SinkBusy: ErrorAction.RETRY,
    CommitOutcomeUnknown: ErrorAction.RESOLVE,
    PreparedLoadLost: ErrorAction.REPLAY,
    LoadRejected: ErrorAction.PAUSE,
    TargetMismatch: ErrorAction.PAUSE,
    TargetLost: ErrorAction.PAUSE,
    SinkOwnershipError: ErrorAction.PAUSE,
    SinkLimitExceeded: ErrorAction.PAUSE,
    CheckpointError: ErrorAction.RETRY,
    LeaseLost: ErrorAction.EXIT,
}
_RETRIES: dict[type[BaseException], int] = {
    DecodeError: 1,  # a bit that changed in the network is correct at the second read; damage on the disk remains
    ReaderConflict: 5,  # an older process of this job has lost the fence and ends at its first conflict
}


def action_for(error: BaseException, repeats: int | None = None) -> ErrorAction:
    """Return the action for ``error``. Errors that are not listed are transient: RETRY.

    A few errors are retried before their action applies. ``repeats``: how often in a row the caller has had the error
    before; None: the caller does not count, so the action applies at once.
    """
    for kind in type(error).__mro__:
        if kind in _ACTIONS:
            is_retried = repeats is not None and repeats < _RETRIES.get(kind, 0)
            return ErrorAction.RETRY if is_retried else _ACTIONS[kind]
    return ErrorAction.RETRY


def without_values(error: BaseException) -> str:
    """Return what failed and where, for another program: without the message, which may have values of rows.

    The first sentence of the error's class replaces it.
    """
    name, where = type(error).__name__, ""
    if isinstance(error, CdcError):
        if type(error) not in (CdcError, SourceError, SinkError):
            name += ": " + (type(error).__doc__ or "").split(".")[0]
        where = ", ".join(f"{one} {error.context[one]}" for one in _WITHOUT_VALUES if one in error.context)
    return f"{name} ({where})" if where else name


def error_to_json(error: BaseException, masked: Callable[[str], str] = str) -> dict[str, Any]:
    """Return ``error`` as JSON values, for another process. ``masked`` hides secrets in a text.

    Values of ``context`` that JSON cannot represent become text.
    """
    if not isinstance(error, CdcError):
        name = type(error).__name__
        error = CdcError(f"{name}: {error}", hint="See the job's log.")
    data: dict[str, Any] = {
        "class": type(error).__name__,
        "error": error.message,
        "hint": error.hint,
        "context": error.context,
        "exit_code": error.exit_code,
    }
    if isinstance(error, SinkBusy):
        data["after_s"] = error.after_s
    return {name: _plain(value, masked) for name, value in data.items()}


def _plain(value: object, masked: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one, masked) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one, masked) for one in value]
    return value if value is None or isinstance(value, int | float) else masked(str(value))


def error_from_json(data: Mapping[str, Any]) -> CdcError:
    """Return the error that ``error_to_json`` has written. A class that this version does not have becomes CdcError.

    Raises: KeyError, TypeError, ValueError - ``data`` has another form.
    """
    kind = globals().get(str(data.get("class")))
    context = {str(name): value for name, value in dict(data.get("context", {})).items()}
    message, hint = str(data["error"]), str(data.get("hint", ""))
    if kind is SinkBusy:
        error: CdcError = SinkBusy(message, hint=hint, after_s=float(data["after_s"]), **context)
    elif isinstance(kind, type) and issubclass(kind, CdcError):
        error = kind(message, hint=hint, **context)
    else:
        error = CdcError(message, hint=hint, **context)
    error.exit_code = int(data.get("exit_code", error.exit_code))
    return error
