"""Routes of verifications: their history, and the last result of each table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request

from cdc.api.verify_models import VerifyStatus, VerifyTableStatus
from cdc.manager.rest.guard import Role
from cdc.manager.rest.missing import no_job
from cdc.model.verify import Verification
from cdc.state.sql import SqlStore
from cdc.state.verifications import KEPT

_JobName = Annotated[str, Path(pattern=r"^[a-z0-9_][a-z0-9_\-]{0,39}$")]
_Limit = Annotated[int, Query(ge=1, le=KEPT)]


def verification_routes(store: SqlStore) -> APIRouter:
    """Return the routes of verifications. ``POST /v1/jobs/NAME/verify`` starts one."""
    router = APIRouter(tags=["jobs"])

    @router.get("/jobs/{name}/verifications")
    def list_verifications(name: _JobName, request: Request, limit: _Limit = 20) -> dict[str, Any]:
        """List verifications that have ended, newest first, with rows that differ, and the last result of each table.

        Only an admin sees values of columns outside the key. The status of the job has the progress of the running one.
        """
        if store.deployments.get(name) is None:
            raise no_job(name)
        found = [one for one in store.verifications(name, KEPT) if one.ended_at is not None]
        has_values = request.scope["state"]["role"] == Role.ADMIN
        return {
            "job": name,
            "verifications": [_document(one, has_values=has_values) for one in found[:limit]],
            "tables": list(_last_results(found)),
        }

    return router


def _document(found: Verification, *, has_values: bool) -> dict[str, Any]:
    differences = [asdict(one) for one in found.differences]
    if not has_values:
        for one in differences:
            del one["values"]
    position = str(found.position) if found.position is not None else None
    return {**asdict(VerifyStatus.of(found)), "position": position, "differences": differences}


def _last_results(found: Iterable[Verification]) -> Iterator[dict[str, Any]]:
    """Yield the newest result of each table, by name. ``found``: newest first."""
    newest: dict[str, dict[str, Any]] = {}
    for one in found:
        for name, table in one.tables.items():
            if name not in newest and table.is_done:
                status = asdict(VerifyTableStatus.of(name, table))
                newest[name] = {
                    **status, "number": one.number, "ended_at": one.ended_at, "sample": one.request.sample
                }  # fmt: skip
    yield from (newest[name] for name in sorted(newest))
