"""Tables that the job omits because they cannot be mapped. A run checks them again at its start."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.model.table_names import table_of, table_text
from cdc.mysql.catalog import mapped_tables, table_schemas
from cdc.mysql.server import Server
from cdc.run_context import RunContext
from cdc.state.base import Checkpoint
from channels.routes import Routes

_log = logging.getLogger(__name__)
_NO_TABLES_HINT = (
    "Exclude the table from this job, and load it with a job of another name that starts before its first change."
)


def restore_tables(context: RunContext) -> frozenset[str]:
    """Restore the saved list of omitted tables. Return those that can be mapped now, which need a full snapshot.

    A table is removed from the list if no channel matches it any more or the source no longer has it. A table that can
    be mapped now is removed only if the source has tables for a snapshot, because the stream has only a part of its
    rows. Calls: at the start of each run, before the receiver opens. Raises: SourceUnavailable, CheckpointError;
    ConfigError - a channel names a table of the list, and the source has no tables.
    """
    committed = context.store.last_committed(context.run.job)
    known: list[Checkpoint] = [*([committed] if committed else []), *context.store.unfinished()]
    saved = {name: one for checkpoint in known for name, one in checkpoint.left_out.items()}
    routes = context.routes
    joined = {one.name for checkpoint in known for one in checkpoint.schemas if not one.is_dropped}
    joined |= {name for checkpoint in known for name in checkpoint.snapshots}
    routes.restore({name for checkpoint in known for name in checkpoint.loaded}, saved, joined)
    for name in sorted(saved):
        if not routes.matches(name):
            routes.restore_table(name)
    left = sorted(routes.left_out)
    if not left:
        return frozenset()
    if context.snapshot is None:
        _refuse_named(routes, left)
        return frozenset()
    restored = set()
    with Server(context.snapshot.endpoint) as server:
        there = {table_text(*name) for name in mapped_tables(server, lambda *name: table_text(*name) in left)}
        schemas = table_schemas(server, [table_of(name) for name in left], lambda *_: True)
    for name in left:
        schema = schemas.get(table_of(name))
        if schema is None:
            if name not in there:
                routes.restore_table(name)
            continue
        try:
            routes.reads(schema)
        except (ConfigError, SchemaMismatch, TargetMismatch):
            continue
        routes.restore_table(name)
        if routes.maps(*table_of(name)):
            restored.add(name)
            _log.warning("%s was omitted and can be mapped now: a snapshot loads it", name)
    return frozenset(restored)


def _refuse_named(routes: Routes, left: Sequence[str]) -> None:
    """Check the tables that an earlier version omitted, although the source has no tables from which to load them.

    Raises: ConfigError - a channel names one of them, so its rows are expected in the target.
    """
    for name in left:
        if routes.is_named(name):
            raise ConfigError(
                f"The job omitted changes of {name}, so the table would be incomplete, and the source has no tables.",
                hint=f"Remove the channel. {_NO_TABLES_HINT}",
                table=name,
            )
        routes.replace_hint(name, _NO_TABLES_HINT)
        _log.warning("%s is still omitted, because the source has no tables. %s", name, _NO_TABLES_HINT)
