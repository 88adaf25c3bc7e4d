"""The reference pages of the job file and of the file of `cdc serve`, and the JSON Schema of the job file."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, Discriminator, SecretStr, Tag
from pydantic.fields import FieldInfo

from cdc.config import fields as kinds
from cdc.config.models import Config
from cdc.config.serve_models import ServeConfig
from cdc.config.verify_models import share
from tests.support.markdown import NOTICE, code, table

DURATION, SIZE = (get_args(kind)[1].func for kind in (kinds.Seconds, kinds.Bytes))
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def job_file_page() -> str:
    top = [row for name, field in Config.model_fields.items() for row in key_rows(name, field, nested=False)]
    parts = [
        NOTICE,
        "# Job file\n",
        "A job is one YAML file. This page lists every key. Types: a *duration* has a unit (`500ms`, `5s`, `10m`, `1h`, "
        "`1d`), a *size* has a unit (`64MiB`, `15MB`), a *percentage* has its sign (`1%`), a *path* is relative to the folder of the job file.\n",
        "In any value, `${NAME}` is an environment variable and `${file:/run/secrets/pw}` is the content of a file. "
        "Write `$${NAME}` for the text `${NAME}` itself. "
        "With the [JSON Schema](job.schema.json) an editor checks a file while you type: start the file with "
        "`# yaml-language-server: $schema=PATH/docs/reference/job.schema.json`. Unknown keys are errors. `cdc check JOB.yaml` reports all "
        "errors of a file at once, with their lines.\n",
        "## Top level\n",
        table(HEADER, top),
    ]
    for name, field in Config.model_fields.items():
        models = models_of(field.annotation)
        for model in models:
            word = type_word(model)
            prefix = f"{name}[]" if name == "channels" else name
            parts += [f"## {f'`{name}`' if word is None else f'`{name}` with `type: {word}`'}\n"]
            keys = sorted(model.model_fields.items(), key=lambda one: one[0] != "type")
            parts += [table(HEADER, [row for key, one in keys for row in key_rows(key, one, prefix)])]
    return "\n".join(parts)


def serve_file_page() -> str:
    rows = [row for name, field in ServeConfig.model_fields.items() for row in key_rows(name, field)]
    intro = (
        "The file is an argument of `cdc serve`, the same on every host. All of it may be omitted on one host. Types and `${NAME}` are those "
        "of the [job file](job-file.md). [Run many jobs on several hosts](../how-to/several-hosts.md) has an example.\n"
    )
    return "\n".join([NOTICE, "# File of cdc serve\n", intro, table(HEADER, rows)])


HEADER = ("Key", "Type", "Default", "Range", "Description")


def key_rows(name: str, field: FieldInfo, prefix: str = "", *, nested: bool = True) -> Iterator[tuple[str, ...]]:
    path = ".".join(filter(None, (prefix, field.alias or name)))
    kind, limits = describe(field.annotation, field.metadata)
    assert field.description, f"{path} has no description"
    yield (code(path), kind, default(field), ", ".join(dict.fromkeys(limits)), field.description)
    for model in models_of(field.annotation) if nested else ():
        for key, one in model.model_fields.items():
            yield from key_rows(key, one, path)


def models_of(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        parts = parts[:1]
    return [model for part in parts for model in models_of(part)]


def type_word(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    return None if field is None else str(get_args(field.annotation)[0])


def describe(kind: Any, metadata: Sequence[Any]) -> tuple[str, list[str]]:
    """Return the type in words and the limits of its values."""
    validators = [one.func for one in metadata if isinstance(one, BeforeValidator)]
    for word, parse, text in (("duration", DURATION, duration_text), ("size", SIZE, size_text)):
        if parse in validators:
            found = [limit for one in metadata if (limit := limit_text(one, text))]
            return word, [limit for limit in found if limit != "> 0" or len(found) == 1] or ["> 0"]
    if share in validators:
        return "percentage", ["> 0%", "<= 100%"]
    limits = [limit for one in metadata if (limit := limit_text(one))]
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        if any(isinstance(one, Tag | Discriminator) for one in more):
            return describe(inner, metadata)
        return describe(inner, [*metadata, *more])
    if get_origin(kind) in (Union, types.UnionType):
        found = [describe(part, metadata) for part in get_args(kind) if part is not type(None)]
        return " or ".join(dict.fromkeys(word for word, _ in found)), [limit for _, more in found for limit in more]
    return plain_type(kind, metadata), limits


def plain_type(kind: Any, metadata: Sequence[Any]) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(code(str(part)) for part in parts)
    if origin is tuple:
        return f"list of {describe(parts[0], ())[0]}"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "mapping"
    validators = {getattr(one, "func", None) for one in metadata}
    if kinds._path in validators:
        return "path"
    if kinds._address in validators:
        return "`host:port`"
    return {bool: "boolean", int: "integer", float: "number", SecretStr: "text (secret)"}.get(kind, "text")


def limit_text(one: Any, text: Callable[[Any], str] = str) -> str:
    for kind, sign in ((Gt, ">"), (Ge, ">="), (Lt, "<"), (Le, "<=")):
        if isinstance(one, kind):
            return f"{sign} {text(getattr(one, kind.__name__.lower()))}"
    if isinstance(one, MinLen):
        return "not empty"
    return ", ".join(limit_text(each, text) for each in getattr(one, "metadata", ()))


def duration_text(seconds: float) -> str:
    if not seconds:
        return "0"
    if seconds >= 3600:
        return f"{seconds / 3600:g}h"
    return f"{seconds / 60:g}m" if seconds >= 60 else f"{seconds:g}s"


def size_text(number: int) -> str:
    return next((f"{number // unit}{word}" for unit, word in UNITS if number and number % unit == 0), str(number))


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    validators = [one.func for one in field.metadata if isinstance(one, BeforeValidator)]
    if isinstance(value, BaseModel):
        changed = {name: getattr(value, name) for name in value.model_fields_set}
        return code(", ".join(f"{name}: {one}" for name, one in changed.items()))
    if value is None or value in ((), {}, "") or isinstance(value, SecretStr):
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if DURATION in validators:
        return code(duration_text(value))
    if SIZE in validators:
        return code(size_text(value))
    if share in validators:
        return code(f"{value * 100:g}%")
    if isinstance(value, tuple):
        return code(", ".join(map(str, value)))
    return code(str(value))


SCHEMA = "https://json-schema.org/draft/2020-12/schema"
VARIABLE = {"type": "string", "pattern": r"^\$\{.+\}$"}  # ${NAME} can replace any value


def job_file_schema() -> str:
    schema = for_editors(Config.model_json_schema())
    return json.dumps({"$schema": SCHEMA, "title": "Job file of spark-binlog-load", **schema}, indent=1) + "\n"


def for_editors(node: Any) -> Any:
    """Return a schema of what a user writes: settings of other programs in any form, ${NAME} for any value."""
    if isinstance(node, list):
        return [for_editors(one) for one in node]
    if not isinstance(node, dict):
        return node
    # class docstrings are for developers, and a default has the form of the program
    dropped = {"title", "default", "discriminator", "writeOnly", "format"} | (
        {"description"} if "properties" in node else set()
    )
    found = {
        name: {key: for_editors(one) for key, one in value.items()}
        if name in ("properties", "$defs")
        else for_editors(value)
        for name, value in node.items()
        if name not in dropped
    }
    if found.get("additionalProperties") == {"type": "string"}:
        found["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    if found.get("type") in ("integer", "number", "boolean") or (found.get("type") == "string" and "pattern" in found):
        text = found.pop("description", None)
        return {"anyOf": [found, VARIABLE], **({"description": text} if text else {})}
    return found
