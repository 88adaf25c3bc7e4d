"""The key ``schema_changes`` of a job file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from cdc.config.fields import Model, Seconds
from cdc.model.schema_change import REFUSED_ACTIONS, ChangeAction, ChangeKind, ChangeMode, ChangePolicy

ALTER_TIMEOUT_S = 1800.0
_INSTEAD = {
    ChangeAction.APPLY: "the job never deletes the rows of a dropped table; use ignore or pause, and drop the target "
    "yourself",
    ChangeAction.IGNORE: "later rows are those of another table; use apply or pause",
}
_GROUPS = {kind.value.split(".")[0] for kind in ChangeKind}


class SchemaChanges(Model):
    """What the job does when a source table changes. One word sets the mode alone."""

    mode: ChangeMode = Field(
        default=ChangeMode.LENIENT,
        description=(
            "`lenient` adds, renames and widens columns, and drops or empties nothing. `evolve` does what the source "
            "does. `ignore` leaves targets as they are. `pause` pauses before each change."
        ),
    )
    kinds: dict[str, ChangeAction] = Field(
        default_factory=dict,
        description=(
            "`apply`, `ignore` or `pause` for kinds of changes, such as `drop.column`. `drop` means all `drop.*`. They "
            "override the mode."
        ),
    )
    alter_timeout: Seconds = Field(
        default=ALTER_TIMEOUT_S, description="How long one change of a table may take in Doris or StarRocks."
    )

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, value: dict[str, ChangeAction]) -> dict[str, ChangeAction]:
        known = {kind.value for kind in ChangeKind} | _GROUPS
        for name, action in value.items():
            if name not in known:
                raise ValueError(f"has no kind {name}; kinds are {', '.join(sorted(known))}")
            if name not in _GROUPS and (ChangeKind(name), action) in REFUSED_ACTIONS:
                raise ValueError(f"cannot have {name}: {action.value}; {_INSTEAD[action]}")
        return value

    @property
    def policy(self) -> ChangePolicy:
        """Return the mode and its overrides."""
        return ChangePolicy(self.mode, self.kinds)


def _mode_alone(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


_AS_WORD = BeforeValidator(_mode_alone, json_schema_input_type=SchemaChanges | ChangeMode)
SchemaChangesOrMode = Annotated[SchemaChanges, _AS_WORD]
