"""The options of ``cdc resume``, and how long they apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdc.api.models import Resume
from cdc.errors import ConfigError
from cdc.model.position import Position
from cdc.model.schema_change import SchemaChange
from cdc.state.base import AcknowledgedDdl, JobRecord, JobState, ResumeKind


class ResumePolicy:
    """Holds the options of the newest resume. They apply only to the first event after the position of the resume."""

    def __init__(self, options: Resume | None) -> None:
        self.options = options  # None: there was no resume, or the position has moved after it
        self._position: Position | None = None
        self._pending: SchemaChange | None = None
        self.resumed: str | None = None  # name of the pause to which the newest resume was applied
        self._is_verified = False  # a run has verified the targets since the last start or resume

    @property
    def accepts_server(self) -> bool:
        """Whether the job may continue from another server."""
        return self.options is not None and self.options.accept_server

    @property
    def reloads_missing(self) -> bool:
        """Whether the next run loads missing targets again.

        Only the first verification does so. The options can apply for a long time if the source has no changes, and a
        target that is lost later needs a new resume.
        """
        return self.options is not None and self.options.reload_missing and not self._is_verified

    @property
    def is_verified(self) -> bool:
        """Whether a run has verified the targets since the last start or resume."""
        return self._is_verified

    @property
    def applies(self) -> SchemaChange | None:
        """The change that the job makes whatever `schema_changes` says; None if there is none."""
        return self._pending if self.options is not None and self.options.apply_ddl else None

    def begin(self, options: Resume | None, position: Position | None, pending: SchemaChange | None) -> None:
        """Apply the options of a resume at ``position``, the position of the job.

        ``pending``: the change of the statement at which it was PAUSED, as it was read then. The columns before the
        statement may not be known any more.
        """
        self.options, self._is_verified = options, False
        self.start_at(position, pending)

    def start_at(self, position: Position | None, pending: SchemaChange | None) -> None:
        """Apply the options of a start at ``position``. ``pending``: see ``begin``."""
        self._position, self._pending = position, pending

    def take(self, options: Resume | None, record: JobRecord) -> bool:
        """Return whether a resume that was accepted ends the pause of the job. No other resume of this pause does.

        It does not if it is for a pause that has ended, or that another resume has ended. Its sender has not seen a
        statement or a gap at which the job was PAUSED later.
        """
        named = options.pause if options is not None else None
        if named is not None and named == self.resumed:
            return False
        if options is not None and _is_for_another_pause(options, record):
            return False
        self.resumed = record.pause
        return True

    def note_verified(self) -> None:
        """Note that a run has verified the targets."""
        self._is_verified = True

    def expire(self, position: Position) -> bool:
        """Drop the options if the position has moved. Return whether it has moved."""
        if position == self._position:
            return False
        self.options, self._position = None, position
        return True

    def acknowledged(self, record: JobRecord, position: Position | None) -> tuple[AcknowledgedDdl, ...]:
        """Return the DDL statements that this run and later ones skip, with the one at which the job is PAUSED.

        While an XA transaction is prepared, the position stays before it, and so may be far before the statement. The
        stream then delivers the statement again, also to later drivers. `cdc replay-bad` skips no statement: its user
        has decided about kept messages, and the job is PAUSED at the statement again.
        """
        if self.options is None or self.options.replay_bad:
            return record.acknowledged_ddl
        # after a gap or on another server, other statements may be at these positions
        is_same_log = not (self.options.accept_gap or self.options.accept_server)
        kept = [one for one in record.acknowledged_ddl if is_same_log and not _is_after(position, one.position)]
        if record.stopped_at_ddl is not None and not self.options.apply_ddl:
            kept.append(AcknowledgedDdl(record.stopped_at_ddl, self.options.past_ddl))
        return tuple(kept)


def check_resume(
    record: JobRecord, options: Resume, *, pause_requested: bool = False, resumed: str | None = None
) -> None:
    """Raise ConfigError if ``options`` do not match the pause of the job.

    ``pause_requested``: a user has requested a pause, which a running commit can delay. ``resumed``: name of the pause
    that another resume ends at the moment.
    """
    stays = (record.state, record.resume) == (JobState.PAUSED, ResumeKind.MANUAL) and record.pause != resumed
    if pause_requested and not stays and (options.pause is not None or options.replay_bad):  # not for this pause
        raise ConfigError(
            f"A pause of the job {record.name} was requested, and the job is not paused yet.",
            hint=f"See `cdc status {record.name}`, and resume the job when it is paused.",
        )
    if _is_for_another_pause(options, record):
        raise ConfigError(
            f"The job {record.name} is paused for another reason now: {record.reason}",
            hint=f"See `cdc status {record.name}`, and resume the job with the options for this pause.",
        )
    if not options.apply_ddl:
        return
    if options.past_ddl:
        raise ConfigError(
            "--apply-ddl applies the statement, and --past-ddl continues after it without a change of the targets.",
            hint="Use one of the two.",
        )
    if record.stopped_at_ddl is None:
        raise ConfigError(
            f"The job {record.name} is not paused at a DDL statement.",
            hint=f"`cdc status {record.name}` shows why it is paused.",
        )
    if record.pending_change is None:
        raise ConfigError(
            f"The job {record.name} cannot follow the statement at which it is paused: {record.reason}",
            hint=f"Change the target yourself, then run `cdc resume {record.name}`.",
        )


def acknowledged_statements(record: JobRecord) -> Mapping[Position, bool]:
    """Return the DDL statements that a receiver skips: position -> whether the resume had --past-ddl."""
    return {one.position: one.past_ddl for one in record.acknowledged_ddl}


def _is_for_another_pause(options: Resume, record: JobRecord) -> bool:
    """Return whether the sender of a resume has seen another pause than the one that it would end.

    A pause that ends automatically needs no decision of a person, so a resume without options may end it.
    """
    if options.pause is None or record.state is not JobState.PAUSED or options.pause == record.pause:
        return False
    return record.resume is ResumeKind.MANUAL or replace(options, pause=None) != Resume()


def _is_after(position: Position | None, statement: Position) -> bool:
    """Return whether a stream from ``position`` certainly does not deliver ``statement`` again."""
    try:
        return position is not None and position.reached(statement) and not statement.reached(position)
    except ValueError:  # the two positions cannot be compared
        return False
