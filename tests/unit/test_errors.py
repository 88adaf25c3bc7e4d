"""Hints get the name of the job that they are shown for."""

from __future__ import annotations

import pytest

from cdc.errors import LEAVE_OUT, LOAD_AGAIN, with_job


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (LEAVE_OUT.split(" goes")[0], "`cdc resume shop --accept-gap`"),
        (LOAD_AGAIN.split("with ")[1], "`cdc snapshot shop TABLE`."),
        ("Run `cdc resume`.", "Run `cdc resume shop`."),
        ("`cdc resume --past-ddl`", "`cdc resume shop --past-ddl`"),
        ("`cdc snapshot ... a.b --where '1 = 1'`", "`cdc snapshot shop a.b --where '1 = 1'`"),
        ("`cdc resume other --past-ddl`, `cdc start JOB.yaml`", "`cdc resume other --past-ddl`, `cdc start JOB.yaml`"),
    ],
)
def test_with_job_fills_in_the_name(hint, shown):
    assert with_job(hint, "shop") == shown
