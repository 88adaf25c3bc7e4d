"""Read binlog files through BinlogDecoder and build tables from its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.model.batch import Batch, RequiredColumns
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from cdc.sources.binlog.decoder.decoder import BinlogDecoder


class Everything:
    """Map every table of one database, with all columns. The key is that of the schema, or else the first column."""

    def __init__(self, database, key=None):
        self.database, self.key = database, key

    def maps(self, database, table):
        return database == self.database

    may_map = maps

    def leave_out(self, database, table, error):
        return False

    def reads(self, schema):
        names = [column.name for column in schema.columns]
        return RequiredColumns(frozenset(names), frozenset(self.key or schema.key or names[:1]))


class Schemas:
    """A TableSource of fixed schemas."""

    def __init__(self, schemas=()):
        self.schemas = {schema.name: schema for schema in schemas}

    def schema(self, table_map):
        return self.schemas[table_map.name]


@dataclass
class Outcome:
    batches: list[Batch] = field(default_factory=list)
    statements: list = field(default_factory=list)
    decoder: BinlogDecoder | None = None

    def rows(self, table=None):
        """Return all rows in order of sequence, as dicts."""
        found = [
            row
            for batch in self.batches
            for changes in batch.changes
            if table in (None, changes.schema.table)
            for row in changes.rows.to_pylist()
        ]
        return sorted(found, key=lambda row: row[SEQUENCE])

    def replay(self, table, key):
        """Return the table after all changes: key -> row without the columns of this project."""
        left = {}
        for row in self.rows(table):
            deleted = row.pop(DELETED)
            del row[SEQUENCE]
            identity = tuple(row[name] for name in key)
            if deleted:
                left.pop(identity, None)
            else:
                left[identity] = row
        return left


def decode(data, table_filter, *, framed=False, schemas=(), piece=None, start=None, **options):
    """Feed ``data`` in pieces and collect every Batch. Raise decoder errors."""
    outcome = Outcome()
    return decode_into(outcome, data, table_filter, framed=framed, schemas=schemas, piece=piece, start=start, **options)


def decode_into(outcome, data, table_filter, *, framed=False, schemas=(), piece=None, start=None, **options):
    """As ``decode``. ``outcome`` keeps the Batches before an error."""
    decoder = outcome.decoder = BinlogDecoder(
        table_filter=table_filter,
        tables=Schemas(schemas),
        on_statement=outcome.statements.append,
        start=start or BinlogPosition("binlog.000001", 4),
        sequence=options.pop("sequence", 0),
        framed=framed,
        **options,
    )
    at = 0
    while at < len(data):
        room = decoder.free_space()
        count = min(len(room), len(data) - at, piece or len(data))
        room[:count] = data[at : at + count]
        decoder.feed(count)
        at += count
        while (batch := decoder.next()) is not None:
            outcome.batches.append(batch)
    return outcome


def binlog_of(server, *statements, database=None):
    """Return the bytes of a binlog file that contains only ``statements``; each is SQL or (SQL, arguments)."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        name = cursor.fetchall()[-1][0]
        for statement in statements:
            cursor.execute(*((statement,) if isinstance(statement, str) else statement))
        connection.commit()
        cursor.execute("FLUSH BINARY LOGS")
    return (server.data / name).read_bytes()


def framed(file_bytes):
    """Return the events of a file as a server sends them: one packet each, split at 16 MiB."""
    at, sequence, packets = 4, 0, []
    while at < len(file_bytes):
        size = int.from_bytes(file_bytes[at + 9 : at + 13], "little")
        payload = b"\0" + file_bytes[at : at + size]
        while True:
            part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            packets.append(len(part).to_bytes(3, "little") + bytes([sequence % 256]) + part)
            sequence += 1
            if len(part) < 0xFFFFFF:
                break
        at += size
    return b"".join(packets)
