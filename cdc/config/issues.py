"""Convert pydantic's errors to text with line and path in the job file.

Source: pydantic manual, "Validation Errors".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from cdc.config.loader import ConfigIssue, HiddenValueError, Location, Node
from cdc.logging_setup import HIDDEN, SECRET_LEAST, SECRET_PARAMETER

SHOWN_CHARACTERS = 60  # of a wrong value


def to_issues(error: ValidationError, root: Node, model: type[BaseModel]) -> list[ConfigIssue]:
    """Return pydantic's errors as text, with their lines and paths in the file. No text contains a secret."""
    issues = []
    for found in error.errors(include_url=False):
        kind = found["type"]
        if kind == "default_factory_not_called":
            continue  # the default depends on another key, whose own error is reported
        path, owner, secret = _trace(found["loc"], root, model)
        node = root
        for part in path:
            below = node.get(part)
            if below is None:
                break
            node = below
        value = found["input"]
        if kind == "union_tag_invalid" or kind == "union_tag_not_found":
            path, node = _discriminated(found, path, node)
            value = node.value
        if kind == "mismatch":
            path = (*path, found["ctx"]["key"])
            node = node.get(found["ctx"]["key"]) or node
        got = "" if secret or node.substituted else got_text(value)
        issues.append(ConfigIssue(root.line_of(path), path, _in_words(found, path, owner, got, node)))
    return issues


def _trace(
    location: Sequence[str | int], root: Node, model: type[BaseModel]
) -> tuple[Location, type[BaseModel] | None, bool]:
    """Return the path in the file of an error's location, the model that contains it, and whether it is a secret.

    A location also contains the tag of a union's member, and "[key]" for an error in a key. Neither is in the file.
    """
    path: list[str | int] = []
    node: Node | None = root
    owner: type[BaseModel] | None = model
    candidates: list[type[BaseModel]] = []
    secret = False
    for number, part in enumerate(location):
        below = node.get(part) if node is not None else None
        is_tag = any(getattr(one, "tag", None) == part for one in candidates)
        if is_tag:
            owner = next(one for one in candidates if getattr(one, "tag", None) == part)
            candidates = []
            continue
        if below is None and not (number == len(location) - 1 and isinstance(node and node.value, dict)):
            continue
        path.append(part)
        known = _fields(owner).get(str(part)) if owner is not None and isinstance(part, str) else None
        if known is not None:
            candidates = list(_models(known.annotation))
            secret = SecretStr in (known.annotation, *get_args(known.annotation))
            owner = candidates[0] if len(candidates) == 1 else None
        elif isinstance(part, str) and number < len(location) - 1:
            owner = None
        node = below
    return tuple(part for part in path if part != "[key]"), owner, secret


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _discriminated(found: Mapping[str, Any], path: Location, node: Node) -> tuple[Location, Node]:
    key = str(found["ctx"]["discriminator"]).strip("'")
    below = node.get(key)
    return (*path, key), below if below is not None else node


def _in_words(found: Mapping[str, Any], path: Location, owner: type[BaseModel] | None, got: str, node: Node) -> str:
    kind, context = found["type"], found.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), owner)
    if kind == "union_tag_invalid":
        return f"must be one of {context['expected_tags'].replace(chr(39), '')}{got}"
    if kind == "mismatch":
        return _without_substituted(str(context["message"]), node)
    if kind == "value_error":
        is_shown = not isinstance(found["input"], dict | list | tuple) and not isinstance(
            context["error"], HiddenValueError
        )
        return _without_substituted(str(context["error"]), node) + (got if is_shown else "")
    if kind in _WORDS:
        words = _WORDS[kind].format(**context).replace("'", "")
        return words + ("" if kind in _WITHOUT_VALUE else _kind_of(got, found["input"]) if kind in _PARENTS else got)
    return f"{found['msg'][:1].lower()}{found['msg'][1:]}{got}"


def _without_substituted(message: str, node: Node) -> str:
    """Return the message of a validator without the values of variables and files, which it may contain."""
    if isinstance(node.value, dict | list):
        for below in node.value.values() if isinstance(node.value, dict) else node.value:
            message = _without_substituted(message, below)
    elif node.substituted and len(node.value) >= SECRET_LEAST:
        message = message.replace(node.value, HIDDEN)
    return message


def _fields(owner: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields by their keys in a job file."""
    return {field.alias or name: field for name, field in owner.model_fields.items()}


def _unknown(key: str, owner: type[BaseModel] | None) -> str:
    names = list(_fields(owner)) if owner is not None else []
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"is not a known key; did you mean `{near[0]}`?"
    return f"is not a known key; known here: {', '.join(names)}" if names else "is not a known key"


def got_text(value: object) -> str:
    """Return `` (got 'value')`` for the end of a message."""
    if isinstance(value, dict | list | tuple | None | BaseModel):
        return {dict: " (got a mapping)", list: " (got a list)", type(None): " (got nothing)"}.get(type(value), "")
    return f" (got {value_text(value)})"


def value_text(value: object) -> str:
    """Return a scalar for a message: shortened, and without the login of an address."""
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
    text = SECRET_PARAMETER.sub(lambda found: f"{found[1]}={HIDDEN}", _without_login(text))
    short = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
    return repr(short) if isinstance(value, str) else short


def _without_login(text: str) -> str:
    """Return an address without what may be user and password: http://user:password@host, user:password@host."""
    head, at, host = text.rpartition("@")
    scheme, separator, _ = head.partition("://")
    return f"{scheme}://{HIDDEN}@{host}" if separator else f"{HIDDEN}@{host}" if at and ":" in head else text


def _kind_of(got: str, value: object) -> str:
    """Return ``got`` with the kind of a text or a number: it may be a secret, such as ``status: TOKEN``."""
    if not got or isinstance(value, bool) or not isinstance(value, str | int | float):
        return got
    return " (got text)" if isinstance(value, str) else " (got a number)"


_WORDS = {
    "missing": "is required",
    "union_tag_not_found": "is required",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "literal_error": "must be one of {expected}",
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "model_attributes_type": "must be a mapping (key: value)",
}
_PARENTS = {"tuple_type", "list_type", "dict_type", "model_type", "model_attributes_type"}
_WITHOUT_VALUE = {"missing", "union_tag_not_found", "string_too_short"}
