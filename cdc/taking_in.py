"""Which tables a run goes on without, and which of those it can map by now and loads whole."""

from __future__ import annotations

import logging

from cdc.binlog.catalog import mapped_tables, table_schemas
from cdc.binlog.server import Server
from cdc.checkpoint import Checkpoint
from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.names import table_of, table_text
from cdc.parts import Parts

_log = logging.getLogger(__name__)


def restored(parts: Parts) -> frozenset[str]:
    """Restore the tables that are left out; return those that can be mapped by now, which must be loaded whole.

    A table that a channel no longer matches, or that the source no longer has, is taken off the list. One that can be
    mapped is taken in only where its rows can be read from tables: the stream alone has a part of them.
    Calls: at the start of each run, before the receiver opens. Raises: SourceUnavailable, CheckpointError.
    """
    committed = parts.store.last_committed(parts.run.job)
    known: list[Checkpoint] = [*([committed] if committed else []), *parts.store.unfinished()]
    saved = {name: one for checkpoint in known for name, one in checkpoint.left_out.items()}
    routes = parts.routes
    routes.restore({name for checkpoint in known for name in checkpoint.loaded}, saved)
    for name in sorted(saved):
        if not routes.matches(name):
            routes.take_in(name)
    left = sorted(routes.left_out)
    if not left or parts.snapshot is None:
        return frozenset()
    taken = set()
    with Server(parts.snapshot.endpoint) as server:
        there = {table_text(*name) for name in mapped_tables(server, lambda *name: table_text(*name) in left)}
        schemas = table_schemas(server, [table_of(name) for name in left], lambda *_: True)
    for name in left:
        schema = schemas.get(table_of(name))
        if schema is None:
            if name not in there:
                routes.take_in(name)
            continue
        try:
            routes.reads(schema)
        except (ConfigError, SchemaMismatch, TargetMismatch):
            continue
        routes.take_in(name)
        if routes.maps(*table_of(name)):
            taken.add(name)
            _log.warning("%s was left out and can be mapped now: it is loaded whole", name)
    return frozenset(taken)
