"""Compare rows of a source with rows of a target as Arrow columns. No Python object per row exists for equal rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.row_keys import KeyIndex, Numbers

MISSING, EXTRA, DIFFERENT = range(3)  # codes of ``RowComparison.kinds``
_FLOAT_DIGITS = {pa.float32(): 1e-6, pa.float64(): 1e-14}  # relative: what remains of a number that was sent as text

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowComparison:
    """The rows that differ."""

    keys: pa.Table  # their keys, with the types of the source
    kinds: npt.NDArray[np.int8]  # MISSING, EXTRA or DIFFERENT, by row of ``keys``
    source_rows: Numbers  # their row numbers in the source; -1 for EXTRA
    target_rows: Numbers  # in the target; -1 for MISSING

    def counts(self) -> tuple[int, int, int]:
        """Return the number of missing, extra and different rows."""
        found = np.bincount(self.kinds, minlength=3)
        return int(found[MISSING]), int(found[EXTRA]), int(found[DIFFERENT])


def compare_rows(
    source: pa.Table,
    target: pa.Table,
    key: Sequence[str],
    *,
    json_columns: Collection[str] = (),
    rounds_floats: bool = False,
) -> RowComparison:
    """Return the rows of ``source`` and ``target`` that differ. Both have the same columns, in the same order.

    Values of the source are converted to the types of the target, as a load does. A key that the target has twice is
    EXTRA once. ``json_columns``: texts that are equal as documents are equal. ``rounds_floats``: the target returns
    floating-point numbers as rounded texts.
    """
    if _is_equal(source, target):
        source = target = source.slice(0, 0)
    source, target = source.combine_chunks(), target.combine_chunks()
    keys = [source.column(name) for name in key]
    target_keys = [target.column(name).cast(one.type) for name, one in zip(key, keys, strict=True)]
    found = _target_rows(keys, target_keys)
    differs = found < 0
    matched = np.flatnonzero(~differs)
    rows = found[matched]
    in_order = len(rows) == target.num_rows == source.num_rows and bool(np.all(rows == np.arange(len(rows))))
    for name in source.column_names:
        if name in key:
            continue
        one, other = source.column(name), target.column(name)
        if not in_order:
            one, other = one.take(pa.array(matched)), other.take(pa.array(rows))
        unequal = _unequal(one, other, is_json=name in json_columns, rounds=rounds_floats)
        if unequal is not None:
            differs[matched[unequal]] = True
    extra = np.ones(target.num_rows, np.bool_)
    extra[rows] = False
    return _comparison(keys, target_keys, key, found, differs, np.flatnonzero(extra))


def unequal_columns(
    source: pa.Table, target: pa.Table, *, json_columns: Collection[str] = (), rounds_floats: bool = False
) -> list[str]:
    """Return the names of the columns in which two tables of one row differ."""
    found = []
    for name in source.column_names:
        unequal = _unequal(source.column(name), target.column(name), is_json=name in json_columns, rounds=rounds_floats)
        if unequal is not None and unequal.any():
            found.append(name)
    return found


def _is_equal(source: pa.Table, target: pa.Table) -> bool:
    """Return whether both have the same rows in the same order. This is cheap: it copies nothing."""
    if source.num_rows != target.num_rows:
        return False
    try:
        return all(
            (one if one.type == other.type else one.cast(other.type)).equals(other)
            for one, other in zip(source.columns, target.columns, strict=True)
        )
    except pa.ArrowInvalid:
        return False  # a value of the source is no value of the target's type


def _comparison(
    keys: Sequence[pa.ChunkedArray],
    target_keys: Sequence[pa.ChunkedArray],
    names: Sequence[str],
    found: Numbers,
    differs: Mask,
    extra: Numbers,
) -> RowComparison:
    from_source = np.flatnonzero(differs)
    columns = [
        pa.chunked_array([*one.take(pa.array(from_source)).chunks, *other.take(pa.array(extra)).chunks], one.type)
        for one, other in zip(keys, target_keys, strict=True)
    ]
    kinds = np.where(found[from_source] < 0, MISSING, DIFFERENT)
    return RowComparison(
        pa.table(dict(zip(names, columns, strict=True))),
        np.concatenate([kinds, np.full(len(extra), EXTRA)]).astype(np.int8),
        np.concatenate([from_source, np.full(len(extra), -1)]),
        np.concatenate([found[from_source], extra]),
    )


def _target_rows(keys: Sequence[pa.ChunkedArray], target_keys: Sequence[pa.ChunkedArray]) -> Numbers:
    """Return the row in the target of each source key, -1 if it has none."""
    count = len(keys[0])
    if count == len(target_keys[0]) and all(one.equals(other) for one, other in zip(keys, target_keys, strict=True)):
        return np.arange(count)
    if not len(target_keys[0]) or not count:
        return np.full(count, -1)
    if len(keys) == 1 and pa.types.is_integer(keys[0].type):
        values = target_keys[0].to_numpy()
        order = np.argsort(values, kind="stable")  # rows of a data file are nearly in order
        values, sought = values[order], keys[0].to_numpy()
        position = np.minimum(np.searchsorted(values, sought), len(values) - 1)
        return np.where(values[position] == sought, order[position], -1)
    index = KeyIndex(target_keys)
    numbers = index.find(keys)
    return np.where(numbers < 0, -1, index.last_rows()[numbers])


def _unequal(one: pa.ChunkedArray, other: pa.ChunkedArray, *, is_json: bool, rounds: bool) -> Mask | None:
    """Return which values differ; None if all are equal. The comparison of whole columns is much faster."""
    if one.type != other.type:
        one = one.cast(other.type)
    if one.equals(other):
        return None
    if pa.types.is_list(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)  # only of vectors of which some differ
        return np.fromiter((left != right for left, right in pairs), np.bool_, len(one))
    is_null, other_null = _numpy(one.is_null()), _numpy(other.is_null())
    unequal: Mask = _numpy(pc.fill_null(pc.not_equal(one, other), False)) | (is_null != other_null)
    if rounds and one.type in _FLOAT_DIGITS:
        rows = np.flatnonzero(unequal & ~is_null & ~other_null)
        left, right = (side.take(pa.array(rows)).to_numpy().astype(np.float64) for side in (one, other))
        unequal[rows] = ~np.isclose(left, right, rtol=_FLOAT_DIGITS[one.type], atol=0)
    if is_json:
        for row in np.flatnonzero(unequal & ~is_null & ~other_null):
            unequal[row] = _document(one[row].as_py()) != _document(other[row].as_py())
    return unequal


def _document(text: str) -> object:
    try:
        return json.loads(text, parse_int=_number, parse_float=_number)
    except ValueError:
        return text


def _number(text: str) -> tuple[str, Decimal]:
    return "number", Decimal(text)  # equal for 1 and 1.0, and not equal to true


def _numpy(values: pa.ChunkedArray) -> Mask:
    return np.array(values.to_numpy(), np.bool_)
