"""Every error of the program, and the one place that says what follows from it.

::

    CdcError(message, *, mend, **where)
      ConfigError                          the job file is refused            exit 2
      SourceError
        SourceUnavailable                  RETRY
        SourceRewound                      ABORT_OPEN
        PositionLost, WrongServer, DecodeError, SchemaMismatch,
        SchemaChanged, UnsupportedImage, SnapshotIncomplete, SourceBlocked   PAUSE
      SinkError
        SinkUnavailable, SinkBusy          RETRY
        CommitUnknown                      RESOLVE
        LoadLost                           RELOAD
        LoadRejected, TargetMismatch, TargetLost, SinkForeign, SinkSetting   PAUSE
      LeaseLost                            EXIT
      CheckpointError, anything else       RETRY
"""

from __future__ import annotations

import re
from enum import Enum

LEAVE_OUT = (
    "`cdc resume NAME --accept-gap` goes on without these changes and loads the table again, if the source has tables."
)
LOAD_AGAIN = (
    "`cdc resume NAME --accept-gap` goes on without these changes; then load the tables that they touched again with "
    "`cdc snapshot`."
)
READ_OLDEST = (
    "`cdc resume NAME --accept-gap` goes on with the oldest changes that the server has, and loads all mapped tables "
    "again."
)


_COMMAND = re.compile(
    r"`cdc (?P<verb>pause|resume|snapshot|status|stop|logs|restart)(?: NAME| \.\.\.|(?! [a-z0-9_]))(?P<end>[` ])"
)


def with_job(mend: str, job: str) -> str:
    """Return a hint with the job's name in its commands: errors arise where the name is not known."""

    def named(found: re.Match[str]) -> str:
        table = " TABLE" if found["verb"] == "snapshot" and found["end"] == "`" else ""
        return f"`cdc {found['verb']} {job}{table}{found['end']}"

    return _COMMAND.sub(named, mend)


class CdcError(Exception):
    """What happened, where, and the mend: three clauses of one message.

    ``mend`` is a command or a setting that the reader can act on. ``where`` names table, label, position and so on;
    secrets never go there.
    """

    exit_code = 1

    def __init__(self, message: str, *, mend: str, **where: object) -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend
        self.where = where

    @property
    def place(self) -> str:
        """``where`` in words, "" if there is none."""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.where.items())

    def __str__(self) -> str:
        place = self.place
        return " ".join(part for part in (self.message, f"({place})." if place else "", self.mend) if part)


class ConfigError(CdcError):
    """The job file or the command line is refused; nothing ran."""

    exit_code = 2


class SurroundingsError(CdcError):
    """Something this program needs is not there: Java, a server to demonstrate on, a port."""

    exit_code = 3


class SourceError(CdcError):
    """Anything that comes from the source side."""


class SourceUnavailable(SourceError):
    """The server cannot be reached or refuses us for now."""

    exit_code = 3


class SourceRewound(SourceError):
    """After a reconnect the receiver cannot go on behind what it handed out; gather the open checkpoint again."""


class PositionLost(SourceError):
    """The source no longer has what comes after our Position."""


class WrongServer(SourceError):
    """Another server answers at the address, and it does not continue our history."""


class DecodeError(SourceError):
    """Bytes that do not follow the format; ``where`` has file, offset, event, table and column as far as known."""


class SchemaMismatch(SourceError):
    """A row does not fit the schema that is known for its table."""


class SchemaChanged(SourceError):
    """DDL touches a mapped table; the Position lies before the statement."""


class UnsupportedImage(SourceError):
    """A row image that is not FULL, or statement-based DML, on a mapped table."""


class SnapshotIncomplete(SourceError):
    """A snapshot has read far fewer rows than the server counts."""


class SourceBlocked(SourceError):
    """Something on the source side that a person must end: a second reader under our id, changes left unlogged."""


class ReaderConflict(SourceBlocked):
    """Another reader took the stream under this job's server id, for example an older process of this job."""


class SinkError(CdcError):
    """Anything that comes from the sink side."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached for now."""

    exit_code = 3


class SinkBusy(SinkError):
    """The sink asks for patience; try again after ``after_s`` seconds."""

    def __init__(self, message: str, *, mend: str, after_s: float, **where: object) -> None:
        super().__init__(message, mend=mend, **where)
        self.after_s = after_s


class CommitUnknown(SinkError):
    """An answer was lost: ask ``state(load)``, then commit, abort or load again."""


class LoadLost(SinkError):
    """The sink no longer has a prepared load; ``where['labels']`` names them. The range is loaded again."""


class LoadRejected(SinkError):
    """The sink refused rows; ``where`` has the first bad rows and their keys."""


class TargetMismatch(SinkError):
    """The target table does not fit the mapping."""


class TargetLost(SinkError):
    """A target that holds committed rows is missing, was replaced or is an older copy."""


class SinkForeign(SinkError):
    """The sink has seen another incarnation of this job, or is ahead of our state."""


class SinkSetting(SinkError):
    """The load outgrows a setting, which the message names."""


class CheckpointError(CdcError):
    """The state store cannot be read or written (disk full, locked, damaged)."""


class LeaseLost(CdcError):
    """Another process runs this job now."""


class Answer(Enum):
    """What follows from an error."""

    RETRY = "retry"  # with back-off, for as long as it takes
    PAUSE = "pause"  # a person must act; the mend says how
    RESOLVE = "resolve"  # ask the sink for the load's state
    RELOAD = "reload"  # the range first..last is read and loaded again
    ABORT_OPEN = "abort_open"  # the open checkpoint is gathered again
    EXIT = "exit"  # the process ends


_ANSWERS: tuple[tuple[type[BaseException], Answer], ...] = (
    (ConfigError, Answer.PAUSE),
    (SourceRewound, Answer.ABORT_OPEN),
    (PositionLost, Answer.PAUSE),
    (WrongServer, Answer.PAUSE),
    (DecodeError, Answer.PAUSE),
    (SchemaMismatch, Answer.PAUSE),
    (SchemaChanged, Answer.PAUSE),
    (UnsupportedImage, Answer.PAUSE),
    (SnapshotIncomplete, Answer.PAUSE),
    (SourceBlocked, Answer.PAUSE),
    (CommitUnknown, Answer.RESOLVE),
    (LoadLost, Answer.RELOAD),
    (LoadRejected, Answer.PAUSE),
    (TargetMismatch, Answer.PAUSE),
    (TargetLost, Answer.PAUSE),
    (SinkForeign, Answer.PAUSE),
    (SinkSetting, Answer.PAUSE),
    (LeaseLost, Answer.EXIT),
)


def decide(error: BaseException) -> Answer:
    """What follows from ``error``. Whatever is not named may pass by itself: RETRY."""
    for kind, answer in _ANSWERS:
        if isinstance(error, kind):
            return answer
    return Answer.RETRY
