"""Values on the path from receiver to sink: Changes, Batch, LoadName, PreparedLoad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line reads the state file without waiting for pyarrow
    import pyarrow as pa

    from cdc.model.position import Position
    from cdc.model.schema import TableSchema

FENCE_STEP = 1 << 40  # number of sequences per run: enough for 12 days at a million rows per second


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of one table with one TableSchema, in source order.

    Shape: the needed source columns in table order, with types as ``Column.arrow``, then ``__deleted`` (bool) and
    ``__sequence`` (int64, strictly increasing within a Batch and from Batch to Batch of a run).
    """

    schema: TableSchema
    rows: pa.RecordBatch
    # of the rows in memory. If it is not given, Arrow computes it, which takes up to a millisecond for 200 columns
    bytes: int = field(default=-1, compare=False)

    def __post_init__(self) -> None:
        if self.bytes < 0:
            object.__setattr__(self, "bytes", self.rows.nbytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """One or more whole transactions, or one part of a large one; never the end of one and the start of the next."""

    changes: tuple[Changes, ...]  # more than one of a table only if its schema changed or a size limit split them
    first: Position  # at the start of the first transaction
    last: Position  # at the end of the last transaction; of a part: at the start of its transaction
    ends_transaction: bool  # False: more parts of the same transaction follow
    entries: int  # number of source events of any kind
    rows: int
    bytes: int  # source bytes of the rows' events
    oldest_commit_us: int | None  # commit time of the first and last transaction, microseconds since 1970, UTC;
    newest_commit_us: int | None  # None if the source has no commit times
    gaps: frozenset[str] = frozenset()  # tables whose changes were omitted here, because a user accepted the gap
    is_planned: bool = False  # a range that executors read: it has no changes yet, and ``entries`` is an upper limit


@dataclass(frozen=True, slots=True)
class RequiredColumns:
    """The columns that a channel needs of a source table."""

    columns: frozenset[str]  # source names; key columns included
    key: frozenset[str]  # source columns from which the key of the channel is computed
    copies_key: bool = True  # every column of the key is a copy of a source column


@dataclass(frozen=True, slots=True, order=True)
class LoadName:
    """The parts of a label. Two different contents never have the same name."""

    job: str
    incarnation: str  # 8 random hex digits, for the life of a job
    fence: int  # number of the run
    checkpoint: int
    channel: str  # target table, "ods.orders"
    task: int  # number of the Task within checkpoint and channel, from 0
    part: int = 0  # number of the part within the Task
    attempt: int = 0  # increases with each replay of the load


@dataclass(frozen=True, slots=True)
class PreparedLoad:
    """A load that is durable in the sink and not visible yet."""

    name: LoadName
    table: str  # target table
    rows: int
    bytes: int
    detail: Mapping[str, Any] = field(default_factory=dict)  # JSON of the sink, such as transaction id or staged files

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PreparedLoad:
        """Return the load of ``to_json``."""
        return cls(**{**data, "name": LoadName(**data["name"])})


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state that shows whether a target is the table that the job wrote."""

    identity: str  # changes whenever the table is created again
    checkpoint: int | None = None  # newest one of the job's incarnation in this table; None: unknown, -1: none
    missing_files: int = 0  # number of data files in its newest version that do not exist
    lacks_rows: bool = False  # the table did not exist during a commit; only a reload completes it
