"""The selection of benchmarks, and the command that runs one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.rig.suite import ON_REQUEST, PROGRAMS, SINKS, cases


def test_cases_without_names_are_all_with_unique_titles():
    found = cases([])
    assert len({case.title for case in found}) == len(found)
    assert {case.name.partition(".")[0] for case in found} == {*PROGRAMS} - {*ON_REQUEST}


def test_cases_of_an_unknown_name_are_refused():
    with pytest.raises(SystemExit, match=r"no benchmark decode\.all"):
        cases(["decode", "decode.all"])
    with pytest.raises(SystemExit, match="accepts --receiver"):
        cases(["decode"], sink="null")


def test_cases_with_sink_are_those_measured_with_it():
    assert [case.name for case in cases(["end_to_end"], sink="null")] == [
        "end_to_end.catch_up", "end_to_end.wide", "end_to_end.many_tables",
    ]  # fmt: skip
    assert {case.options.sink for case in cases(["clusters"], receiver="binlog")} == {*SINKS} - {"delta", "s3", "null"}


def test_cases_with_a_new_route_take_the_first_of_each_name():
    (case,) = cases(["end_to_end.catch_up"], receiver="files", sink="null")
    assert (case.options.receiver, case.options.sink, case.options.figure) == ("files", "null", "e2e.files.null")


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 5_000_000), ({"quick": True}, 500_000), ({"quick": True, "rows": 7}, 7)]
)
def test_cases_rows_are_requested_quick_or_default(options, expected):
    (case,) = cases(["end_to_end.throughput"], **options)
    assert case.options.rows == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_case_arguments_select_the_same_case(name):
    for case in cases([name], rows=7):
        _, in_process, *more = case.arguments()
        options = dict(zip(more[::2], more[1::2], strict=True))
        rows = int(options.get("--rows", 0))
        assert in_process == "--in-process"
        assert cases([case.name], receiver=options.get("--receiver"), sink=options.get("--sink"), rows=rows) == [case]


@pytest.mark.parametrize(
    ("receiver", "sink", "expected"),
    [("binlog", "delta", "e2e.delta"), ("binlog", "doris", "e2e.doris"), ("canal", "delta", "e2e.canal")],
)
def test_figure_names_receiver_and_sink(receiver, sink, expected):
    (case,) = cases(["end_to_end.cycle"], receiver=receiver, sink=sink)
    assert case.options.figure == expected


def test_documented_commands_select_cases():
    page = Path(__file__).parents[3] / "docs/explanation/performance.md"
    section = page.read_text().partition("## Repeat a figure")[2].partition("\n## ")[0]
    commands = [
        command.split()
        for column in re.findall(r"^\|[^|]+\|([^|]+)\|[^|]+\|$", section, re.MULTILINE)
        for command in re.findall(r"`([^`]+)`", column)
    ]
    selected = set()
    for name, *rest in commands:
        if name not in ("python", "make"):
            options = dict(zip(rest[::2], rest[1::2], strict=True))
            selected |= {
                case.title for case in cases([name], receiver=options.get("--receiver"), sink=options.get("--sink"))
            }
    assert selected == {case.title for case in [*cases([]), *cases(ON_REQUEST)]} - {"small_tasks.tasks"}, (
        "a figure without its command"
    )
