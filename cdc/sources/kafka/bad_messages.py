"""Messages that cannot be decoded, kept as files, so that the job can continue without them.

::

    PATH/JOB/REPLAYS-NUMBER.jsonl    the bad messages of one Batch, on the disk before the Batch is handed out

REPLAYS is the number of replays before, and NUMBER counts the messages kept since the last one. The position, which is
saved with each checkpoint, has both numbers. It alone decides which files count: a Batch that is read again replaces
its file, and a replay that was not committed leaves files that are not read.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdc.errors import ConfigError
from cdc.model.kafka_position import KafkaPosition, Partition
from cdc.model.kept_messages import KeptMessages, by_table
from cdc.sources.kafka.bad_window import BadLimits, BadWindow
from cdc.sources.kafka.formats.base import Fault
from cdc.sources.kafka.messages import MessageBlock

_NAME = re.compile(r"(\d+)-(\d+)\.jsonl")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BadFile:
    """The bad messages of one Batch."""

    topic: str
    topic_id: str
    offsets: Mapping[int, int]  # of every partition that the job read: where the Batch begins
    messages: tuple[Mapping[str, Any], ...]  # as in the file, in order of arrival


@dataclass(frozen=True, slots=True)
class Counted:
    """What ``BadMessages.count`` has found."""

    taken: tuple[Fault, ...]
    kept: KeptMessages  # after the messages; if a limit is exceeded: before ``refused``
    refused: Fault | None = None
    reason: str = ""  # the limit that ``refused`` exceeds


class BadMessages:
    """The kept messages of one job. Calls: one thread at a time."""

    def __init__(self, folder: Path, limits: BadLimits) -> None:
        """Create nothing."""
        self.folder, self.limits = folder, limits
        self._replays = 0  # whose files were deleted

    def open(self, position: KafkaPosition) -> None:
        """Delete the files of messages that were replayed, and of those after ``position``, which are read again.

        Before the first kept message of the job, a file of a topic or a partition that the position does not have is
        moved away: it is of a new partition, which is read again, or of an earlier job.
        Raises: ConfigError - the folder cannot be used, or has messages of another job.
        """
        kept = position.kept
        try:
            for path, replays, number in self._files():
                if (replays, number) >= (kept.replays, kept.count) or replays < kept.replays:
                    if kept.replays or kept.count or self._is_own(path, position):
                        path.unlink()
                    else:
                        _log.warning("%s may have messages of an earlier job: it was moved to %s", path, _move(path))
        except (OSError, ValueError, KeyError) as error:
            raise self._unusable(error) from error

    def count(self, kept: KeptMessages, faults: Iterable[Fault], count: int) -> Counted:
        """Return the first faults that the limits allow, and what is known after the first ``count`` messages."""
        window, at = BadWindow(self.limits, kept.window), 0
        taken: list[Fault] = []
        tables = Counter(dict(kept.tables))
        for fault in faults:
            window.skip(fault.message - at)
            before = window.parts
            if exceeded := window.add_bad():
                return Counted(tuple(taken), replace(kept, tables=by_table(tables), window=before), fault, exceeded)
            taken.append(fault)
            tables[fault.table] += 1
            at = fault.message + 1
        window.skip(count - at)
        return Counted(tuple(taken), replace(kept, tables=by_table(tables), window=window.parts))

    def keep(
        self,
        kept: KeptMessages,
        block: MessageBlock,
        faults: Iterable[Fault],
        topic_id: str,
        offsets: Mapping[int, int],
    ) -> None:
        """Write messages to a file, and sync it. ``kept``: before these. Raises: ConfigError - it cannot be written."""
        messages = tuple(_message(block, fault) for fault in faults)
        if messages:
            self.write(kept, BadFile(block.topic, topic_id, offsets, messages))
            path = self.folder / f"{kept.replays}-{kept.count}.jsonl"
            first = messages[0]
            _log.warning(
                "kept %d messages that cannot be read in %s, the first is %s[%d]:%d: %s",
                len(messages), path, block.topic, first["partition"], first["offset"], first["reason"],
            )  # fmt: skip

    def write(self, kept: KeptMessages, file: BadFile) -> None:
        """Write a file after the messages of ``kept``, and sync it. Raises: ConfigError - it cannot be written."""
        head = {"topic": file.topic, "topic_id": file.topic_id, "offsets": file.offsets}
        path = self.folder / f"{kept.replays}-{kept.count}.jsonl"
        changed = [self.folder]
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                changed += [self.folder.parent, self.folder.parent.parent]
            draft = path.with_suffix(".part")
            with draft.open("w") as lines:
                lines.writelines(json.dumps(one) + "\n" for one in (head, *file.messages))
                lines.flush()
                os.fsync(lines.fileno())
            draft.replace(path)
            for folder in changed:
                _sync(folder)
        except OSError as error:
            raise self._unusable(error) from error

    def forget_replayed(self, kept: KeptMessages) -> None:
        """Delete the files of messages that a committed replay has loaded or kept again."""
        try:
            for path, replays, _ in self._files() if kept.replays != self._replays else ():
                if replays < kept.replays:
                    path.unlink()
        except OSError as error:  # the next start deletes them
            _log.warning("files of replayed messages remain in %s: %s", self.folder, error)
        self._replays = kept.replays

    def load(self, kept: KeptMessages) -> list[BadFile]:
        """Return the files of the messages of ``kept``, in order. Raises: ConfigError - a message is missing."""
        try:
            chosen = sorted(
                (number, path)
                for path, replays, number in self._files()
                if replays == kept.replays and number < kept.count
            )
            files = [_read(path) for _, path in chosen]
        except (OSError, ValueError, KeyError) as error:
            raise self._unusable(error) from error
        found = sum(len(file.messages) for file in files)
        if found != kept.count:
            raise ConfigError(
                f"The folder of bad messages has {found:,} of {kept.count:,} messages.",
                hint="Bring the missing files back, then run `cdc replay-bad NAME` again.",
                path=self.folder,
            )
        return files

    def _files(self) -> Iterator[tuple[Path, int, int]]:
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if (found := _NAME.fullmatch(path.name)) is not None:
                yield path, int(found[1]), int(found[2])

    def _is_own(self, path: Path, position: KafkaPosition) -> bool:
        """Return whether all messages of a file are read again; False if that is not known.

        Raises: ConfigError - one is not: the file is of an earlier job with this name.
        """
        file, offsets = _read(path), position.offsets
        if position.ids.get(file.topic) != file.topic_id:
            return False
        known = [offsets.get((file.topic, int(message["partition"]))) for message in file.messages]
        for message, offset in zip(file.messages, known, strict=True):
            if offset is not None and int(message["offset"]) < offset.next:
                raise ConfigError(
                    "The folder of bad messages has messages of an earlier job with this name.",
                    hint="Move the file away, or set `source.bad_rows.path` to another folder.",
                    path=path,
                )
        return None not in known

    def _unusable(self, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) else f"a file cannot be read: {error}"
        return ConfigError(
            f"The folder of bad messages cannot be used: {reason}.",
            hint="Set `source.bad_rows.path` to a folder that the job may write.",
            path=self.folder,
        )


def partition_of(message: Mapping[str, Any], topic: str) -> tuple[Partition, int]:
    """Return the partition and the offset of a message of a file."""
    return (topic, int(message["partition"])), int(message["offset"])


def bytes_of(message: Mapping[str, Any], name: str) -> bytes | None:
    """Return the key or the value of a message of a file; None: null."""
    text = message[name]
    return None if text is None else base64.b64decode(text)


def _message(block: MessageBlock, fault: Fault) -> dict[str, Any]:
    number = fault.message
    return {
        "topic": block.topic,
        "partition": int(block.partition[number]),
        "offset": int(block.offset[number]),
        "timestamp_ms": int(block.timestamp_ms[number]),
        "table": fault.table,
        "reason": fault.reason,
        "key": _base64(block, int(block.key_at[number]), int(block.key_size[number])),
        "value": _base64(block, int(block.value_at[number]), int(block.value_size[number])),
    }


def _read(path: Path) -> BadFile:
    head, *messages = map(json.loads, path.read_text().splitlines())
    offsets = {int(number): int(offset) for number, offset in head["offsets"].items()}
    return BadFile(head["topic"], head["topic_id"], offsets, tuple(messages))


def _base64(block: MessageBlock, at: int, size: int) -> str | None:
    return None if size < 0 else base64.b64encode(block.data[at : at + size].tobytes()).decode()


def _move(path: Path) -> Path:
    """Rename a file so that no job reads it, and return its new path."""
    targets = (path.with_name(f"{path.name}.{number}.old") for number in itertools.count(1))
    return path.rename(next(target for target in targets if not target.exists()))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
