"""``python -m tests.emulators.doris``: serve an emulator; print its ports as one line of JSON."""

from __future__ import annotations

from tests.emulators.cluster import serve
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.doris.settings import DorisSettings

if __name__ == "__main__":
    serve(DorisSettings, DorisEmulator)
