"""Messages that cannot be decoded, kept as files, so that the job can continue without them.

A file is named by topic, partition and offset, so a message that is read again replaces its own file. The number of
files is the number of messages that the target lacks, and it is bounded.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cdc.errors import ConfigError
from cdc.model.kafka_position import KafkaPosition
from cdc.sources.kafka.formats.base import Fault
from cdc.sources.kafka.messages import MessageBlock

_NAME = re.compile(r"(\d+)-(\d+)\.json")
_log = logging.getLogger(__name__)


class BadMessages:
    """The kept messages of one job. Calls: the reading thread; ``count`` from any.

    Shape: ``folder/TOPIC/PARTITION-OFFSET.json``, one JSON object each.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """``limit``: the number of files that may exist. Creates nothing."""
        self.folder, self.limit = folder, limit
        self.count = 0

    def open(self, position: KafkaPosition) -> None:
        """Count the files. Delete those of messages after ``position``: they are read again, and may be readable now.

        Files of partitions that are not in the position are not deleted.

        Raises: ConfigError - the folder cannot be used.
        """
        offsets = position.offsets
        try:
            files = list(self._files())
            for path, topic, partition, offset in files:
                if (known := offsets.get((topic, partition))) is not None and offset >= known.next:
                    path.unlink()
            self.count = sum(1 for _ in self._files())
        except OSError as error:
            raise self._unusable(error) from error

    def keep(self, block: MessageBlock, fault: Fault) -> bool:
        """Write a message to its file, and sync it. Return False, and write nothing, if the limit is reached.

        Raises: ConfigError - the file cannot be written.
        """
        number = fault.message
        partition, offset = int(block.partition[number]), int(block.offset[number])
        folder = self.folder / block.topic
        path = folder / f"{partition}-{offset}.json"
        content = {
            "topic": block.topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": int(block.timestamp_ms[number]),
            "reason": fault.reason,
            "key": _base64(block, int(block.key_at[number]), int(block.key_size[number])),
            "value": _base64(block, int(block.value_at[number]), int(block.value_size[number])),
        }
        try:
            is_new = not path.exists()
            if is_new and self.count >= self.limit:
                return False
            folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".part")
            with draft.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            for each in (folder, self.folder, self.folder.parent):
                _sync(each)
        except OSError as error:
            raise self._unusable(error) from error
        self.count += is_new
        _log.warning("kept a message that cannot be read in %s: %s", path, fault.reason)
        return True

    def _files(self) -> Iterator[tuple[Path, str, int, int]]:
        if not self.folder.is_dir():
            return
        for folder in self.folder.iterdir():
            for path in folder.iterdir() if folder.is_dir() else ():
                if (found := _NAME.fullmatch(path.name)) is not None:
                    yield path, folder.name, int(found[1]), int(found[2])

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"The folder of bad messages cannot be used: {error.strerror}.",
            hint="Set `source.bad_rows.path` to a folder that the job may write.",
            path=self.folder,
        )


def _base64(block: MessageBlock, at: int, size: int) -> str | None:
    return None if size < 0 else base64.b64encode(block.data[at : at + size].tobytes()).decode()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
