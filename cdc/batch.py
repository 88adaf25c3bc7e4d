"""What travels from receiver to sink and back: Changes, Batch, LoadName, PreparedLoad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line reads the state file without waiting for pyarrow
    import pyarrow as pa

    from cdc.position import Position
    from cdc.schema import TableSchema

FENCE_STEP = 1 << 40  # sequences of one run of a job; a run would need years at a million rows a second


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of one table under one TableSchema, in source order.

    Shape: the needed source columns in table order, Arrow types as ``Column.arrow``, then ``__deleted`` (bool) and
    ``__sequence`` (int64, rising strictly within a Batch and from Batch to Batch of a run).
    """

    schema: TableSchema
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Batch:
    """One or more whole transactions, or one piece of a large one; never the end of one and the start of the next."""

    changes: tuple[Changes, ...]  # several of one table only where its schema changed or a size limit cut them
    first: Position  # before the first transaction
    last: Position  # behind the last one; of a piece: before its transaction, the last place to go on from
    ends_transaction: bool  # False: more pieces of the same transaction follow
    entries: int  # source events, of any kind
    rows: int
    bytes: int  # source bytes of the rows' events
    oldest_commit_us: int | None  # commit time of the first and last transaction, microseconds since 1970, UTC;
    newest_commit_us: int | None  # None where the source tells none
    gaps: frozenset[str] = frozenset()  # tables whose changes were left out here, as a person has agreed to


@dataclass(frozen=True, slots=True)
class Reads:
    """What a channel needs of a source table."""

    columns: frozenset[str]  # source names; key columns included
    key: frozenset[str]  # source columns that the channel's key is made of


@dataclass(frozen=True, slots=True, order=True)
class LoadName:
    """What a label is made of: never the same for two different contents."""

    job: str
    incarnation: str  # 8 hex digits, drawn once in a job's life
    fence: int  # number of the run
    checkpoint: int
    channel: str  # target table, "ods.orders"
    task: int  # number of the Task within checkpoint and channel, from 0
    part: int = 0  # number of the part within the Task
    attempt: int = 0  # grows when a load is made again


@dataclass(frozen=True, slots=True)
class PreparedLoad:
    """A load that is durable at the sink and not yet visible."""

    name: LoadName
    table: str  # target table
    rows: int
    bytes: int
    detail: Mapping[str, Any] = field(default_factory=dict)  # the sink's own JSON: transaction id, staged files

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        names = LoadName.__dataclass_fields__
        return {
            "name": {name: getattr(self.name, name) for name in names},
            "table": self.table,
            "rows": self.rows,
            "bytes": self.bytes,
            "detail": dict(self.detail),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PreparedLoad:
        """The load that ``to_json`` wrote."""
        return cls(LoadName(**data["name"]), data["table"], data["rows"], data["bytes"], data["detail"])


@dataclass(frozen=True, slots=True)
class TargetState:
    """What proves that a target table is the one that the job wrote."""

    identity: str  # changes whenever the table is created again
    checkpoint: int | None = None  # newest one of the job's incarnation in this table; None: unknown, -1: none
    missing_files: int = 0  # data files that its newest version names and that do not exist
