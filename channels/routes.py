"""Routes: from each source table to its mapping; tables that match a pattern but cannot be mapped."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import abc
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdc.errors import CdcError, ConfigError
from cdc.model.batch import RequiredColumns
from cdc.model.left_out import LeftOut
from cdc.model.schema import TableSchema
from cdc.model.schema_change import ColumnMap
from cdc.model.table_names import TableName, part_text, table_of, table_text
from channels.mapping import Mapping, check_mapping

RESTORED = (
    "The next start (`cdc restart NAME`) loads the whole table if it can be mapped then and the source can be queried."
)

log = logging.getLogger(__name__)


class Routes:
    """All mappings of a job. Returns the mapping of each source table, with patterns resolved.

    A channel that names a table takes precedence over a pattern. Calls: any thread.
    """

    def __init__(self, mappings: Sequence[Mapping], *, can_load_whole: bool = True) -> None:
        """Check ``mappings``. ``can_load_whole``: the source has tables, from which a snapshot can load one later.

        Raises: ConfigError - a source or target is used twice, or a mapping is not valid.
        """
        self._can_load_whole = can_load_whole
        self._mappings = tuple(mappings)
        for mapping in self._mappings:
            check_mapping(mapping)
        for number, mapping in enumerate(self._mappings):
            for earlier in self._mappings[:number]:
                _check_pair(earlier, mapping)
        self._named = {one.name: one for one in self._mappings if not one.is_pattern}
        self._patterns = tuple(one for one in self._mappings if one.is_pattern)
        self._lock = threading.RLock()
        self._left_out: dict[str, LeftOut] = {}
        self._loaded: set[str] = set()
        self._column_maps: abc.Mapping[str, ColumnMap] = {}
        self._is_copy = False  # of an executor: only the driver leaves tables out
        self._forget_tables()

    def __reduce__(self) -> tuple[abc.Callable[..., Routes], tuple[object, ...]]:
        """Pickle the mappings and the saved state, for executors."""
        with self._lock:
            state = (self._mappings, frozenset(self._loaded), dict(self._left_out), dict(self._column_maps))
        return _restored, state

    def _forget_tables(self) -> None:
        self._known: dict[TableName, Mapping | None] = {}
        # target, case ignored -> source
        self._targets = {one.target.casefold(): one.source for one in self._named.values()}

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """Return the mappings of the job file, with unresolved patterns."""
        return self._mappings

    def mapping_for(self, database: str, table: str) -> Mapping | None:
        """Return the resolved mapping of a source table; None if no channel reads it, or if it is left out."""
        found = self._match(TableName(database, table))
        return found if found is not None and found.source not in self._left_out else None

    def _match(self, name: TableName) -> Mapping | None:
        """Return the mapping of a source table, also of one that is left out.

        Raises: ConfigError - by a pattern it has the target of another table, and its rows are loaded already.
        """
        with self._lock:
            if name not in self._known:
                found = self._named.get(name)
                found = found if found is not None else self._by_pattern(name)
                if found is not None and found.source in self._column_maps:
                    found = replace(found, column_map=self._column_maps[found.source])
                self._known[name] = found
            return self._known[name]

    def _by_pattern(self, name: TableName) -> Mapping | None:
        found = [one for pattern in self._patterns if (one := pattern.resolved(str(name))) is not None]
        if not found:
            return None
        error = None
        owner = self._targets.setdefault(found[0].target.casefold(), found[0].source)
        if len(found) > 1:
            error = _mapped_twice(found[0].source)
        elif owner != found[0].source:
            error = _used_twice(found[0].target, owner, found[0].source)
        if error is not None and not self.leave_out(name.database, name.table, error):
            raise error
        return found[0]

    def maps(self, database: str, table: str) -> bool:
        """See ``cdc.model.table_filter.TableFilter``."""
        return self.mapping_for(database, table) is not None

    def may_map(self, database: str, table: str) -> bool:
        """See ``cdc.model.table_filter.TableFilter``."""
        name = TableName(database, table)
        with self._lock:
            if table_text(database, table) in self._left_out:
                return False
            if name in self._named or name in self._known:
                return name in self._named or self._known[name] is not None
            found = [one for pattern in self._patterns if (one := pattern.resolved(str(name))) is not None]
            # otherwise a message with its rows leaves the table out, or stops the job
            return len(found) == 1 and self._has_free_target(found[0])

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """See ``cdc.model.table_filter.TableFilter``."""
        mapping = self._match(TableName(schema.database, schema.table))
        if mapping is None:
            raise KeyError(schema.name)
        try:
            return mapping.reads(schema)
        except CdcError as error:
            self.advise(schema.database, schema.table, error)
            raise

    # tables that match a pattern but cannot be mapped

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """Return the tables that are left out, by name."""
        with self._lock:
            return dict(self._left_out)

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """See ``cdc.model.table_filter.TableFilter``."""
        name = table_text(database, table)
        with self._lock:
            if not self.advise(database, table, error) or name in self._loaded or self._is_copy:
                return False
            if not self._can_load_whole:  # the rows that are skipped would be missing for ever
                return False
            if name not in self._left_out:
                reason = f"{error.message} ({error.location})" if error.location else error.message
                self._left_out[name] = LeftOut(reason, f"{error.hint} {RESTORED}")
                log.warning("%s is left out; the other tables continue: %s %s", name, reason, error.hint)
            return True

    def advise(self, database: str, table: str, error: CdcError) -> bool:
        """If a pattern maps this table, put both solutions into the hint of ``error``; return whether one does.

        If the source has no tables, the job pauses at the table's first message. The error's own hint is then the first
        solution, because the message is read again after a correction. May be repeated for an error.
        """
        name = TableName(database, table)
        pattern = next((one for one in self._patterns if one.resolved(str(name)) is not None), None)
        if pattern is None or name in self._named:
            return False
        found = pattern.resolved(str(name))
        assert found is not None
        target = _in_yaml(found.target) if self._has_free_target(found) else "another one"
        own = f"source: {_in_yaml(found.source)}, target: {target}, key: [...]"
        advice = (
            f"leave it out with `exclude: [{_in_yaml(part_text(table))}]` in the channel {pattern.source}, or map it "
            f"with a separate channel: `{{{own}}}`."
        )
        if self._can_load_whole:
            error.hint = advice[0].upper() + advice[1:]
        elif not error.hint.endswith(advice):
            error.hint = f"{error.hint} Or {advice}"
        return True

    def _has_free_target(self, found: Mapping) -> bool:
        return self._targets.get(found.target.casefold(), found.source) == found.source

    def restore(self, loaded: Iterable[str], left_out: abc.Mapping[str, LeftOut], joined: Iterable[str] = ()) -> None:
        """Restore saved state: tables with committed rows, which are never left out, and tables that are left out.

        ``joined``: tables that the job reads. They keep their targets too: without committed rows, a table that was
        left out for its target would take the target at each start.
        """
        with self._lock:
            self._loaded, self._left_out = set(loaded), dict(left_out)
            self._forget_tables()
            # first, so that they keep their targets
            for name in [*sorted(self._loaded), *sorted({*joined} - self._loaded - self._left_out.keys())]:
                self._match(TableName(*table_of(name)))

    @property
    def column_maps(self) -> abc.Mapping[str, ColumnMap]:
        """Return where targets differ from their source tables, by source table."""
        return self._column_maps

    def use_column_maps(self, column_maps: abc.Mapping[str, ColumnMap]) -> None:
        """Map columns by ``column_maps`` from now on, as saved with a checkpoint."""
        with self._lock:
            changed = {
                name
                for name in self._column_maps.keys() | column_maps.keys()
                if self._column_maps.get(name) != column_maps.get(name)
            }
            self._column_maps = dict(column_maps)
            for name in changed:
                self._known.pop(TableName(*table_of(name)), None)

    def note_joined(self, source: str) -> None:
        """Record that a table has a channel in this run, so that no later error leaves it out."""
        self._loaded.add(source)

    def matches(self, source: str) -> bool:
        """Return whether a channel matches this table, left out or not."""
        return self._match(TableName(*table_of(source))) is not None

    def is_named(self, source: str) -> bool:
        """Return whether a channel names this table, and not only a pattern."""
        return TableName(*table_of(source)) in self._named

    def replace_hint(self, source: str, hint: str) -> None:
        """Show another hint for a table that is left out."""
        with self._lock:
            self._left_out[source] = replace(self._left_out[source], hint=hint)

    def restore_table(self, source: str) -> None:
        """Map a table again that was left out."""
        with self._lock:
            self._left_out.pop(source, None)
            self._known.pop(TableName(*table_of(source)), None)


def _restored(
    mappings: Sequence[Mapping],
    loaded: Iterable[str],
    left_out: abc.Mapping[str, LeftOut],
    column_maps: abc.Mapping[str, ColumnMap],
) -> Routes:
    routes = Routes(mappings)
    routes.use_column_maps(column_maps)
    routes.restore(loaded, left_out)
    routes._is_copy = True
    return routes


def _check_pair(one: Mapping, other: Mapping) -> None:
    if one.name == other.name or (one.name.includes(other.name) or other.name.includes(one.name)):
        raise _mapped_twice(other.source)
    if one.target.casefold() == other.target.casefold() and not one.is_pattern:
        raise _used_twice(other.target, one.source, other.source)


def _in_yaml(text: str) -> str:
    """Return ``text`` as a YAML value inside of [] or {}."""
    return text if re.fullmatch(r"[\w$.-]+", text) and not text.isdecimal() else json.dumps(text, ensure_ascii=False)


def _mapped_twice(source: str) -> ConfigError:
    return ConfigError(
        f"Source table {source} is mapped twice.", hint="Leave it in one entry of `channels` only.", source=source
    )


def _used_twice(target: str, one: str, other: str) -> ConfigError:
    return ConfigError(
        f"Target table {target} is used twice, by {one} and by {other}.",
        hint="Give each source table its own target.",
        target=target,
    )
