"""The identity of a job: source server, sink, and the target and key of each channel. It is saved with the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The server or the files that a job reads."""

    type: str  # binlog, canal, binlog_files, kafka
    server: str | None  # "127.0.0.1:3306"; the pattern of binlog files; brokers
    destination: str | None = None  # of a Canal server

    def __str__(self) -> str:
        return " ".join(filter(None, (self.type, self.server, self.destination)))


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """The folder or the cluster to which a job writes."""

    type: str  # delta, doris, starrocks
    location: str  # absolute path; addresses of the frontends, sorted
    written: str = field(default="", compare=False)  # the same, as the job file writes it

    def __str__(self) -> str:
        return f"{self.type} {self.location}"


@dataclass(frozen=True, slots=True)
class ChannelIdentity:
    """The target and the key of a source table, or of all tables of a pattern."""

    target: str
    key: tuple[str, ...] | None = None  # None: the primary key of the source table


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The settings of a job file that must not change during the life of a job. Channels may be added and removed."""

    source: SourceIdentity
    sink: SinkIdentity
    channels: Mapping[str, ChannelIdentity] = field(default_factory=dict)  # by source, as the job file writes it
