"""Open the state store of this user: the server in ``$CDC_STORE``, else the SQLite file under ``$CDC_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cdc.errors import ConfigError
from cdc.logging_setup import hide
from cdc.paths import state_folder
from cdc.state.sql import DEFAULT_LEASE_S, SqlStore
from cdc.state.store_url import store_url

LEASE = "CDC_LEASE"  # environment variable: seconds; `cdc serve` sets it for its drivers
SHORTEST_LEASE_S, LONGEST_LEASE_S = 2.0, 600.0


def open_store(
    *, environment: Mapping[str, str] | None = None, folder: Path | None = None, bridge_s: float = 10.0
) -> SqlStore:
    """Open the store. Close it with ``close``.

    ``environment``: CDC_STORE and the variables of its password, CDC_LEASE; default: of this process.
    ``folder``: default ``$CDC_HOME``. ``bridge_s``: how long a transaction is repeated after an error that may pass;
    the first connection is not repeated.
    Raises: CheckpointError - it cannot be opened, or has another format; ConfigError - the address is not valid.
    """
    values = os.environ if environment is None else environment
    url, home = store_url(values), folder or state_folder()
    if url is None:
        from cdc.state.sqlite import SqliteStore

        return SqliteStore(home)
    from cdc.state.server import ServerStore

    hide([url.password])
    return ServerStore(url, home, lease_of(values), bridge_s=bridge_s)


def lease_of(environment: Mapping[str, str]) -> float:
    """Return the lease in seconds. Raises: ConfigError - ``$CDC_LEASE`` is not a number of seconds from 2 to 600."""
    text = environment.get(LEASE, "").strip().removesuffix("s")
    try:
        lease_s = float(text) if text else DEFAULT_LEASE_S
    except ValueError:
        lease_s = 0.0
    if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        raise ConfigError(
            f"{LEASE} must be a number of seconds from {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g}.",
            hint=f"Remove it, or set {LEASE}={DEFAULT_LEASE_S:g}.",
            value=text,
        )
    return lease_s
