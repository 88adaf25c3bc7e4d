"""Mutated binlogs and values through the decoder: ``python -m tests.fuzz --count 10000000 --seed 1``.

Every input gives rows or an error class of this project. Child processes do the work in slices, so that a crash or a
hang is detected too and reported with its seed; ``--boundscheck`` compiles the kernels with Numba's index checks.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

DATA = Path(__file__).parent / "data"
KINDS = ("mysql", "mariadb")
_SLICE = {"stream": 2_000, "json": 500_000, "text": 200_000}
_HANG_S = 120.0
_HEADER = 19
_CHARSETS = (
    "utf8mb4",
    "gbk",
    "gb18030",
    "ujis",
    "eucjpms",
    "sjis",
    "cp932",
    "big5",
    "euckr",
    "utf16",
    "utf16le",
    "utf32",
    "ucs2",
    "swe7",
)


class Saved:
    """Schemas of the golden files. Tables with damaged names have none."""

    def __init__(self, kind: str) -> None:
        from cdc.model.schema import TableSchema
        from cdc.state.codec import from_json

        saved = json.loads((DATA / f"{kind}.json").read_text())
        self.schemas = {table: from_json(TableSchema, json.dumps(entry["schema"])) for table, entry in saved.items()}

    def schema(self, table_map):
        return self.schemas.get(table_map.table)


def events_of(data: bytes) -> list[bytes]:
    """Return the events of a complete, undamaged file."""
    at, events = 4, []
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        events.append(data[at : at + size])
        at += size
    return events


def mutated(events: list[bytes], generator: random.Random) -> bytes:
    """Return a damaged copy of a file: bytes, sizes, order, length; mostly with valid checksums."""
    copy = list(events)
    for _ in range(generator.choice((1, 1, 1, 2, 5))):
        event_index = generator.randrange(1 if generator.random() < 0.95 else 0, len(copy))
        event = bytearray(copy[event_index])
        what = generator.random()
        if what < 0.75 and len(event) > _HEADER:
            for _ in range(generator.choice((1, 1, 2, 8))):
                at = generator.randrange(_HEADER, len(event))
                event[at] = generator.choice(
                    (generator.randrange(256), 0, 255, event[at] ^ 1 << generator.randrange(8), 0x7F, 0x80, 0xFC)
                )
        elif what < 0.80:
            event[generator.randrange(_HEADER)] = generator.randrange(256)
        elif what < 0.85:
            event[4] = generator.choice(
                (2, 4, 16, 19, 23, 24, 25, 30, 31, 32, 33, 38, 39, 40, 42, 162, 163, 165, 166, 167, 168, 169)
            )
        elif what < 0.90:
            del event[generator.randrange(_HEADER, len(event)) : generator.randrange(_HEADER, len(event) + 1)]
        elif what < 0.95:
            at = generator.randrange(_HEADER, len(event) + 1)
            event[at:at] = generator.randbytes(generator.randrange(1, 40))
        elif what < 0.97:
            copy.insert(event_index, copy[generator.randrange(len(copy))])
        elif len(copy) > 2:
            del copy[event_index]
            continue
        if generator.random() < 0.97:
            event[9:13] = len(event).to_bytes(4, "little")
            event[13:17] = bytes(4)  # an unknown position, so that sizes may change
            event[-4:] = zlib.crc32(bytes(event[:-4])).to_bytes(4, "little")
        copy[min(event_index, len(copy) - 1)] = bytes(event)
    whole = b"\xfebin" + b"".join(copy)
    return whole[: generator.randrange(4, len(whole))] if generator.random() < 0.05 else whole


def fuzz_streams(count: int, seed: int) -> dict[str, int]:
    """Damage whole files. Return how many were decoded and how many were rejected."""
    from cdc.errors import CdcError
    from cdc.mysql.connection import ServerError
    from tests.support.answers import Everything, decode_bytes

    corpus = [(events_of((DATA / f"{kind}.binlog").read_bytes()), Saved(kind)) for kind in KINDS]
    outcome = {"decoded": 0, "refused": 0}
    for number in range(seed, seed + count):
        if number % 50 == 0:
            faulthandler.dump_traceback_later(_HANG_S, exit=True)
        generator = random.Random(number)
        events, tables = generator.choice(corpus)
        data = mutated(events, generator)
        try:
            chunk = generator.choice((1 << 20, 1 << 20, 500, 4096))
            found = decode_bytes(
                data, tables=tables, table_filter=Everything("golden"), chunk=chunk, batch_bytes=1 << 17
            )
            for batch in found.batches:
                for changes in batch.changes:
                    changes.rows.validate(full=True)
            outcome["decoded"] += 1
        except (CdcError, ServerError):
            outcome["refused"] += 1
        except BaseException:
            print(f"seed {number}", file=sys.stderr)
            raise
    faulthandler.cancel_dump_traceback_later()
    return outcome


def fuzz_json(count: int, seed: int) -> dict[str, int]:
    """Damage documents, many in one call of the kernel. The kernel continues after a rejected one."""
    import numpy as np

    from cdc.mysql.values import json_text as documents
    from tests.unit.cdc.mysql.values.test_json_text import VECTORS

    numbers = np.random.default_rng(seed)
    raw = [bytes.fromhex(vector) for vector in VECTORS if vector]
    raw += [b"\x0b" + bytes(8), b"\x0f\x0b\x08" + bytes(8), b"\x0f\xf6\x04\x05\x02\x80\x01", b"\x0f\x0c\x08" + bytes(8)]
    outcome = {"decoded": 0, "refused": 0}
    for _ in range(0, count, 10_000):
        faulthandler.dump_traceback_later(_HANG_S, exit=True)
        chosen = [raw[i] for i in numbers.integers(len(raw), size=10_000)]
        lengths = np.array([len(value) for value in chosen], np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        data = np.frombuffer(b"".join(chosen), np.uint8).copy()
        for _ in range(3):
            positions = starts + (numbers.random(10_000) * lengths).astype(np.int64)
            data[positions] = numbers.choice(
                [0, 1, 2, 3, 4, 0x0B, 0x0C, 0x0F, 0x7F, 0x80, 0xFF, *range(256)], size=10_000
            )
        cut = numbers.random(10_000) < 0.1
        lengths[cut] = (lengths[cut] * numbers.random(int(cut.sum()))).astype(np.int32)
        offsets = np.zeros(10_001, np.int32)
        out = np.empty(10 * data.size + 1_000_000, np.uint8)
        row = refused = 0
        while row < 10_000:
            code, row = documents._documents(data, starts, lengths, row, offsets, out)
            if code == documents.FULL:
                raise AssertionError(f"seed {seed}: the text is larger than every bound")
            if code:
                offsets[row + 1] = offsets[row]
                refused += 1
                row += 1
        bytes(out[: offsets[-1]]).decode()
        outcome["refused"] += refused
        outcome["decoded"] += 10_000 - refused
    faulthandler.cancel_dump_traceback_later()
    return outcome


def fuzz_text(count: int, seed: int) -> dict[str, int]:
    """Decode random bytes as text of every charset."""
    import numpy as np

    from cdc.errors import DecodeError
    from cdc.mysql.charsets import Charset
    from cdc.mysql.values import text

    numbers = np.random.default_rng(seed)
    outcome = {"decoded": 0, "refused": 0}
    for done in range(count):
        if done % 10_000 == 0:
            faulthandler.dump_traceback_later(_HANG_S, exit=True)
        data = numbers.integers(0, 256, size=int(numbers.integers(1, 12)), dtype=np.uint8)
        if numbers.random() < 0.5:
            data[numbers.integers(data.size)] = numbers.choice([0x81, 0x8E, 0x8F, 0xA1, 0xED, 0xF0, 0x30])
        charset = Charset(_CHARSETS[done % len(_CHARSETS)])
        try:
            array = text.text_array(data, np.zeros(1, np.int64), np.array([data.size], np.int32), charset)
            array.validate(full=True)
            outcome["decoded"] += 1
        except DecodeError:
            outcome["refused"] += 1
    faulthandler.cancel_dump_traceback_later()
    return outcome


_WORK = {"stream": fuzz_streams, "json": fuzz_json, "text": fuzz_text}


def main(arguments: list[str] | None = None) -> int:
    """Run slices in child processes until ``--count`` mutations or ``--seconds`` are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=_WORK, default="stream")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--boundscheck", action="store_true")
    parser.add_argument("--here", action="store_true", help="no child processes")
    chosen = parser.parse_args(arguments)
    if chosen.here:
        print(json.dumps(_WORK[chosen.what](chosen.count, chosen.seed)))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ)
        if chosen.boundscheck:  # the usual cache contains code without checks
            environment |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache}
        return _slices(chosen, environment)


def _slices(chosen: argparse.Namespace, environment: dict[str, str]) -> int:
    total = {"decoded": 0, "refused": 0}
    start = time.monotonic()
    done = 0
    while done < chosen.count and time.monotonic() - start < chosen.seconds:
        count = min(_SLICE[chosen.what], chosen.count - done)
        command = [sys.executable, "-m", "tests.fuzz", "--here", "--what", chosen.what, "--count", str(count)]
        child = subprocess.run(
            [*command, "--seed", str(chosen.seed + done)], env=environment, capture_output=True, text=True
        )
        if child.returncode:
            print(
                child.stdout, child.stderr, f"exit {child.returncode}: slice from seed {chosen.seed + done}", sep="\n"
            )
            return 1
        for name, number in json.loads(child.stdout.splitlines()[-1]).items():
            total[name] += number
        done += count
    rate = done / (time.monotonic() - start)
    print(
        f"{chosen.what}: {done} mutations, {total['decoded']} decoded, {total['refused']} refused, {rate:,.0f} a second"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
