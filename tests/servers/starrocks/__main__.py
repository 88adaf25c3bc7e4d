"""``python -m tests.servers.starrocks``: a stand-in in a process of its own; prints its ports as one line of JSON."""

from __future__ import annotations

from tests.servers.olap_cluster import serve
from tests.servers.starrocks.settings import StarrocksSettings
from tests.servers.starrocks.stand_in import StarrocksStandIn

if __name__ == "__main__":
    serve(StarrocksSettings, StarrocksStandIn)
