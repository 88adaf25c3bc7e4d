"""Generate the reference pages from the code: ``python -m tests.support.reference`` (``make reference``).

``pages()`` returns the text of each page. A unit test compares them with the committed pages.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel

import cdc.errors
from cdc.api import models as status_models
from cdc.api.metrics import JobCollector
from cdc.api.schema_change_models import LastChange, SchemaChangeStatus
from cdc.api.verify_models import VerifyStatus, VerifySummary, VerifyTableStatus
from cdc.cli.main import app
from cdc.manager.rest.history import StoreView
from cdc.manager.rest.host_metrics import HostMetrics
from cdc.model.change_record import ChangeCount
from cdc.state.hosts import Host
from cdc.state.write_times import WriteTimes
from channels.sinks.doris.errors import DORIS
from channels.sinks.starrocks.errors import STARROCKS
from tests.support.job_file_reference import job_file_page, job_file_schema, serve_file_page
from tests.support.markdown import NOTICE, code, table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
PRODUCT = ("cdc", "channels", "spark")


def pages() -> dict[str, str]:
    return {
        "job-file.md": job_file_page(),
        "serve-file.md": serve_file_page(),
        "cli.md": cli_page(),
        "status.md": status_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(),
        "job.schema.json": job_file_schema(),
    }


# command line

EXIT_CODES = (
    ("0", "The command has done its work."),
    ("1", "A fault while the job or the command ran, or another process runs the job already."),
    ("2", "The job file or the command line is not valid, or the command does not apply to the state of the job."),
    ("3", "A prerequisite is missing: Java, a server, the state store, a port, a privilege, a setting."),
    ("130, 143", "The command was ended by Ctrl-C or SIGTERM."),
    ("141", "The program that reads the output has ended, such as `head` in `cdc logs NAME | head`."),
)


def cli_page() -> str:
    parts = [
        NOTICE,
        "# Command line\n",
        "`NAME` is the name of a job, which is the key `name` of its job file. `cdc COMMAND --help` prints the same text.\n",
    ]
    context = click.Context(app, info_name="cdc", **app.context_settings)
    parts += command_text(app, context)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        parts += command_text(command, click.Context(command, info_name=name, parent=context))
    parts += ["## Exit codes\n", table(("Code", "Meaning"), EXIT_CODES)]
    parts += [
        "An error is printed to standard error. With `--output json`, a command that fails also prints one JSON object to "
        "standard output: `error`, `where`, `hint`, `exit_code` and `class`, as the REST API does. "
        "[Errors](errors.md) lists the classes; `UsageError` is a command line that is not valid.\n"
    ]
    return "\n".join(parts)


def command_text(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    yield f"    {context.command_path} {' '.join(command.collect_usage_pieces(context))}\n"
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    yield table(("Option", "Meaning"), [(code(name), text) for name, text in records])


# status


def status_page() -> str:
    parts = [
        NOTICE,
        "# Status\n",
        "`GET /status` and `cdc status NAME --output json` return this JSON object. Times are ISO 8601 in UTC. A value that "
        "does not apply is `null`. [Monitor a job](../how-to/monitor.md) explains how to read it.\n",
    ]
    done: set[type] = set()
    queue: list[tuple[str, type]] = [("Job", status_models.JobStatus)]
    while queue:
        title, kind = queue.pop(0)
        if kind in done:
            continue
        done.add(kind)
        rows = []
        for name, hint, text in described_fields(kind):
            rows.append((code(name), json_type(hint), text))
            queue += [(f"`{name}`", inner) for inner in status_types(hint)]
        parts += [f"## {title}\n", table(("Key", "Type", "Meaning"), rows)]
    return "\n".join(parts)


def described_fields(kind: type) -> Iterator[tuple[str, Any, str]]:
    """Yield name, type and description of each field: that of pydantic, else the comment at the end of the line."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield field.alias or name, field.annotation, field.description or ""
        return
    known = vars(status_models) | vars(sys.modules[kind.__module__]) | runtime_types()
    hints = get_type_hints(kind, known, include_extras=True)
    source = textwrap.dedent(inspect.getsource(kind))
    comments = {}
    for line in source.splitlines():
        name, _, rest = line.strip().partition(":")
        comments[name] = rest.partition("  # ")[2]
    for one in fields(kind):
        yield one.name, hints[one.name], comments.get(one.name, "")
    for name, value in vars(kind).items():  # computed values that are served like fields
        if isinstance(value, property):
            yield name, get_type_hints(value.fget)["return"], inspect.cleandoc(value.__doc__ or "")


def runtime_types() -> dict[str, Any]:
    from cdc.model.position import Position
    from cdc.model.schema_change import ChangeAction
    from cdc.state.base import Checkpoint

    return {"Position": Position, "Checkpoint": Checkpoint, "ChangeAction": ChangeAction}


def status_types(hint: Any) -> list[type]:
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
        return [hint]
    return [found for part in get_args(hint) for found in status_types(part)]


def json_type(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = [json_type(part) for part in parts if part is not type(None)]
        return " or ".join([*words, "null"] if type(None) in parts else words)
    if origin is tuple or origin is list:
        return f"list of {json_type(parts[0])}s"
    if origin is Literal:
        return " or ".join(code(str(part)) for part in parts)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(code(str(member.value)) for member in hint)
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(hint, "object")


# metrics


class Sample:
    """A job with every part that has metrics."""

    def status(self) -> Any:
        snapshot = filled(status_models.SnapshotStatus)
        channel = filled(status_models.ChannelStatus, snapshot=snapshot)
        checkpoint = filled(status_models.CheckpointStatus, seconds={"commit": 1.0})
        count = filled(ChangeCount)
        last = filled(LastChange)
        changes = SchemaChangeStatus(1, last, counts=(count,))
        verified = filled(VerifyStatus, tables=(filled(VerifyTableStatus),), ended_at="2026-01-01T00:00:00Z")
        return filled(
            status_models.JobStatus,
            checkpoint=checkpoint,
            channels=(channel,),
            lag_seconds=1.0,
            schema_changes=changes,
            verify=VerifySummary(last=verified),
            store=WriteTimes(),
            source_log=status_models.SourceLogStatus(0, 0, 0.0),
            partitions=(filled(status_models.PartitionStatus),),
            bad_rows=filled(status_models.BadRowsStatus),
        )


def filled(kind: type, **values: Any) -> Any:
    for name, hint, _ in described_fields(kind):
        first = next((part for part in get_args(hint) or (hint,) if part in (int, float, str, bool)), None)
        if isinstance(hint, type) and issubclass(hint, Enum):
            values.setdefault(name, next(iter(hint)))
        elif name not in values and first is not None and not isinstance(getattr(kind, name, None), property):
            values[name] = first()
    if kind is status_models.JobStatus:
        values["source"] = filled(status_models.SourceStatus)
        values["sink"] = filled(status_models.SinkStatus)
    return kind(**values)


def metric_table(metrics: Iterable[Metric]) -> str:
    rows = []
    for metric in metrics:
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = sorted({label for sample in metric.samples for label in sample.labels})
        rows.append((code(name), metric.type, " ".join(map(code, labels)), metric.documentation))
    return table(("Metric", "Type", "Labels", "Meaning"), rows)


def metrics_page() -> str:
    view = StoreView(hosts=(Host("a1", "run", memory=1 << 30),))
    sampler: Any = SimpleNamespace(statuses=list, view=view)
    return "\n".join(
        [
            NOTICE,
            "# Metrics\n",
            "`GET /metrics` of a running job returns these metrics in the text format of Prometheus. "
            "[Monitor a job](../how-to/monitor.md) has a scrape configuration and the values to watch.\n",
            metric_table(JobCollector(Sample()).collect()),  # type: ignore[arg-type]
            "`GET /metrics` of `cdc serve` has these for all drivers of its host, and `cdc_job_state` and "
            "`cdc_job_desired_state` for every job that is to run. It also has these, from every host for all hosts:\n",
            metric_table(HostMetrics(sampler, lambda: {"shop": 1}).collect()),
        ]
    )


# errors

HINTS = ("hint",)
ACTIONS = {
    "retry": "retries automatically, after 0.5 s, doubling up to 30 s",
    "pause": "pauses until a person runs `cdc resume`",
    "resolve": "asks the sink for the state of the load, then commits or loads again",
    "replay": "reads the range of the lost loads again and loads it again",
    "abort_open": "reads the open checkpoint again",
    "exit": "ends the process",
}


def error_classes() -> Iterator[type]:
    def walk(kind: type) -> Iterator[type]:
        yield kind
        for each in kind.__subclasses__():
            yield from walk(each)

    return (kind for kind in walk(cdc.errors.CdcError) if kind.__module__ == "cdc.errors")


def action_of(kind: type) -> str:
    error = kind.__new__(kind)
    return ACTIONS[cdc.errors.action_for(error).value]


def errors_page() -> str:
    raised = raised_errors()
    parts = [
        NOTICE,
        "# Errors\n",
        "Every error has a message, the values that name where it happened, and a hint: a command or a setting that "
        "resolves it. `cdc status` and `cdc logs` show all three. In the tables, `...` stands for a value that is known "
        "when the error happens.\n",
    ]
    for kind in error_classes():
        parts += [f"## {kind.__name__}\n", inspect.cleandoc(kind.__doc__ or "").replace("``", "`") + "\n"]
        parts += [f"The job {action_of(kind)}. Exit code of a command: {kind.exit_code}.\n"]  # type: ignore[attr-defined]
        rows = sorted(set(raised.get(kind.__name__, ())))
        if rows:
            parts += [table(("Message", "Hint"), rows)]
    return "\n".join(parts)


def raised_errors() -> dict[str, list[tuple[str, str]]]:
    """Return (message, hint) of every error that the code creates with both as text, by class."""
    found: dict[str, list[tuple[str, str]]] = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name, message, hint in created_errors(ast.parse(path.read_text())):
                found.setdefault(name, []).append((message, hint))
    for server in (DORIS, STARROCKS):
        for refusal in server.refusals:
            message, hint_text = refusal.message.format(name=server.name, text="..."), refusal.hint.format(user="...")
            found.setdefault(refusal.error.__name__, []).append((message, hint_text))
        found.setdefault("PreparedLoadLost", []).append((server.lost, server.lost_hint))
    return found


def created_errors(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield class, message and hint of every error that a module creates with both as text, once per hint."""
    names = {kind.__name__ for kind in error_classes()}
    constants = assigned(tree.body)
    known = dict.fromkeys(ast.walk(tree), constants)
    for function in ast.walk(tree):  # an inner function after the outer one
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            known |= dict.fromkeys(ast.walk(function), known[function] | assigned(ast.walk(function)))
    for node in known:
        name = getattr(getattr(node, "func", None), "id", None)
        if not isinstance(node, ast.Call) or name not in names or not node.args:
            continue
        hint = next((one.value for one in node.keywords if one.arg in HINTS), None)
        if hint is not None:
            for message, text in product(texts(node.args[0], constants), texts(hint, known[node])):
                if message.strip(". "):
                    yield name, message, text


def assigned(statements: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values that names get, by name. ``name += value`` is a value too.

    A name that is assigned twice is left out: each value may belong to another message.
    """
    found: dict[str, list[ast.expr]] = {}
    repeated = set[str]()
    for one in statements:
        if isinstance(one, ast.Assign):
            for target in one.targets:
                if isinstance(target, ast.Name):
                    repeated |= {target.id} & found.keys()
                    found[target.id] = [one.value]
        elif isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name) and one.target.id in found:
            found[one.target.id].append(ast.BinOp(found[one.target.id][0], ast.Add(), one.value))
    return {name: values for name, values in found.items() if name not in repeated}


def texts(node: ast.expr, names: dict[str, list[ast.expr]]) -> list[str]:
    """Return the texts that an expression can have; "..." for what is known at run time only."""
    found: list[str] = []
    if isinstance(node, ast.Constant):
        text = f"{node.value:g}" if isinstance(node.value, float) else str(node.value)
        return [" ".join(text.split()) if "\n" in text else text]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in product(*(texts(one, names) for one in node.values))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in texts(node.left, names) for right in texts(node.right, names)]
    if isinstance(node, ast.FormattedValue):  # a constant; a value of the moment is "...", even if it is one of a few
        values = names.get(node.value.id, [node.value]) if isinstance(node.value, ast.Name) else [node.value]
        is_constant = isinstance(values[0], ast.Constant | ast.JoinedStr | ast.BinOp | ast.Name)
        return texts(node.value, names) if is_constant and len(values) == 1 else ["..."]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        found = [re.sub(r"\{\w*\}", "...", text) for text in texts(node.func.value, names)]
    elif isinstance(node, ast.IfExp):
        found = texts(node.body, names) + texts(node.orelse, names)
    elif isinstance(node, ast.BoolOp):
        found = [text for one in node.values for text in texts(one, names)]
    elif isinstance(node, ast.Name) and node.id in names:
        others = {name: values for name, values in names.items() if name != node.id}  # x = x.strip()
        found = [text for value in names[node.id] for text in texts(value, others)]
    elif isinstance(node, ast.Name) and isinstance(value := getattr(cdc.errors, node.id, None), str):
        return [value]
    known = [text for text in dict.fromkeys(found) if text.strip(". ") or "..." not in text]
    return known if any(known) else ["..."]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
