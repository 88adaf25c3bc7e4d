"""What a server says when it refuses a binlog dump: one number for everything, so its words decide."""

from __future__ import annotations

import pytest

from cdc.binlog.connection import Endpoint, translated
from cdc.binlog.events import ServerError
from cdc.errors import PositionLost


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary "
            "logs containing GTIDs that the slave requires.",
            "gone from the server",
        ),
        ("Cannot replicate because the source purged required binary logs.", "gone from the server"),
        ("event read from binlog did not pass crc check; the first event 'b.000001' at 4", "is damaged"),
        ("event read from binlog did not pass checksum algorithm check specified on --binlog-checksum", "is damaged"),
    ],
)
def test_a_position_that_is_lost_is_known_by_the_words_of_every_version(text, told):
    error = translated(ServerError(1236, "HY000", text), Endpoint("db"))
    assert isinstance(error, PositionLost)
    assert told in error.message and text in error.message
