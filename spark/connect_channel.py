"""The gRPC channel to a Spark Connect server. Import: only if the packages of Spark Connect are installed."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
from pyspark.sql.connect.client import DefaultChannelBuilder

_LOOPBACK = ("127.0.0.1", "[::1]")


class ConnectChannelBuilder(DefaultChannelBuilder):
    """Sends a token without TLS to a loopback address, as PySpark does to the host name ``localhost`` only.

    The name is not safe: gRPC tries ``::1`` first. If the server listens on 127.0.0.1 only, another user of the
    machine can listen on the same port of ``::1``, receive the token, and run code in the server with it.
    """

    def toChannel(self) -> grpc.Channel:
        """See ``DefaultChannelBuilder``."""
        if self.host in _LOOPBACK:
            self.setChannelOption("grpc.enable_http_proxy", 0)  # gRPC uses http_proxy for loopback addresses too
        if self.token is None or self.use_ssl or self.host not in _LOOPBACK:
            return super().toChannel()
        # gRPC sends a token only with credentials of the connection. These check that both ends are on this machine.
        credentials = grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(self.token)
        )
        return self._secure_channel(self.endpoint, credentials)
