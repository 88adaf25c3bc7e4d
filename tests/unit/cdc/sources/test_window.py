"""The window between a reading thread and the Consumer."""

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.batch import Batch, Changes
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.sources.window import Window

SCHEMA = TableSchema("shop", "orders", (), ())


def at(offset):
    return BinlogPosition("bin.000001", offset, "s")


def batch(offset, byte_count=800):
    rows = pa.RecordBatch.from_arrays([pa.array(np.zeros(byte_count // 8, dtype=np.int64))], ["a"])
    changes = (Changes(SCHEMA, rows),) if byte_count else ()
    return Batch(changes, at(offset - 1), at(offset), True, 1, rows.num_rows, byte_count, None, None)


def put_in_background(window, *batches):
    done = []
    thread = threading.Thread(target=lambda: done.extend(window.put(each) for each in batches), daemon=True)
    thread.start()
    return thread, done


def test_window_get_raises_the_error_after_all_batches():
    window = Window(10_000)
    window.put(batch(1))
    window.put(batch(2))
    window.stop(ValueError("the end"))
    assert [window.get(0).last.offset, window.get(0).last.offset] == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="the end"):
            window.get(0)


def test_window_put_blocks_until_rows_are_taken():
    window = Window(1600)
    thread, done = put_in_background(window, batch(1), batch(2), batch(3))
    assert window.get(120).last.offset == 1
    assert window.get(120).last.offset == 2
    assert window.is_full()
    assert window.get(0.05) is None
    window.release(800)
    assert window.get(120).last.offset == 3
    thread.join(120)
    assert done == [True, True, True]


def test_window_ack_frees_bytes_without_taken():
    window = Window(800)
    window.put(batch(1))
    window.get(0)
    assert window.is_full()
    window.ack(at(1))
    assert not window.is_full()


def test_window_ack_before_the_end_of_a_batch_frees_nothing():
    window = Window(1600)
    window.put(batch(5))
    window.get(0)
    window.ack(at(4))
    window.put(batch(6, 800))
    assert window.get(0) is not None
    assert window.is_full()


def test_window_put_accepts_a_batch_larger_than_the_limit():
    window = Window(100)
    assert window.put(batch(1, 8000))
    assert window.get(0).rows == 1000


def test_window_batches_without_rows_take_no_bytes():
    window = Window(800)
    window.put(batch(1))
    window.get(0)
    window.release(800)
    for offset in range(2, 50):
        window.put(batch(offset, 0))
    assert not window.is_full()


def test_window_close_wakes_a_blocked_put():
    window = Window(800)
    thread, done = put_in_background(window, batch(1), batch(2))
    window.close()
    thread.join(120)
    assert done[-1] is False


def test_window_close_releases_the_rows():
    window, held = Window(10_000), batch(1)
    before = sys.getrefcount(held)
    window.put(held)
    window.close()
    assert sys.getrefcount(held) == before and window.bytes_held() == 0
