"""Foreign keys of MariaDB tables, read from SHOW CREATE TABLE.

MariaDB shows foreign keys in ``information_schema`` only to accounts that have a privilege other than SELECT on the
table. SHOW CREATE TABLE shows them with SELECT alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.mysql.ddl_tokens import Token, TokenCursor, Unreadable, specifications, tokens_of

Rule = tuple[str, str, str, str, str]  # database and name of the parent, constraint, "DELETE" or "UPDATE", action


def rules_of(create_table: str, database: str, *, ansi_quotes: bool) -> Iterator[Rule]:
    """Yield the actions of the foreign keys in ``create_table``, a statement from SHOW CREATE TABLE.

    Raises: Unreadable, sqlglot.errors.SqlglotError - the text has an unknown form.
    """
    for part in specifications(_body(tokens_of(create_table, ansi_quotes, mariadb=True))):
        name = part.name() if part.take("CONSTRAINT") else ""
        if not part.take("FOREIGN", "KEY"):
            continue
        while not part.take("REFERENCES"):
            _step(part)
        parent = part.name()
        owner = database
        if part.take("."):
            owner, parent = parent, part.name()
        while not part.done:
            if not part.take("ON"):
                _step(part)
                continue
            verb = part.take_any(frozenset(("DELETE", "UPDATE")))
            if not verb:
                raise Unreadable
            action = part.take_any(frozenset(("CASCADE", "RESTRICT", "SET", "NO")))
            yield owner, parent, name, verb, f"SET {part.word()}" if action == "SET" else action


def _step(part: TokenCursor) -> None:
    if part.done:
        raise Unreadable
    part.at += 1


def _body(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return the tokens inside the first pair of outer brackets."""
    depth, start = 0, 0
    for index, token in enumerate(tokens):
        if token.word == "(":
            depth += 1
            start = start or index + 1
        elif token.word == ")":
            depth -= 1
            if depth == 0:
                return tokens[start:index]
    raise Unreadable
