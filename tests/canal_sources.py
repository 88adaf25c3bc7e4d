"""What tests of the Canal receiver share: Canal servers on the suite's databases, and receivers of them."""

from __future__ import annotations

from cdc.canal.client import CanalClient
from cdc.errors import SurroundingsError
from cdc.receiver.canal import CanalReceiver
from tests.conftest import unavailable
from tests.servers.canal import DESTINATION, PASSWORD, USER, CanalServer, obtain_canal


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
