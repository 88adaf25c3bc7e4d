"""What may not change in a job's file while the job lives: source server, keys, targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc.checkpoint import Checkpoint, JobRecord, JobState
from cdc.config import BinlogSource, CanalSource, Config, DeltaSink
from cdc.errors import ConfigError
from cdc.names import parsed_table, table_of
from cdc.status import SinkStatus, SourceStatus

SOURCE = "source server"
PRIMARY_KEY = "the primary key"
_TARGET = "target of "
_ANOTHER = "For another job, start a copy of the file that has another `name:` in it (`cdc start COPY.yaml`)."


def identity_of(config: Config) -> dict[str, str]:
    """What the job is, as text by name: kept with the job, compared at each start and resume."""
    source, sink = source_status(config), config.sink
    place = sink.location if isinstance(sink, DeltaSink) else ", ".join(sorted(sink.fe))
    identity = {
        SOURCE: " ".join(filter(None, (source.type, source.server, source.destination))),
        "sink": f"{sink.type} {place}",
    }
    for channel in config.channels:
        identity[_TARGET + channel.source] = channel.target
        identity[f"key of {channel.source}"] = ", ".join(channel.key) if channel.key else PRIMARY_KEY
    return identity


def check_name(name: str, config: Config) -> None:
    """Refuse a job file that is another job's by now. Raises: ConfigError."""
    if config.name != name:
        raise ConfigError(
            f"The job file of {name} has the name {config.name} now: that would be another job.",
            mend=f"Put `name: {name}` back. {_ANOTHER}",
        )


def check_identity(record: JobRecord, config: Config, *, accept_server: bool = False) -> None:
    """Refuse a job file that would make another job of it. Channels may come and go.

    Raises: ConfigError - with every change.
    """
    check_name(record.name, config)
    known = record.identity
    changes = [
        f"{name} was {known[name]}, is {text}"
        for name, text in identity_of(config).items()
        if name in known and known[name] != text and not (name == SOURCE and accept_server)
    ]
    if changes:
        raise ConfigError(
            f"The job file no longer fits job {config.name}: {'; '.join(changes)}.",
            mend=f"Put it back as it was. {_ANOTHER}",
        )


def check_loaded(record: JobRecord, config: Config, committed: Checkpoint | None) -> None:
    """Refuse another target or key for a table with committed rows, which moved from one channel to another.

    Its rows would lie in two tables, a part in each. Raises: ConfigError - with every such table.
    """
    changes = []
    now = identity_of(config)
    keys = {schema.name: ", ".join(schema.key) for schema in committed.schemas} if committed else {}
    for table in sorted(committed.loaded) if committed else ():
        before, after = _channel_of(table, record.identity, keys), _channel_of(table, now, keys)
        if before and after and before != after:
            changes.append(f"{table} was {' by '.join(before)}, is {' by '.join(after)}")
    if changes:
        raise ConfigError(
            f"Rows of tables are loaded that the job file gives another target or key now: {'; '.join(changes)}.",
            mend=f"Put target and key back as they were. {_ANOTHER}",
        )


def _channel_of(table: str, identity: Mapping[str, str], keys: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the target of a table and its key, as the channels of ``identity`` have them; None: none maps it."""
    for source in (table, *(name.removeprefix(_TARGET) for name in identity if name.startswith(_TARGET))):
        name, target = parsed_table(source), identity.get(_TARGET + source)
        middle = name.middle(*table_of(table)) if name and name.is_pattern else "" if source == table else None
        if target is None or middle is None:
            continue
        found, key = parsed_table(target), identity.get(f"key of {source}", "")
        plain = found.with_middle(middle).plain if found else target
        return plain, keys.get(table, key) if key == PRIMARY_KEY else key
    return None


def check_destination(config: Config, jobs: Iterable[JobRecord]) -> None:
    """Refuse a Canal destination that another job has: its clients share one cursor, and take each other's rows.

    Raises: ConfigError - with the other job's name.
    """
    source = config.source
    if not isinstance(source, CanalSource):
        return
    mine = _addresses(source_status(config).server or "")
    for other in jobs:
        head, _, rest = other.identity.get(SOURCE, "").partition(" ")
        servers, _, destination = rest.rpartition(" ")
        is_live = other.name != config.name and other.state not in (JobState.CANCELLED, JobState.DONE)
        if is_live and (head, destination) == (source.type, source.destination) and mine & _addresses(servers):
            raise ConfigError(
                f"Job {other.name} has the Canal destination {source.destination} already: a destination has one "
                "cursor, and two jobs on it would take each other's rows.",
                mend="Give this job a destination of its own at the Canal server, add its channels to the other "
                f"job's file, or run `cdc stop {other.name}`.",
            )


def _addresses(servers: str) -> set[str]:
    return {address.strip().replace("localhost:", "127.0.0.1:") for address in servers.split(",")}


def source_status(config: Config) -> SourceStatus:
    """Where rows come from."""
    source = config.source
    if isinstance(source, BinlogSource):
        return SourceStatus(source.type, source.server)
    if isinstance(source, CanalSource):
        return SourceStatus(source.type, source.zookeeper or ",".join(source.servers), source.destination)
    return SourceStatus(source.type, source.location)


def sink_status(config: Config) -> SinkStatus:
    """Where rows go, as the job file writes it."""
    sink = config.sink
    return SinkStatus(sink.type, sink.path if isinstance(sink, DeltaSink) else ",".join(sink.fe))
