"""What differs between Doris versions, and what a test may set."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


@dataclass(slots=True)
class DorisSettings:
    """One cluster."""

    version: tuple[int, int] = (3, 0)  # 1.2, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1
    users: dict[str, str] = field(default_factory=lambda: {"root": ""})
    denied: set[tuple[str, str]] = field(default_factory=set)  # (user, database) without LOAD
    denied_alter: set[tuple[str, str]] = field(default_factory=set)  # (user, database) without ALTER
    tls: ssl.SSLContext | None = None  # of every HTTP port
    backends: int = 1
    followers: int = 0  # FEs beside the master
    administrators: set[str] = field(default_factory=lambda: {"root", "cdc"})
    quotas: dict[str, int] = field(default_factory=dict)  # ALTER DATABASE ... SET TRANSACTION QUOTA
    unicode_names: bool = False  # session variable enable_unicode_name_support
    lower_case_table_names: int = 0  # 1: stored in lower case, 2: compared so
    group_commit: bool = False  # every table has group_commit_mode: async_mode
    asks_all: bool = False  # enable_all_http_auth, and its user has no LOAD on everything
    null: bool = False  # BEs read bodies and throw them away: for benchmarks
    resets_bodies: bool = False  # the FE cuts a connection whose body is on its way, as 3.1.3 and later do
    max_running_txn_num_per_db: int = 0  # 0: the version's own
    precommit_timeout_s: float = 3600
    label_keep_s: float = 0  # 0: the version's own
    label_num_threshold: int = 2000
    string_limit: int = 0  # 0: the version's own

    def __post_init__(self) -> None:
        old = self.version < (2, 0)
        self.max_running_txn_num_per_db = self.max_running_txn_num_per_db or (
            100 if old else 1000 if self.version < (3, 1) else 10000
        )
        self.label_keep_s = self.label_keep_s or (21600 if self.version == (2, 0) else 43200)
        self.string_limit = self.string_limit or (1 << 20 if self.version < (3, 1) else 10 << 20)

    @property
    def label_pattern(self) -> str:
        return "[-_A-Za-z0-9]{1,128}" if self.version < (2, 0) else "[-_A-Za-z0-9:]{1,128}"

    @property
    def name(self) -> str:
        return f"doris-{self.version[0]}.{self.version[1]}.7-rc01"

    def has(self, feature: str) -> bool:
        """Return True if this version has the feature."""
        return (
            self.version
            >= {
                "two_phase_by_label": (2, 1),
                "arrow": (2, 1),
                "compressed_json": (3, 1),
                "refuses_ambiguous_paths": (3, 1),
                "exact_json_numbers": (2, 0),
                "merge_on_write_by_default": (2, 1),
                "light_schema_change_by_default": (2, 0),
                "stops_at_bad_rows": (2, 1),
                "transactions_for_administrators": (4, 0),
                "forgets_labels_of_chunked_bodies": (4, 1),
            }[feature]
        )
