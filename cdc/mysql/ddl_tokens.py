"""Tokens of a statement and a cursor over them, to read DDL.

They come from sqlglot's MySQL tokenizer. Comments that the server executes are code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from sqlglot.dialects.mysql import MySQL

# The last two alternatives are comments; the first ones consume quoted text, in which a comment sign has no meaning.
_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|--\s[^\n]*|\#[^\n]*"""
_EXECUTED = re.compile(rf"{_QUOTED}|/\*!\d*(.*?)\*/|/\*.*?\*/", re.DOTALL)
_EXECUTED_BY_MARIADB = re.compile(rf"{_QUOTED}|/\*M?!\d*(.*?)\*/|/\*.*?\*/", re.DOTALL)

_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class _Tokenizer(MySQL.Tokenizer):
    COMMANDS: ClassVar[set[Any]] = set()  # sqlglot would not split RENAME and SHOW statements into tokens


class _AnsiTokenizer(_Tokenizer):
    QUOTES: ClassVar[list[Any]] = ["'"]
    IDENTIFIERS: ClassVar[list[Any]] = ["`", '"']


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a sign, a name or a value."""

    text: str
    word: str  # upper case, of an unquoted word or a sign; "" for quoted names and values
    name: bool  # whether it can be an identifier
    literal: str | None = None  # of a plain string literal: its text with the quotes
    digits: str = ""  # of 0x41 "hex", of X'41' "quoted hex", of B'101' and 0b101 "bit"; ``text`` has the digits


class Unreadable(Exception):
    """The statement has an unknown form."""


class MisreadQuotes(Unreadable):
    """Text in double quotes is where only a name is valid: with ANSI_QUOTES it is a name."""


class TokenCursor:
    """A position in a list of tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def word(self, ahead: int = 0) -> str:
        """Return the next word, or the one ``ahead`` tokens after it; "" at the end and for names and values."""
        index = self.at + ahead
        return self.tokens[index].word if index < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        """Consume ``words`` if they are the next tokens, in this order. Return whether they were."""
        if all(self.word(index) == word for index, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def take_any(self, words: frozenset[str]) -> str:
        """Consume and return the next token if it is one of ``words``; else return ""."""
        word = self.word()
        if word and word in words:
            self.at += 1
            return word
        return ""

    def name(self) -> str:
        """Consume and return an identifier. Raises: Unreadable - the next token is not an identifier."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or not token.name:
            is_quoted = token is not None and (token.literal or "").startswith('"')
            raise (MisreadQuotes if is_quoted else Unreadable)("a name is expected, but something else follows")
        self.at += 1
        return self.tokens[self.at - 1].text

    def if_exists(self) -> bool:
        """Consume IF EXISTS or IF NOT EXISTS. Return whether it was there."""
        return self.take("IF", "EXISTS") or self.take("IF", "NOT", "EXISTS")

    @property
    def done(self) -> bool:
        """Whether all tokens are consumed."""
        return self.at >= len(self.tokens)

    def rest(self) -> Sequence[Token]:
        """Return the tokens that are not consumed."""
        return self.tokens[self.at :]


def quote_readings(sql: str, ansi_quotes: bool | None) -> tuple[bool, ...]:
    """Return the values of ``ansi_quotes`` with which to read ``sql``. None: the sql_mode is not known."""
    if ansi_quotes is not None:
        return (ansi_quotes,)
    return (False, True) if '"' in sql else (False,)


def tokens_of(sql: str, ansi_quotes: bool, *, mariadb: bool) -> list[Token]:
    """Return the tokens of a statement. MariaDB also executes comments that begin with ``/*M!``.

    Raises: sqlglot.errors.SqlglotError - the statement is not valid SQL.
    """
    executed = _EXECUTED_BY_MARIADB if mariadb else _EXECUTED
    code = executed.sub(lambda match: f" {match[1]} " if match[1] is not None else match[0], sql)
    tokenizer = _AnsiTokenizer() if ansi_quotes else _Tokenizer()
    found: list[Token] = []
    end = -1
    for token in tokenizer.tokenize(code):
        kind = token.token_type.name
        if kind == "SEMICOLON":
            continue
        if kind == "IDENTIFIER":
            found.append(Token(token.text, "", True))
        elif kind.endswith("STRING"):
            literal = code[token.start : token.end + 1] if kind == "STRING" else None
            digits = {"HEX_STRING": "hex", "BIT_STRING": "bit"}.get(kind, "")
            if digits == "hex" and code[token.end] == "'":
                digits = "quoted hex"
            found.append(Token(token.text, "", False, literal, digits))
        elif (
            found
            and token.start == end + 1
            and found[-1].word[:1].isdigit()
            and (token.text[:1].isalpha() or token.text[:1] in "_$")
        ):
            # an unquoted name may begin with digits: sqlglot splits 2024_orders into a number and a word
            text = found.pop().text + token.text
            found.append(Token(text, text.upper(), True))
        else:
            for text in token.text.split():  # sqlglot joins some keywords, for example "ORDER BY"
                found.append(Token(text, text.upper(), text[:1].isalnum() or text[:1] in "_$" or ord(text[0]) > 127))
        end = token.end
    return found


def specifications(tokens: Sequence[Token]) -> Iterator[TokenCursor]:
    """Yield the parts of ``tokens`` between commas that are outside brackets and outside lists of names."""
    depth, start = 0, 0
    for index, token in enumerate(tokens):
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and depth == 0 and not _begins_list(tokens[start:index]):
            yield TokenCursor(tokens[start:index])
            start = index + 1
    yield TokenCursor(tokens[start:])


def _begins_list(part: Sequence[Token]) -> bool:
    """Return whether names follow with commas: DROP PARTITION p0, p1 or ORDER BY a, b. No clause follows."""
    words = [token.word for token in part[:2]]
    return words[1:] == ["PARTITION"] or words == ["ORDER", "BY"]


def literal_of(part: TokenCursor) -> str:
    """Consume a string literal and return its value. Raises: Unreadable."""
    literal = part.tokens[part.at].literal if not part.done else None
    if literal is None:
        refuse("a text is expected, but something else follows")
    part.at += 1
    if part.at < len(part.tokens) and part.tokens[part.at].literal is not None:
        refuse("two texts follow each other, which is not supported")
    return text_of(literal)


def text_of(literal: str) -> str:
    """Return the value of a string literal that has its quotes."""
    quote = literal[0]
    return re.sub(rf"{quote}{quote}|\\(.)", lambda match: _unescaped(match, quote), literal[1:-1], flags=re.S)


def _unescaped(match: re.Match[str], quote: str) -> str:
    return quote if match[1] is None else _ESCAPES.get(match[1], match[1])


def bracketed(cursor: TokenCursor) -> Sequence[Token]:
    """Consume an expression in brackets, and return the tokens inside. Raises: Unreadable."""
    if cursor.word() != "(":
        refuse("brackets are expected, but something else follows")
    depth = 0
    for index in range(cursor.at, len(cursor.tokens)):
        depth += (cursor.tokens[index].word == "(") - (cursor.tokens[index].word == ")")
        if depth == 0:
            inside = cursor.tokens[cursor.at + 1 : index]
            cursor.at = index + 1
            return inside
    refuse("a bracket is not closed")


def refuse(why: str) -> NoReturn:
    """Raise Unreadable with a reason."""
    raise Unreadable(why)
