"""The tables of the store, for every database, and their format."""

from __future__ import annotations

from cdc.errors import CheckpointError
from cdc.state.database import SqlWords, Transaction

FORMAT = 6  # a store of another format is refused

# cdc_jobs.token: random, of the newest run; saves: number of its writes. Both detect that the store was replaced by an
# older copy. home: the ``$CDC_HOME`` of the run's host; holder: the name of that host; host: where the job is assigned.
# alerts: what `cdc serve` has posted about the job.
# Times are seconds since 1970, by the clock of the store.
TABLES = {
    "cdc_jobs": """
        name {key} NOT NULL PRIMARY KEY, fence BIGINT NOT NULL, token {key} NOT NULL, saves BIGINT NOT NULL,
        highest_id BIGINT NOT NULL, record {text} NOT NULL, lease_until DOUBLE PRECISION NOT NULL, holder {key},
        home {key}, host {key}, desired_state {key}, spec {text}, generation BIGINT NOT NULL, summary {text},
        summary_at DOUBLE PRECISION, alerts {text}""",
    "cdc_schemas": "job {key} NOT NULL, digest {key} NOT NULL, body {text} NOT NULL, PRIMARY KEY (job, digest)",
    "cdc_checkpoints": """
        job {key} NOT NULL, id BIGINT NOT NULL, state {key} NOT NULL, schemas_digest {key} NOT NULL,
        body {text} NOT NULL, PRIMARY KEY (job, id)""",
    # actions: [kind, action] of each change, without names, so that few texts differ and counting stays cheap
    "cdc_changes": """
        job {key} NOT NULL, id BIGINT NOT NULL, actions {text} NOT NULL, body {text} NOT NULL, PRIMARY KEY (job, id)""",
    # a checkpoint has the number of its newest snapshot request, so a number must not be used twice
    "cdc_snapshot_requests": "number {serial}, job {key} NOT NULL, source {text} NOT NULL, predicate {text}",
    # a checkpoint has the number of its verification
    "cdc_verifications": "number {serial}, job {key} NOT NULL, body {text} NOT NULL",
    "cdc_events": """
        id {serial}, job {key} NOT NULL, created_at DOUBLE PRECISION NOT NULL, kind {key} NOT NULL, actor {key},
        message {text} NOT NULL, detail {text}, taken_by {key}, expires_at DOUBLE PRECISION, result {text}""",
    "cdc_hosts": """
        name {key} NOT NULL PRIMARY KEY, run_id {key} NOT NULL, home {key} NOT NULL, address {text},
        memory BIGINT NOT NULL, labels {text} NOT NULL, schedulable INTEGER NOT NULL, drained INTEGER NOT NULL,
        lease_until DOUBLE PRECISION NOT NULL, seen_at DOUBLE PRECISION NOT NULL""",
}
# tables with a column ``job``
OF_JOB = tuple(name for name in TABLES if name not in ("cdc_jobs", "cdc_hosts"))
_INDEXES = {"cdc_events_of_job": "cdc_events (job, id)", "cdc_verifications_of_job": "cdc_verifications (job, number)"}


def statements(words: SqlWords) -> list[str]:
    """Return the statements that create the tables in an empty database."""
    found = []
    for name, columns in TABLES.items():
        found.append(f"CREATE TABLE {name} ({' '.join(columns.split())}){words.suffix}".format(**_types(words)))
    return [*found, *(f"CREATE INDEX {name} ON {on}" for name, on in _INDEXES.items())]


def create_tables(transaction: Transaction, words: SqlWords) -> None:
    """Create the tables and write the format."""
    for statement in statements(words):
        transaction.run(statement)


def check_format(found: int, location: str) -> None:
    """Raise CheckpointError if the store has another format than this version."""
    if found != FORMAT:
        raise CheckpointError(
            f"The state store has format {found}, but this version of cdc supports only {FORMAT}.",
            hint="Use the version of cdc that wrote the store, or set CDC_STORE or CDC_HOME to another one.",
            store=location,
        )


def _types(words: SqlWords) -> dict[str, str]:
    return {"key": words.key, "text": words.text, "serial": words.serial}
