"""``python -m tests.servers.doris``: a stand-in in a process of its own; prints its ports as one line of JSON."""

from __future__ import annotations

from tests.servers.doris.settings import DorisSettings
from tests.servers.doris.stand_in import DorisStandIn
from tests.servers.olap_cluster import serve

if __name__ == "__main__":
    serve(DorisSettings, DorisStandIn)
