"""Keys in several partitions are found for each type of key."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from cdc.sources.kafka.key_partitions import SLOTS, KeyPartitions

KEYS = [
    pa.array(range(1000), pa.int64()),
    pa.array(range(1000), pa.int32()),
    pa.array([f"key {one}" for one in range(1000)]),
    pa.array([f"key {one}" for one in range(1000)], pa.large_string()),
    pa.array([bytes([one % 256, one // 256]) for one in range(1000)], pa.binary()),
    pa.array([decimal.Decimal(one) / 100 for one in range(1000)], pa.decimal128(12, 2)),
    pa.array([datetime.date(2000, 1, 1) + datetime.timedelta(one) for one in range(1000)]),
    pa.array([f"label {one}" for one in range(1000)]).dictionary_encode(),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type)[:20])
def test_key_in_another_partition_is_found_in_its_row(keys):
    found = KeyPartitions()
    partitions = np.arange(1000, dtype=np.int32) % 7
    assert found.first_conflict([keys], partitions, 1) == -1
    assert found.first_conflict([keys], partitions, 1) == -1
    assert found.first_conflict([keys.slice(100, 200)], partitions[100:300], 1) == -1
    moved = partitions.copy()
    moved[640] = 6 if moved[640] != 6 else 0
    assert found.first_conflict([keys], moved, 1) == 640


def test_keys_of_two_columns_and_of_other_tables_differ():
    left, right = pa.array(["a", "ab"]), pa.array(["bc", "c"])
    found = KeyPartitions()
    assert found.first_conflict([left, right], np.array([0, 1], np.int32), 1) == -1
    assert found.first_conflict([left, right], np.array([1, 0], np.int32), 2) == -1
    ids = pa.array(range(100), pa.int32())
    assert found.first_conflict([ids], np.zeros(100, np.int32), 3) == -1
    assert found.first_conflict([ids], np.ones(100, np.int32), 4) == -1
    assert found.first_conflict([pa.array([], pa.int64())], np.array([], np.int32), 1) == -1


def test_more_keys_than_slots_give_no_false_conflict():
    found, keys = KeyPartitions(), np.arange(3 * SLOTS)
    for _ in range(2):
        assert found.first_conflict([pa.array(keys)], (keys % 5).astype(np.int32), 1) == -1
