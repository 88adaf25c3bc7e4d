"""Compare a job file with the saved job: source server, sink, targets and keys must not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cdc.config.kafka_models import KafkaSourceConfig
from cdc.config.models import Config
from cdc.config.sink_models import DeltaSinkConfig
from cdc.config.source_models import BinlogSourceConfig, CanalSourceConfig
from cdc.errors import ConfigError
from cdc.model.table_names import parsed_table, table_of
from cdc.state.base import Checkpoint, JobRecord, JobState
from cdc.state.identity import ChannelIdentity, JobIdentity, SinkIdentity, SourceIdentity

_SOURCE = "source server"
PRIMARY_KEY = "the primary key"
_ANOTHER = "For another job, start a copy of the file with another `name:` (`cdc start COPY.yaml`)."


def build_identity(config: Config) -> JobIdentity:
    """Return the identity of the job of ``config``. It is saved with the job and compared at each start and resume."""
    source, sink = config.source, config.sink
    if isinstance(source, BinlogSourceConfig):
        read = SourceIdentity(source.type, source.server)
    elif isinstance(source, CanalSourceConfig):
        read = SourceIdentity(source.type, source.zookeeper or ",".join(source.servers), source.destination)
    elif isinstance(source, KafkaSourceConfig):
        read = SourceIdentity(source.type, ",".join(source.brokers))
    else:
        read = SourceIdentity(source.type, source.location)
    if isinstance(sink, DeltaSinkConfig):
        written = SinkIdentity(sink.type, str(sink.location), str(sink.path))
    else:
        frontends = [str(address) for address in sink.fe]
        written = SinkIdentity(sink.type, ", ".join(sorted(frontends)), ",".join(frontends))
    channels = {channel.source: ChannelIdentity(channel.target, channel.key or None) for channel in config.channels}
    return JobIdentity(read, written, channels)


def check_name(name: str, config: Config) -> None:
    """Raise ConfigError if the job file now has another name, and so belongs to another job."""
    if config.name != name:
        raise ConfigError(
            f"The job file of {name} has the name {config.name} now: that would be another job.",
            hint=f"Set `name: {name}` again. {_ANOTHER}",
        )


def check_identity(record: JobRecord, config: Config, *, accept_server: bool = False) -> None:
    """Raise ConfigError if name, source server, sink, a target or a key was changed. It names every change.

    Channels may be added and removed.
    """
    check_name(record.name, config)
    changes = [
        f"{name} was {before}, is {now}"
        for name, before, now in _differences(record.identity, build_identity(config))
        if not (name == _SOURCE and accept_server)
    ]
    if changes:
        raise ConfigError(
            f"The job file no longer matches job {config.name}: {'; '.join(changes)}.",
            hint=f"Undo the changes in the job file. {_ANOTHER}",
        )


def _differences(before: JobIdentity | None, now: JobIdentity) -> Iterator[tuple[str, object, object]]:
    """Yield changes: name, old value, new value. A channel that only one of the two has is not a change."""
    if before is None:
        return
    found: list[tuple[str, object, object]] = [("sink", before.sink, now.sink)]
    # the addresses of brokers may change; the position of a job has the id of the cluster
    if not before.source.type == now.source.type == "kafka":
        found.insert(0, (_SOURCE, before.source, now.source))
    for source, channel in now.channels.items():
        if (known := before.channels.get(source)) is not None:
            found.append((f"target of {source}", known.target, channel.target))
            found.append((f"key of {source}", _key(known), _key(channel)))
    yield from (one for one in found if one[1] != one[2])


def _key(channel: ChannelIdentity) -> str:
    return ", ".join(channel.key) if channel.key else PRIMARY_KEY


def check_file(record: JobRecord, config: Config, committed: Checkpoint | None, *, accept_server: bool) -> None:
    """Raise ConfigError if the job file does not match the job or its loaded tables."""
    check_identity(record, config, accept_server=accept_server)
    check_loaded(record, config, committed)


def check_loaded(record: JobRecord, config: Config, committed: Checkpoint | None) -> None:
    """Raise ConfigError if a table with committed rows moved to a channel with another target or key.

    Its rows would be in two tables, a part in each. The error names every such table.
    """
    changes = []
    now = build_identity(config)
    keys = {schema.name: ", ".join(schema.key) for schema in committed.schemas} if committed else {}
    for table in sorted(committed.loaded) if committed else ():
        before, after = (
            _channel_of(table, identity.channels, keys) if identity else None for identity in (record.identity, now)
        )
        if before and after and before != after:
            changes.append(f"{table} was {' by '.join(before)}, is {' by '.join(after)}")
    if changes:
        raise ConfigError(
            f"The job file has another target or key for tables that are loaded already: {'; '.join(changes)}.",
            hint=f"Undo the change of target or key. {_ANOTHER}",
        )


def _channel_of(table: str, channels: Mapping[str, ChannelIdentity], keys: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the target and the key of a table, as ``channels`` define them; None if no channel maps it."""
    for source in (table, *channels):
        name, channel = parsed_table(source), channels.get(source)
        middle = name.middle(*table_of(table)) if name and name.is_pattern else "" if source == table else None
        if channel is None or middle is None:
            continue
        target = parsed_table(channel.target)
        plain = target.with_middle(middle).plain if target else channel.target
        return plain, _key(channel) if channel.key else keys.get(table, PRIMARY_KEY)
    return None


def check_destination(config: Config, jobs: Iterable[JobRecord]) -> None:
    """Raise ConfigError if another job uses the same Canal destination. Its clients share one cursor.

    Each of the two jobs would therefore get a part of the rows.
    """
    source = config.source
    if not isinstance(source, CanalSourceConfig):
        return
    mine = build_identity(config).source
    for other in jobs:
        theirs = other.identity.source if other.identity else None
        is_live = other.name != config.name and other.state not in (JobState.CANCELLED, JobState.DONE)
        if theirs is None or not is_live or (theirs.type, theirs.destination) != (mine.type, mine.destination):
            continue
        if _addresses(mine) & _addresses(theirs):
            raise ConfigError(
                f"Job {other.name} has the Canal destination {source.destination} already: a destination has one "
                "cursor, so each of two jobs would get only a part of the rows.",
                hint="Create another destination in the Canal server for this job, add its channels to the job file "
                f"of {other.name}, or run `cdc stop {other.name}`.",
            )


def _addresses(source: SourceIdentity) -> set[str]:
    servers = (source.server or "").split(",")
    return {address.strip().replace("localhost:", "127.0.0.1:") for address in servers}
