"""The limit of tokens that are not valid: per client, with bounded memory."""

from random import Random

from cdc.manager.rest.login_limit import CLIENTS_MOST, FAILURES_MOST, REFILL_S, LoginLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_client_with_ten_failures_waits_and_others_do_not() -> None:
    clock = Clock()
    limit = LoginLimit(clock)
    for _ in range(FAILURES_MOST):
        assert limit.wait_s("10.0.0.1") == 0
        limit.add_failure("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == REFILL_S and limit.wait_s("10.0.0.2") == 0
    clock.now += REFILL_S
    assert limit.wait_s("10.0.0.1") == 0
    limit.add_failure("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == REFILL_S
    clock.now += REFILL_S * FAILURES_MOST
    limit.add_failure("10.0.0.3")
    assert len(limit._forgotten_at) == 1


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    limit = LoginLimit(Clock())
    for number in range(FAILURES_MOST):
        limit.add_failure(f"2001:db8:0:1::{number:x}")
    assert limit.wait_s("2001:db8:0:1:ffff::1") > 0 and limit.wait_s("2001:db8:0:2::1") == 0


def test_memory_and_guesses_of_many_clients_are_bounded() -> None:
    clock, random, accepted = Clock(), Random(4711), 0
    limit = LoginLimit(clock)
    for _ in range(60_000):
        client = f"{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}.1"
        clock.now += 0.001
        if limit.wait_s(client) == 0:
            accepted += 1
            limit.add_failure(client)
        assert len(limit._forgotten_at) <= CLIENTS_MOST + 1
    # each entry allows ten at once and one for each refill, in 60 s
    assert accepted <= (CLIENTS_MOST + 1) * (FAILURES_MOST + 60 / REFILL_S)


def test_text_that_is_no_address_shares_one_limit() -> None:
    limit = LoginLimit(Clock())
    for number in range(FAILURES_MOST):
        limit.add_failure("x" * number)
    assert limit.wait_s("<script>") > 0
