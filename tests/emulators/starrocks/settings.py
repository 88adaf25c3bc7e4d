"""What differs between StarRocks versions, and what a test may set."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


@dataclass(slots=True)
class StarrocksSettings:
    """One cluster."""

    version: tuple[int, int, int] = (4, 1, 0)
    users: dict[str, str] = field(default_factory=lambda: {"root": ""})
    denied: set[tuple[str, str]] = field(default_factory=set)  # (user, database) without INSERT
    denied_alter: set[tuple[str, str]] = field(default_factory=set)  # (user, database) without ALTER
    operators: set[str] = field(default_factory=lambda: {"root", "cdc"})  # users with OPERATE
    tls: ssl.SSLContext | None = None  # of every HTTP port
    backends: int = 2
    http_auth: bool = False  # FE: enable_http_auth, with which states of labels require INSERT on their database
    followers: int = 0  # FEs beside the leader
    shared_data: bool = False  # shared storage, where deletes of a transaction apply after its other rows
    null: bool = False  # BEs read bodies and throw them away: for benchmarks
    max_running_txn_num_per_db: int = 1000
    label_keep_max_second: float = 3 * 86400
    label_keep_max_num: int = 1000
    prepared_timeout_s: float = 86400
    batch_bytes: int = 100 << 20  # of all JSON bodies of a transaction, where ignore_json_size is not said
    csv_field_bytes: int = 1 << 20  # longer fields are refused, whatever their column holds
    json_bytes: int = 16 << 20  # parse_json makes NULL of a longer document
    key_bytes: int = 128
    string_limit: int = 1 << 20
    false_ok: bool = False  # a multi-table commit that fails is answered OK, as before 4.0.7
    unknown_before_commit: bool = False  # get_load_state does not know a multi-table transaction until its commit

    @property
    def has_multi(self) -> bool:
        return self.version >= (4, 0, 0)

    @property
    def has_prepared_timeout(self) -> bool:
        return self.version >= (3, 5, 4)

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version)) + "-0a1b2c3"
