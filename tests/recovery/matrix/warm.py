"""What a job's process begins with, done once: its parent forks every one of them."""

from __future__ import annotations

import pyarrow as pa

import tests.recovery.matrix.cell  # noqa: F401
from cdc.binlog.warm import warm_up

pa.array([1])  # imports pandas
warm_up()
