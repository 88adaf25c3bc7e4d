"""The hints of the page about errors: it shows those that the code has as text."""

from __future__ import annotations

import ast

from tests.support.reference import created_errors, raised_errors

MODULE = """
HINT = "Correct it."

def fails(error, x):
    hint = "Check that it runs."
    if x:
        hint += " Look for a lock."
    raise CdcError(f"No server: {x}.", hint=hint)

def chooses(error, x):
    who = x or "nobody"
    CdcError("Two.", hint=error.hint if x else f"Undo {who}.")
    CdcError("More" + (" of it." if x else "."), hint=HINT + (" Do not repeat it." if x else ""))
    CdcError("Named.", hint="Grant {user}.".format(user=x))

def differs(x):
    hint = "Free space."
    if x:
        hint = "Give permission."
        CdcError("No permission.", hint=hint)
    CdcError("It failed.", hint=hint)
"""

# the hint is that of another error, of another program, or one of many
WITHOUT_HINT = {
    "A privilege is missing: the account may not read the binlog.", "... cannot be read: ....", "... changes ....", "...: ....", "A file of a Delta table cannot be read or written: ....",
    "A message cannot be loaded: ....", "A row from Canal is not a valid protobuf message.", "Canal: ....",
    "Job ... is ....", "TLS with ... fails: ....", "The certificate of the REST API is not accepted: ....",
    "The disk of the Delta tables is full.", "The folder of the Delta tables cannot be written.", "The job ... ....",
    "The job ... cannot be moved: ....", "The job ... is ....", "The job ... is ..., not ......",
    "The job ... is ...: ...", "The job ... waits for a host: ....", "The job ... was stopped.",
    "The server writes no binary log.", "The value ... is not ....",
}  # fmt: skip


def test_created_errors_have_each_hint_that_the_code_can_give() -> None:
    assert [(message, hint) for _, message, hint in created_errors(ast.parse(MODULE))] == [
        ("No server: ....", "Check that it runs."),
        ("No server: ....", "Check that it runs. Look for a lock."),
        ("Two.", "Undo ...."),
        ("More of it.", "Correct it. Do not repeat it."),
        ("More of it.", "Correct it."),
        ("More.", "Correct it. Do not repeat it."),
        ("More.", "Correct it."),
        ("Named.", "Grant ...."),
        ("It failed.", "..."),
        ("No permission.", "..."),
    ]


def test_page_of_errors_shows_a_hint_for_each() -> None:
    """Otherwise write the hint in the call of the class, or assign it once in the same function."""
    shown = [one for found in raised_errors().values() for one in found]
    assert {message for message, hint in shown if not hint.strip(". ")} - WITHOUT_HINT == set()
