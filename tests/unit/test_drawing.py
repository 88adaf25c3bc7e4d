"""The cases that ``make test`` draws."""

import random

import pytest

from tests.support.drawing import drawn

CASES = [{"server": server, "sink": sink} for server in range(2) for sink in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_drawn_cases_contain_every_value(seed):
    taken = [CASES[number] for number in drawn(random.Random(seed), CASES, 3)]
    assert {one["server"] for one in taken} == {0, 1} and {one["sink"] for one in taken} == {0, 1, 2}


def test_every_case_is_drawn_by_some_seed():
    assert set.union(*(drawn(random.Random(seed), CASES, 1) for seed in range(100))) == set(range(len(CASES)))


def test_fewer_cases_than_the_count_are_all_drawn():
    assert drawn(random.Random(1), CASES, 10) == set(range(len(CASES)))


def test_only_drawn_cases_run_unless_all_or_one_are_named(pytester_run):
    assert pytester_run() == 2
    assert pytester_run("--all-cases") == 6
    assert pytester_run("::test_case[0-1]") == 1
    assert pytester_run("-k 0-1") == 1


def test_drawn_cases_of_a_file_contain_every_value(pytester_run):
    pytester_run()
    assert len({name.partition("-")[0] for name in pytester_run.names}) == 2
    assert len({name.partition("-")[2] for name in pytester_run.names}) == 2


@pytest.fixture
def pytester_run(tmp_path, monkeypatch):
    """Run a file with six cases, of which two are drawn; return how many passed."""
    file = tmp_path / "test_cases.py"
    file.write_text(
        "import pytest\n@pytest.mark.drawn(2)\n@pytest.mark.parametrize('b', range(3))\n"
        "@pytest.mark.parametrize('a', range(2))\ndef test_case(a, b): pass\n"
    )
    (tmp_path / "conftest.py").write_text(
        "from tests.support.drawing import keep_drawn as pytest_collection_modifyitems\n"
        "def pytest_addoption(parser): parser.addoption('--all-cases', action='store_true')\n"
        "def pytest_configure(config): config.addinivalue_line('markers', 'drawn(n): n cases')\n"
    )
    monkeypatch.setenv("CDC_TEST_SEED", "7")

    class Passed:
        count = 0

        def pytest_runtest_logreport(self, report):
            if report.when == "call" and report.passed:
                self.count += 1
                run.names.append(report.nodeid.partition("[")[2])

    def run(argument=""):
        passed = Passed()
        arguments = [f"{file}{argument}"] if argument.startswith("::") else [str(file), *argument.split()]
        options = [
            "-q",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            f"--rootdir={tmp_path}",
            "-c",
            str(tmp_path / "none.ini"),
        ]
        (tmp_path / "none.ini").write_text("[pytest]\n")
        pytest.main([*options, *arguments], plugins=[passed])
        return passed.count

    run.names = []
    return run
