from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.manager.placement import PlacedJob, assign_jobs
from cdc.state.hosts import Host

GIB = 1 << 30
NAMES = ("a", "b", "c")
labels = st.dictionaries(st.sampled_from(("zone", "disk")), st.sampled_from(("x", "y")))
hosts = st.lists(
    st.builds(
        Host,
        st.sampled_from(NAMES),
        st.just("run"),
        memory=st.integers(0, 8).map(lambda number: number * GIB),
        labels=labels,
        schedulable=st.booleans(),
        lease_left_s=st.sampled_from((-1.0, 5.0)),
    ),
    unique_by=lambda host: host.name,
)
jobs = st.lists(
    st.builds(
        PlacedJob,
        st.integers(0, 20).map(lambda number: f"job{number}"),
        st.integers(1, 4).map(lambda number: number * GIB),
        labels,
        st.sampled_from((None, *NAMES)),
        st.booleans(),
    ),
    unique_by=lambda job: job.name,
)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure


@unhurried
@given(jobs, hosts, st.integers(0, 20))
def test_assign_jobs_in_any_order_gives_the_same_placements(some_jobs, some_hosts, turn):
    first = assign_jobs(some_jobs, some_hosts)
    for rows in (some_jobs, some_hosts):
        rows[:] = [*rows[turn:], *rows[:turn]]
    assert assign_jobs(some_jobs[::-1], some_hosts) == first
    assert first.keys() == {job.name for job in some_jobs}


@unhurried
@given(jobs, hosts)
def test_assign_jobs_never_moves_a_job_that_runs_or_whose_host_lives(some_jobs, some_hosts):
    found = assign_jobs(some_jobs, some_hosts)
    accepting = {host.name: host for host in some_hosts if host.is_alive and host.schedulable}
    for job in some_jobs:
        has_labels = job.host in accepting and job.selector.items() <= accepting[job.host].labels.items()
        if job.host is not None and (job.is_held or has_labels):
            assert found[job.name].host == job.host


@unhurried
@given(jobs, hosts)
def test_assign_jobs_gives_new_jobs_only_to_fitting_hosts(some_jobs, some_hosts):
    found = assign_jobs(some_jobs, some_hosts)
    by_name = {host.name: host for host in some_hosts}
    for job in some_jobs:
        chosen = found[job.name].host
        if chosen is None:
            assert found[job.name].reason and found[job.name].hint
        elif chosen != job.host:
            host = by_name[chosen]
            assert host.is_alive and host.schedulable
            assert job.selector.items() <= host.labels.items()
            used = sum(other.memory for other in some_jobs if found[other.name].host == chosen)
            assert used <= host.memory
    for job in some_jobs:  # nothing is left without a host that has the room for it
        if found[job.name].host is None:
            for host in some_hosts:
                used = sum(other.memory for other in some_jobs if found[other.name].host == host.name)
                fits = host.memory - used >= job.memory and job.selector.items() <= host.labels.items()
                assert not (host.is_alive and host.schedulable and fits)


def test_assign_jobs_spreads_equal_jobs_over_equal_hosts():
    two = [Host(name, "run", memory=8 * GIB, lease_left_s=5) for name in ("a", "b")]
    found = assign_jobs([PlacedJob(f"job{number}", GIB) for number in range(8)], two)
    assert sorted(placement.host for placement in found.values()) == ["a"] * 4 + ["b"] * 4


def test_assign_jobs_moves_a_job_away_from_the_host_that_it_avoids():
    two = [Host(name, "run", memory=8 * GIB, lease_left_s=5) for name in ("a", "b")]
    job = PlacedJob("shop", GIB, host="a", is_held=True, avoids="a")
    assert assign_jobs([job], two)["shop"].host == "b"
    assert assign_jobs([job], two[:1])["shop"].reason.startswith("no other host")


def test_assign_jobs_keeps_a_job_only_on_a_host_with_its_labels():
    hosts = [Host(zone, "run", memory=8 * GIB, labels={"zone": zone}, lease_left_s=5) for zone in ("eu", "us")]
    job = PlacedJob("shop", GIB, {"zone": "eu"}, "us")
    assert assign_jobs([job], hosts)["shop"].host == "eu"
    assert assign_jobs([PlacedJob("shop", GIB, {"zone": "eu"}, "us", is_held=True)], hosts)["shop"].host == "us"


def test_starting_host_gets_a_job_that_fits_on_no_ready_one() -> None:
    hosts = [Host("ready", "r", memory=8 << 30, lease_left_s=5)]
    hosts += [Host("starting", "s", memory=8 << 30, labels={"zone": "eu"}, is_starting=True, lease_left_s=5)]
    jobs = [PlacedJob("a", 1 << 30, {"zone": "eu"}), PlacedJob("b", 1 << 30)]
    found = assign_jobs(jobs, hosts)
    assert (found["a"].host, found["b"].host) == ("starting", "ready")
