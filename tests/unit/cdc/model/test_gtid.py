"""The GTID set of the stream, updated from the numbers of the decoder's kernel."""

from __future__ import annotations

import numpy as np

from cdc.sources.binlog.decoder.event_fields import ORIGIN_BYTES
from cdc.sources.binlog.decoder.framing import GNO, ORIGIN
from cdc.sources.binlog.decoder.gtid_tracker import _MARIADB, Gtids


def test_gtids_mariadb_domain_keeps_its_last_server():
    gtids = Gtids("0-1-3", 2)
    for origin, server in enumerate((1, 2)):
        at = origin * ORIGIN_BYTES
        gtids.origins[at + 4] = server
        gtids.origins[at + 16] = _MARIADB
    seen = np.zeros((3, max(GNO, ORIGIN) + 1), np.int64)
    seen[:, ORIGIN], seen[:, GNO] = (0, 1, 0), (4, 5, 6)
    gtids.add(seen)
    assert gtids.text == "0-1-6"
