"""Kernels that walk over Avro messages by a program, and parse their numbers. No Python object per message or value.

Every length is checked against the end of the message before it is used, so no input can lead to a read outside it.

Source: Apache Avro 1.12 specification, "Binary encoding"; Confluent's wire format.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel
from cdc.sources.canal.wire import read_varint
from cdc.sources.kafka.formats import json_kernels as json

# instructions: (operation, slot or -1, argument)
NULL, BOOLEAN, VARINT, FLOAT, DOUBLE, SIZED, FIXED, RECORD, UNION, JUMP = range(10)

# faults of a message
CUT, BAD_UNION, BAD_LENGTH, TRAILING, BAD_BOOLEAN = range(1, 6)

HEAD = 5  # bytes before the Avro data: a zero, and the number of the schema


@kernel
def schema_ids(data, at, sizes, ids):  # type: ignore[no-untyped-def]
    """Set the id of each message's schema. -1: it does not begin with one; -2: null."""
    for row in range(at.size):
        if sizes[row] < 0:
            ids[row] = -2
        elif sizes[row] < HEAD or data[at[row]] != 0:
            ids[row] = -1
        else:
            value = np.int64(0)
            for place in range(1, HEAD):
                value = value * 256 + np.int64(data[at[row] + place])
            ids[row] = value


@inlined
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """Return the zigzag number at ``at`` and the offset after it; -1: it does not end in ten bytes before ``end``."""
    value, at = read_varint(data, at, end)
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1), at


@kernel
def walk(data, at, sizes, program, starts, lengths, kinds, faults):  # type: ignore[no-untyped-def]
    """Find the values of each message. Shape of ``starts``, ``lengths`` and ``kinds``: (slots, messages)."""
    for row in range(at.size):
        for slot in range(len(starts)):
            starts[slot, row], lengths[slot, row], kinds[slot, row] = 0, -1, json.ABSENT
        here, end = at[row] + HEAD, at[row] + sizes[row]
        step = 0
        while step < len(program):
            operation, slot, argument = program[step, 0], program[step, 1], program[step, 2]
            step += 1
            start = here
            kind = json.NUMBER
            if operation == JUMP:
                step = argument
                continue
            if operation == UNION:
                branch, here = _varint(data, here, end)
                if here < 0:
                    faults[row] = CUT
                    break
                if branch < 0 or branch >= argument:
                    faults[row] = BAD_UNION
                    break
                step += branch
                continue
            if operation == NULL:
                if slot >= 0:
                    kinds[slot, row] = json.NULL
                continue
            if operation == RECORD:
                kind = json.OBJECT
            elif operation == BOOLEAN:
                here += 1
                if here <= end:
                    if data[start] > 1:
                        faults[row] = BAD_BOOLEAN
                        break
                    kind = json.TRUE if data[start] else json.FALSE
            elif operation == VARINT:
                _, here = _varint(data, here, end)
            elif operation == FLOAT:
                here += 4
            elif operation == DOUBLE:
                here += 8
            elif operation == FIXED:
                here += argument
                kind = json.STRING
            else:
                length, here = _varint(data, here, end)
                if here >= 0:
                    if length < 0:
                        faults[row] = BAD_LENGTH
                        break
                    if length > end - here:
                        here = -1
                    else:
                        start = here
                        here += length
                        kind = json.STRING
            if here < 0 or here > end:
                faults[row] = CUT
                break
            if slot >= 0:
                starts[slot, row], lengths[slot, row], kinds[slot, row] = start, here - start, kind
        if faults[row] == 0 and here != end:
            faults[row] = TRAILING


@kernel
def longs(data, starts, lengths, low, high, out):  # type: ignore[no-untyped-def]
    """Parse numbers. Return the first row that is not between ``low`` and ``high``, or -1."""
    for row in range(starts.size):
        out[row] = 0
        if lengths[row] < 0:
            continue
        value, _ = _varint(data, starts[row], starts[row] + lengths[row])
        if value < low or value > high:
            return row
        out[row] = value
    return -1


@kernel
def float_bits(data, starts, lengths, out32, out64):  # type: ignore[no-untyped-def]
    """Copy the bits of numbers of 4 bytes to ``out32`` and of 8 bytes to ``out64``."""
    for row in range(starts.size):
        out32[row], out64[row] = 0, 0
        value = np.uint64(0)
        for place in range(np.int64(lengths[row]) - 1, -1, -1):
            value = (value << np.uint64(8)) | np.uint64(data[starts[row] + place])
        if lengths[row] == 4:
            out32[row] = np.uint32(value)
        else:
            out64[row] = value
