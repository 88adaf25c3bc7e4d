"""Kernels that group rows by their texts, and find texts among words."""

# mypy: disable-error-code="assignment,possibly-undefined"
# (kernels mix Python's int with numpy integers)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, load_u8, load_u64, part, same_bytes


@part
def _mixed(data, at, size, value):  # type: ignore[no-untyped-def]
    """Return a hash of bytes, mixed into ``value``."""
    done = 0
    while done + 8 <= size:
        value = (value ^ load_u64(data, at + done)) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
        done += 8
    while done < size:
        value = (value ^ load_u8(data, at + done)) * np.uint64(0x100000001B3)
        done += 1
    return (value ^ np.uint64(size + 1)) * np.uint64(0x9E3779B97F4A7C15)


@part
def _same_values(data, starts, lengths, row, other):  # type: ignore[no-untyped-def]
    for slot in range(starts.shape[0]):
        size = lengths[slot, row]
        if size != lengths[slot, other]:
            return False
        if size > 0 and not same_bytes(data, starts[slot, row], data, starts[slot, other], np.int64(size)):
            return False
    return True


@kernel
def group_rows(data, starts, lengths, groups, firsts):  # type: ignore[no-untyped-def]
    """Number the rows by their values: equal texts in all slots give equal numbers, in order of the first row.

    Fills ``groups`` by row, and ``firsts``, the first row of each group. Return the number of groups.
    """
    rows = groups.size
    size = 16
    while size < 2 * rows:
        size *= 2
    table = np.full(size, -1, np.int64)
    mask = np.uint64(size - 1)
    count = 0
    for row in range(rows):
        if row and _same_values(data, starts, lengths, row, row - 1):
            groups[row] = groups[row - 1]
            continue
        value = np.uint64(0x2545F4914F6CDD1D)
        for slot in range(starts.shape[0]):
            value = _mixed(data, starts[slot, row], np.int64(max(lengths[slot, row], 0)), value)
        place = (value ^ value >> np.uint64(32)) & mask
        while True:
            group = table[np.int64(place)]
            if group < 0:
                table[np.int64(place)] = count
                firsts[count] = row
                groups[row] = count
                count += 1
                break
            if _same_values(data, starts, lengths, row, firsts[group]):
                groups[row] = group
                break
            place = (place + np.uint64(1)) & mask
    return count


@kernel
def words_of(data, starts, lengths, words, word_ends, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with the number of the word that each value equals; -1: none, -2: null or absent."""
    for row in range(starts.size):
        out[row] = -1
        size = np.int64(lengths[row])
        if size < 0:
            out[row] = -2
            continue
        begin = 0
        for word in range(word_ends.size):
            end = word_ends[word]
            if end - begin == size and same_bytes(data, starts[row], words, begin, size):
                out[row] = word
                break
            begin = end
