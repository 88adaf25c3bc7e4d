"""File systems for tests: small ones, read-only ones, and one whose power can be cut. They need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import unavailable

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, the same number as XFS_IOC_GOINGDOWN
_NO_LOG_FLUSH = 2


@contextmanager
def mounted(*words: str, at: Path, required: bool = True) -> Iterator[None]:
    """Run ``mount WORDS AT``. Without permission, skip the test, or continue if not ``required``."""
    refused = _mount(*words, at=at)
    if refused and required:
        unavailable(refused)
    try:
        yield
    finally:
        if not refused:
            subprocess.run(["umount", "-l", at], check=True)


def _mount(*words: str, at: Path) -> str | None:
    """Return the reason for a failed mount."""
    done = subprocess.run(["mount", *words, at], capture_output=True, text=True, check=False)
    return f"this user cannot mount: {done.stderr.strip()}" if done.returncode else None


def no_disk(folder: Path) -> str | None:
    """Return why this user cannot use a ``Disk`` in ``folder``, or None."""
    if shutil.which("mkfs.ext4") is None:
        return "there is no mkfs.ext4"
    trial = Disk(folder / "trial.ext4", folder / "trial", size_mib=16)
    refused = trial.mount()
    if not refused:
        trial.__exit__()
    return refused


class Disk:
    """A separate file system, mounted at ``at`` inside the context. A power cut loses data that was not synced.

    An ext4 in a file. Its shutdown ("godown" in the file system tests of Linux) drops all that is not on the device,
    the journal too; the next mount replays the journal. A file that was written but not synced may then exist with its
    name and no bytes.
    """

    def __init__(self, image: Path, at: Path, size_mib: int = 4096) -> None:
        self.at, self._image = at, image
        at.mkdir()
        with image.open("wb") as file:
            file.truncate(size_mib << 20)  # sparse
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)

    def __enter__(self) -> Disk:
        if refused := self.mount():
            unavailable(refused)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.at], check=True)

    def mount(self) -> str | None:
        """Mount it. Return the reason if that fails."""
        return _mount("-o", "loop", str(self._image), at=self.at)

    def cut(self) -> None:
        """Cut the power. Later reads and writes of processes that still run fail."""
        folder = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def start_again(self) -> None:
        """Mount what is on the device. Call it after all files of it are closed."""
        deadline = time.monotonic() + 60
        while subprocess.run(["umount", self.at], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, "a file of it is still open"
            time.sleep(0.05)
        self.__enter__()
