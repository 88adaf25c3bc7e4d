"""``python -m tests.servers.starrocks``: a stand-in in a process of its own; prints its ports as one line of JSON."""

from __future__ import annotations

import argparse
import json
import signal
import threading

from tests.servers.starrocks.settings import StarrocksSettings
from tests.servers.starrocks.stand_in import StarrocksStandIn


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--null", action="store_true", help="read bodies and throw them away")
    parser.add_argument("--backends", type=int, default=1)
    parser.add_argument("--fe-port", type=int, default=0)
    parser.add_argument("--sql-port", type=int, default=0)
    parser.add_argument("--user", default="cdc:secret", help="name:password")
    arguments = parser.parse_args()
    user, _, password = arguments.user.partition(":")
    settings = StarrocksSettings(null=arguments.null, backends=arguments.backends, users={"root": "", user: password})
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with StarrocksStandIn(settings, fe_port=arguments.fe_port, sql_port=arguments.sql_port) as starrocks:
        print(json.dumps({"fe": starrocks.fe, "sql_port": starrocks.sql_port}), flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
