"""``python -m tests.emulators.starrocks``: serve an emulator; print its ports as one line of JSON."""

from __future__ import annotations

from tests.emulators.cluster import serve
from tests.emulators.starrocks.emulator import StarrocksEmulator
from tests.emulators.starrocks.settings import StarrocksSettings

if __name__ == "__main__":
    serve(StarrocksSettings, StarrocksEmulator)
