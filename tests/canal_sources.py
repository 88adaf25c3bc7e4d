"""What tests of the Canal receiver share: Canal servers on the suite's databases, and receivers of them."""

from __future__ import annotations

from cdc.canal.client import CanalClient
from cdc.errors import SurroundingsError
from cdc.position import CanalPosition
from cdc.receiver.canal import CanalReceiver
from tests.conftest import unavailable
from tests.receiving import until
from tests.servers.canal import DESTINATION, PASSWORD, USER, CanalServer, obtain_canal

CURSOR = CanalPosition("", 0)
MARKS = "canal_marks"


def canal_server(folder, source, **options):
    """A Canal server, not started yet."""
    try:
        jars = obtain_canal()
    except SurroundingsError as error:
        unavailable(str(error))
    return CanalServer(jars, folder, source, **options)


def client_of(address, **options):
    settings = {"destination": DESTINATION, "username": USER, "password": PASSWORD, **options}
    return CanalClient([address], **settings)


def canal_receiver(address, selection, **options):
    return CanalReceiver(lambda: client_of(address), selection, **options)


def drain(canal):
    """Ack all that was written so far: whoever connects next gets only what is written from now on."""
    canal.source.execute(
        f"CREATE DATABASE IF NOT EXISTS {MARKS}",
        f"CREATE TABLE IF NOT EXISTS {MARKS}.marks (id INT PRIMARY KEY AUTO_INCREMENT)",
        f"INSERT INTO {MARKS}.marks () VALUES ()",
    )
    with client_of(canal.address) as client:
        seen = False

        def done():
            nonlocal seen
            message = client.get(4096, 100)
            if message is not None:
                seen = seen or any(entry.header.table == "marks" for entry in message.entries())
                client.ack(message)
            return seen and message is None

        until(done, what="the end of what Canal has")
