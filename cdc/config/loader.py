"""Read the text of a job file: YAML with line numbers, ``${...}`` replaced.

``read_job_file`` returns a tree of Nodes. ``cdc.config.issues`` converts pydantic's errors to text with line and path.
The keys themselves are in ``cdc.config.models``.

Source: YAML 1.1 as PyYAML reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import PydanticCustomError

from cdc.config.yaml_hints import with_yaml_hint
from cdc.errors import ConfigError
from cdc.files import read_limited, read_text_limited
from cdc.logging_setup import SECRET_SETTING

FILE_BYTES_MOST = 1 << 20  # a thousand channels make a tenth of this
NODES_MOST = 50_000  # aliases of aliases can create any number of nodes from a few lines
SUBSTITUTED_MOST = 16 << 20  # characters of all ${...}: one large file can be named many times
NUMBER_CHARACTERS = 1000  # of a number; reading a longer one with colons (base 60) takes minutes
NO_HOME = "~ stands for a home folder that does not exist"
NUL_INSIDE = "a path cannot contain a NUL character"

Location = tuple[str | int, ...]  # keys and indexes from the top of the file
# inside {...} YAML would read the braces of ${NAME} as its own, so other characters replace them while it parses
_BEGIN, _END = "\ue000", "\ue001"
_LITERAL = "\ue002"  # start of $${NAME}, which means the text ${NAME}, as in Docker Compose
_WRITTEN = re.compile(r"(\$?)\$\{([^{}\n\"']*)\}")
_SUBSTITUTE = re.compile(rf"{_BEGIN}([^{_END}]*){_END}|{_LITERAL}([^{_END}]*){_END}|(\$\$\{{)|\$\{{")
_WORD = re.compile(r"[\w.-]+(?=[\s:=])")
_MERGE, *_NUMBERS = (f"tag:yaml.org,2002:{name}" for name in ("merge", "int", "float"))
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """An error in a job file, with its line and path."""

    line: int
    path: Location
    message: str

    def format(self, file: str) -> str:
        """Return ``shop.yaml:12 channels[2].target: message``."""
        return (
            f"{file}:{self.line} {shown(self.path)}: {self.message}"
            if self.path
            else f"{file}:{self.line} {self.message}"
        )


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is, for messages about all of it."""

    name: str  # at the start of a sentence
    keys: str  # that it has
    example: str


JOB_FILE = FileKind("The job file", "name, source, sink and channels", "see examples/ for job files to start from")


class CrossFieldError(PydanticCustomError):
    """Error of a model validator: ``key`` conflicts with other keys of the model."""

    def __new__(cls, key: str, message: str) -> CrossFieldError:
        """Create an error whose message pydantic does not change."""
        return super().__new__(cls, "mismatch", "{message}", {"key": key, "message": message})


class HiddenValueError(ValueError):
    """Error of a validator: the value is not shown, because it may contain a password."""


@dataclass(slots=True)
class Node:
    """A value of the file with its line. ``value`` is a scalar, a list of Nodes, or a dict of Nodes."""

    value: Any
    line: int
    key_lines: dict[str, int] = field(default_factory=dict)
    substituted: bool = False  # contains the value of a ${...}, so it is never shown

    def plain(self) -> Any:
        """Return the value without lines, as YAML would."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def get(self, part: str | int) -> Node | None:
        """Return the Node under a key or an index."""
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]  # type: ignore[no-any-return]
        return None

    def items(self, key: str) -> Sequence[Node]:
        """Return the entries of the list under ``key``; () if there is no such list."""
        node = self.get(key)
        return node.value if node is not None and isinstance(node.value, list) else ()

    def line_of(self, path: Location) -> int:
        """Return the line of the deepest part of ``path`` in the file; of a mapping or list, the line of its key."""
        node, line = self, self.line
        for part in path:
            below = node.get(part)
            if below is None:
                return node.key_lines.get(str(part), line)
            line = node.key_lines.get(str(part), below.line) if isinstance(below.value, dict | list) else below.line
            node = below
        return line


def shown(path: Location) -> str:
    """Return ``path`` as text: ``channels[2].target``."""
    text = ""
    for part in path:
        if isinstance(part, str) and SECRET_SETTING.search(part) and (word := _WORD.match(part)):
            part = f"{word[0]}..."  # {password:secret}, without a space, is a key
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def read_job_file(file: Path, kind: FileKind = JOB_FILE) -> tuple[Node | None, list[ConfigIssue]]:
    """Return the tree of a job file, and the errors in its YAML and its ``${...}``.

    Raises: ConfigError - the file cannot be read at all.
    """
    try:
        data = read_limited(file, FILE_BYTES_MOST)
    except OSError as error:
        raise ConfigError(
            f"{kind.name} cannot be read: {error.strerror}.", hint="Give the path of a readable YAML file.", file=file
        ) from error
    return parse_job(data, file, kind)


def parse_job(data: bytes, file: Path, kind: FileKind = JOB_FILE) -> tuple[Node | None, list[ConfigIssue]]:
    """Return the tree of the text of a job file, and the errors in its YAML and its ``${...}``.

    ``file``: its folder is the start of the paths in ``${file:...}``. Raises: ConfigError - it is too large.
    """
    if len(data) > FILE_BYTES_MOST:
        raise ConfigError(f"{kind.name} is larger than 1 MiB.", hint="Give the path of a YAML file.", file=file)
    loader = None
    try:
        loader = yaml.SafeLoader(_WRITTEN.sub(_marked, data.decode("utf-8-sig")))
        tree = loader.get_single_node()
        if tree is None:
            return None, [ConfigIssue(1, (), f"is empty; {kind.example}")]
        reader = YamlReader(loader, file.parent)
        root = reader.node(tree, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = with_yaml_hint(" ".join(filter(None, (error.problem, error.context))))
        return None, [ConfigIssue(mark.line + 1 if mark else 1, (), f"is not valid YAML: {what}")]
    except UnicodeDecodeError as error:
        return None, [ConfigIssue(data[: error.start].count(b"\n") + 1, (), "is not UTF-8 text")]
    except yaml.YAMLError as error:
        return None, [ConfigIssue(1, (), f"is not valid YAML: {str(error).splitlines()[0]}")]
    except RecursionError:
        return None, [ConfigIssue(1, (), "is nested too deeply")]
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(root.value, dict):
        return None, [ConfigIssue(root.line, (), f"must be a mapping (key: value) with {kind.keys}")]
    return root, reader.issues


def _marked(match: re.Match[str]) -> str:
    return f"{_LITERAL if match[1] else _BEGIN}{match[2]}{_END}"


def _unmarked(match: re.Match[str]) -> str:
    """Return the original text, because keys are not substituted."""
    if match[1] is not None:
        return f"${{{match[1]}}}"
    return match[0] if match[2] is None else f"$${{{match[2]}}}"


class YamlReader:
    """Converts PyYAML's nodes to Nodes."""

    def __init__(self, loader: yaml.SafeLoader, folder: Path) -> None:
        self.issues: list[ConfigIssue] = []
        self._loader = loader
        self._folder = folder
        self._made = 0
        self._characters = 0  # of substituted values
        self._sizes: dict[int, int] = {}  # of mappings, by id; 0 while it is counted
        self._merged = 0
        self._within: set[int] = set()

    def node(self, tree: yaml.Node, path: Location) -> Node:
        """Return the root node of the file. Problems are added to ``issues``."""
        line = tree.start_mark.line + 1
        self._made += 1
        if id(tree) in self._within or self._made > NODES_MOST:
            raise _too_large(tree)
        self._within.add(id(tree))
        try:
            if isinstance(tree, yaml.MappingNode):
                return self._mapping(tree, path, line)
            if isinstance(tree, yaml.SequenceNode):
                return Node([self.node(entry, (*path, index)) for index, entry in enumerate(tree.value)], line)
            return self._scalar(tree, path, line)
        finally:
            self._within.discard(id(tree))

    def _mapping(self, tree: yaml.MappingNode, path: Location, line: int) -> Node:
        first: dict[str, int] = {}
        for key, _ in tree.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key.start_mark)
            key.value = _SUBSTITUTE.sub(_unmarked, key.value)
            key_line = key.start_mark.line + 1
            if key.value in first:
                message = f"is given twice, first in line {first[key.value]}; keep one of them"
                self.issues.append(ConfigIssue(key_line, (*path, key.value), message))
            first.setdefault(key.value, key_line)
        self._count_merged(tree)
        self._loader.flatten_mapping(tree)  # "<<"
        found: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        for key, value in tree.value:
            if not isinstance(key, yaml.ScalarNode):  # of a mapping that is merged
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key.start_mark)
            # use the text of the key: YAML 1.1 would read a column name `no` as False
            found[key.value] = self.node(value, (*path, key.value))
            key_lines[key.value] = key.start_mark.line + 1
        return Node(found, line, key_lines)

    def _count_merged(self, tree: yaml.MappingNode) -> int:
        """Return the number of keys of a mapping with those that it merges. Raises: MarkedYAMLError - too many.

        Merges of merges can create any number of keys, as aliases can, so they are counted before PyYAML copies them.
        """
        known = self._sizes.setdefault(id(tree), 0)
        if known:
            return known
        own = [value for key, value in tree.value if key.tag != _MERGE]
        size = 1 + len(own)
        for key, value in tree.value:
            for one in (value.value if isinstance(value, yaml.SequenceNode) else [value]) if key.tag == _MERGE else ():
                if isinstance(one, yaml.MappingNode):
                    if self._sizes.get(id(one)) == 0:
                        raise _too_large(tree)  # it merges itself
                    size += self._count_merged(one)
        if len(own) < len(tree.value):
            self._merged += size
        if self._merged > NODES_MOST:
            raise _too_large(tree)
        self._sizes[id(tree)] = size
        return size

    def _scalar(self, tree: yaml.Node, path: Location, line: int) -> Node:
        value = self._value(tree)
        if isinstance(value, str) and _SUBSTITUTE.search(value):
            return Node(_SUBSTITUTE.sub(lambda match: self._substitute(match, path, line), value), line, {}, True)
        if value is not None and not isinstance(value, str | int | float | bool):
            value = tree.value  # dates and similar values are text in a job file
        return Node(value, line)

    def _value(self, tree: yaml.Node) -> Any:
        """Return the YAML value of a scalar, or its text if YAML cannot convert it; the model reports it then."""
        if tree.tag in _NUMBERS and len(tree.value) > NUMBER_CHARACTERS:
            return tree.value
        try:
            value = self._loader.construct_object(tree)
            str(value)  # fails for a number of thousands of digits, which Python reads in hexadecimal
        except (ValueError, ArithmeticError, LookupError, AttributeError):  # raised by PyYAML's conversions
            value = self._loader.constructed_objects[tree] = tree.value  # an alias reads it again
        return value

    def _substitute(self, match: re.Match[str], path: Location, line: int) -> str:
        inside = match[1]
        if match[2] is not None or match[3]:
            return "${" if match[2] is None else f"${{{match[2]}}}"
        if inside is not None and inside.startswith("file:"):
            try:
                file = self._folder / Path(inside.removeprefix("file:")).expanduser()
                return self._counted(read_text_limited(file, FILE_BYTES_MOST).rstrip("\r\n"), line)
            except (OSError, RuntimeError, ValueError) as error:
                reason = _unreadable(error)
                self.issues.append(ConfigIssue(line, path, f"the file of ${{{inside}}} cannot be read: {reason}"))
        elif inside is not None and _VARIABLE.fullmatch(inside):
            if inside in os.environ:
                return self._counted(os.environ[inside], line)
            message = (
                f"the environment variable {inside} is not set; run `export {inside}=...` first, "
                f"or write $${{{inside}}} for the text ${{{inside}}} itself"
            )
            self.issues.append(ConfigIssue(line, path, message))
        else:
            form = "${" if inside is None else f"${{{inside}}}"
            known = (
                "write ${NAME} for an environment variable, ${file:/path} for the text of a file, $${ for the text ${"
            )
            self.issues.append(ConfigIssue(line, path, f"{form} is not valid; {known}"))
        return "?"  # so that the missing value is not reported a second time

    def _counted(self, value: str, line: int) -> str:
        self._characters += len(value)
        if self._characters > SUBSTITUTED_MOST:
            mark = yaml.Mark("", 0, line - 1, 0, None, 0)
            raise yaml.MarkedYAMLError(problem="the values of ${...} make it too large", problem_mark=mark)
        return value


def _too_large(tree: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem="aliases make it too large or endless", problem_mark=tree.start_mark)


def _unreadable(error: OSError | RuntimeError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return NO_HOME if isinstance(error, RuntimeError) else NUL_INSIDE
