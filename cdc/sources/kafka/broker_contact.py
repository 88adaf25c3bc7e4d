"""When a stream asks the brokers for metadata, and since when they do not answer."""

from __future__ import annotations

import logging
import time

from cdc.errors import CdcError, ErrorAction, action_for

REFRESH_S = 30.0
_AWAY_REFRESH_S = 2.0  # while the brokers do not answer
_log = logging.getLogger(__name__)


class BrokerContact:
    """Times the requests for metadata. Calls: the reading thread; ``away`` from any."""

    def __init__(self, refresh_s: float) -> None:
        self.away: tuple[float, CdcError] | None = None  # monotonic time since which the brokers do not answer; why
        self._refresh_s = refresh_s
        self._refreshed_at = self._next_refresh = 0.0

    def begin(self) -> None:
        """Note that the stream has connected: its first request for metadata follows after the usual time."""
        self._next_refresh = time.monotonic() + self._refresh_s

    def is_due(self, *, is_alarmed: bool) -> bool:
        """Return whether to ask for metadata now. ``is_alarmed``: the client has reported an error of the brokers."""
        now = time.monotonic()
        return now >= self._next_refresh or (is_alarmed and now >= self._refreshed_at + _AWAY_REFRESH_S)

    def begin_refresh(self) -> None:
        """Note that metadata is asked for now."""
        self._refreshed_at = time.monotonic()

    def end_refresh(self, *, is_soon: bool) -> None:
        """Note that the brokers have answered. ``is_soon``: ask again after 2 s, because a partition has no leader."""
        self.away = None
        wait_s = min(self._refresh_s, _AWAY_REFRESH_S) if is_soon else self._refresh_s
        self._next_refresh = self._refreshed_at + wait_s

    def fail_refresh(self, error: CdcError) -> None:
        """Note that the brokers do not answer a request for metadata. Raises: see ``note_error``."""
        self.note_error(error)
        self._next_refresh = time.monotonic() + _AWAY_REFRESH_S

    def note_error(self, error: CdcError) -> None:
        """Note that the brokers do not answer. Raises: ``error``, if reading cannot continue after it."""
        if action_for(error) is not ErrorAction.RETRY:
            raise error
        if self.away is None:
            _log.warning("the brokers do not answer: %s", error)
            self.away = (time.monotonic(), error)
            self.refresh_soon()

    def refresh_soon(self) -> None:
        """Ask for metadata 2 s after the last time, if that is earlier."""
        self._next_refresh = min(self._next_refresh, self._refreshed_at + _AWAY_REFRESH_S)
