"""Canal servers on the databases of the suite, and receivers for them."""

from __future__ import annotations

from cdc.errors import PrerequisiteError
from cdc.model.position import CanalPosition
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.protocol_pb2 import Messages
from cdc.sources.canal.receiver import CanalReceiver
from tests.conftest import unavailable
from tests.emulators.canal import DESTINATION, PASSWORD, USER, CanalServer, obtain_canal
from tests.support.receiving import until

CURSOR = CanalPosition("", 0)
MARKS = "canal_marks"


def canal_server(folder, source, **options):
    """Return a Canal server that is not started yet."""
    try:
        jars = obtain_canal()
    except PrerequisiteError as error:
        unavailable(str(error))
    return CanalServer(jars, folder, source, **options)


def client_of(address, **options):
    settings = {"destination": DESTINATION, "username": USER, "password": PASSWORD, **options}
    return CanalClient([address], **settings)


def canal_receiver(address, table_filter, **options):
    return CanalReceiver(lambda: client_of(address), table_filter, **options)


def drain(canal, batches=None):
    """Ack everything written so far, so that the next connection gets only later events.

    ``batches``: gets the entries of each batch, as the server has sent them.
    """
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
                if batches is not None:
                    batches.append(list(Messages.FromString(message.body).messages))
                client.ack(message)
            return seen and message is None

        until(done, what="the end of the events in Canal")
