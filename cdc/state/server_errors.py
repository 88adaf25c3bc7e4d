"""Errors of MySQL, MariaDB and PostgreSQL as CheckpointError, each with its hint, and which of them to repeat.

Source: MySQL manual, "Server Error Message Reference"; PostgreSQL manual, "PostgreSQL Error Codes".
"""

from __future__ import annotations

from typing import Any

from cdc.errors import CheckpointError

_CONFLICTS: set[int | str] = {
    *(1205, 1213, 1062),  # lock wait timeout, deadlock, another process has inserted the row
    *(1180, 3100, 3101),  # Group Replication refused the transaction at COMMIT
    *("40001", "40P01", "55P03", "23505"),  # serialization, deadlock, lock timeout, inserted by another process
}
_REPEATED_MYSQL = {
    *(2002, 2003, 2006, 2013, 2014, 2055),  # the connection failed or was lost
    1040,  # too many connections
    1053,  # the server is shutting down
    *(1290, 1792, 1836),  # read-only: the server is not the primary any more
    1927,  # MariaDB: the connection was killed
    4031,  # the server closed an idle connection
    1047,  # Galera: the node is not prepared
}
# 08: connection; 53: resources; 57P: shutdown; 57014: timeout; 25P03: idle in a transaction; 25006: read-only
_REPEATED_POSTGRES = ("08", "40", "53300", "57P", "57014", "25P03", "25006")
_LOGIN = "Correct the user in CDC_STORE and the password in CDC_STORE_PASSWORD or CDC_STORE_PASSWORD_FILE."
_GRANT = "Grant the user all privileges on the database of the store."
_WAIT = "The job continues automatically when the server is available. Check the server."
_SPACE = "Free some space on the server; the job continues automatically."
_MYSQL = {
    1044: ("The user may not use the database of the state store.", _GRANT),
    1045: ("The state store refused the login.", _LOGIN),
    1049: ("The database of the state store does not exist.", "Create it: CREATE DATABASE, then grant the user all."),
    1698: ("The state store refused the login.", _LOGIN),
    1142: ("The user may not use a table of the state store.", _GRANT),
    1143: ("The user may not use a table of the state store.", _GRANT),
    1021: ("The disk of the state store is full.", _SPACE),
    1114: ("The disk of the state store is full.", _SPACE),
    1146: ("A table of the state store is missing.", "Restore the database, or use an empty one and `--adopt`."),
    1153: ("A value is too large for the state store.", "Set `max_allowed_packet` of the server to 64M or more."),
    1205: ("Another transaction keeps a row of the state store locked.", _WAIT),
    1290: ("The state store is read-only.", "Point CDC_STORE to the primary server."),
    1836: ("The state store is read-only.", "Point CDC_STORE to the primary server."),
    1040: ("The state store has too many connections.", "Increase `max_connections` of the server."),
    2059: ("The login of the state store needs TLS.", "Add `?tls=required` to CDC_STORE."),
    2061: ("The login of the state store needs TLS.", "Add `?tls=required` to CDC_STORE."),
}
_POSTGRES = {
    "28": ("The state store refused the login.", _LOGIN),
    "3D000": (
        "The database of the state store does not exist.",
        "Create it with CREATE DATABASE and its user as owner.",
    ),
    "42501": ("The user may not use the database of the state store.", _GRANT),
    "42P01": ("A table of the state store is missing.", "Restore the database, or use an empty one and `--adopt`."),
    "53100": ("The disk of the state store is full.", _SPACE),
    "53300": ("The state store has too many connections.", "Increase `max_connections` of the server."),
    "25006": ("The state store is read-only.", "Point CDC_STORE to the primary server."),
    "55P03": ("Another transaction keeps a row of the state store locked.", _WAIT),
}
_UNREACHABLE = (
    "The state store cannot be reached.",
    "Check that its server runs and that CDC_STORE has its address. Running jobs continue automatically.",
)
_UNKNOWN = ("The state store cannot be used.", "See the cause.")
_LOGIN_TEXTS = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")


def code_of(error: BaseException) -> int | str | None:
    """Return the number of a MySQL error or the SQLSTATE of a PostgreSQL error; None if it has none."""
    original: Any = getattr(error, "orig", None) or error
    first = original.args[0] if getattr(original, "args", None) else None
    if isinstance(first, int):  # before the SQLSTATE, which recent versions of PyMySQL have too
        return first
    state = getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_conflict(error: BaseException) -> bool:
    """Return whether another transaction caused ``error``, so that a repeated one succeeds."""
    return code_of(error) in _CONFLICTS


def is_transient(error: BaseException) -> bool:
    """Return whether the transaction of ``error`` may succeed when it is repeated; its outcome may be unknown."""
    code = code_of(error)
    if is_conflict(error):
        return True
    if isinstance(code, int):
        return code in _REPEATED_MYSQL or code == 0  # PyMySQL: 0 after the connection was closed
    if isinstance(code, str):
        return code.startswith(_REPEATED_POSTGRES)
    original = getattr(error, "orig", None)
    if bool(getattr(error, "connection_invalidated", False)):
        return True
    if original is None:
        return isinstance(error, OSError | TimeoutError)
    # libpq reports failures of a connection without a code, those of a login too
    return type(original).__name__ in ("OperationalError", "ConnectionTimeout", "InterfaceError") and not any(
        text in str(original) for text in _LOGIN_TEXTS
    )


def store_error(error: BaseException, location: str) -> CheckpointError:
    """Return the CheckpointError for ``error``. Its cause has no password and no statement."""
    code, original = code_of(error), getattr(error, "orig", None) or error
    if isinstance(code, int) and code in _MYSQL:
        message, hint = _MYSQL[code]
    elif isinstance(code, str):
        known = (found for prefix, found in _POSTGRES.items() if code.startswith(prefix))
        message, hint = next(known, _UNREACHABLE if code.startswith(("08", "57P")) else _UNKNOWN)
    elif any(text in str(original) for text in _LOGIN_TEXTS):
        message, hint = ("The state store refused the login.", _LOGIN)
    else:
        message, hint = _UNREACHABLE if is_transient(error) else _UNKNOWN
    args: tuple[Any, ...] = getattr(original, "args", ())
    cause = str(args[1] if len(args) > 1 else original)
    return CheckpointError(message, hint=hint, store=location, code=code or "none", cause=" ".join(cause.split())[:300])
