"""Routes of jobs."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cdc.api.models import REQUESTS, JobStatus, StopJob, request_from_json
from cdc.errors import ConfigError
from cdc.job.registry import is_here, not_run_yet
from cdc.job.remote_calls import RemoteDriver, read_log
from cdc.manager.moving import move_job
from cdc.manager.rest.actions import JobActions, check_spec, findings_of
from cdc.manager.rest.documents import (
    change_document,
    checkpoint_document,
    error_document,
    event_document,
    job_document,
    schema_of,
    shown_spec,
    status_document,
)
from cdc.manager.rest.guard import client_of
from cdc.manager.rest.history import EVERY_S, Sampler
from cdc.manager.rest.login_limit import network_of
from cdc.manager.rest.missing import no_event, no_job
from cdc.manager.rest.recent_status import RecentStatus
from cdc.paths import state_folder
from cdc.state.base import JobState
from cdc.state.deployments import Deployment
from cdc.state.job_directory import JobDirectory
from cdc.state.sql import SqlStore

PAGE = 100
_QUESTIONS = ("status", "logs")  # of hosts to drivers, deleted after their answer

_JobName = Annotated[str, Path(pattern=r"^[a-z0-9_][a-z0-9_\-]{0,39}$")]
_Before = Annotated[int | None, Query(ge=0, le=1 << 62)]
_SPEC_BODY = {"requestBody": {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}}


async def _body(request: Request) -> bytes:
    return await request.body()  # the guard limits its size


_Body = Annotated[bytes, Depends(_body)]


class Move(BaseModel):
    """The body of a move."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    host: str | None = Field(default=None, min_length=1, max_length=190)


def job_routes(store: SqlStore, sampler: Sampler) -> APIRouter:
    """Return the routes of jobs."""
    router = APIRouter(tags=["jobs"])
    _add_reading(router, store, sampler)
    _add_changing(router, store)
    return router


def _add_reading(router: APIRouter, store: SqlStore, sampler: Sampler) -> None:
    recent = RecentStatus(store)

    @router.get("/jobs")
    def list_jobs() -> list[dict[str, Any]]:
        """List all jobs: state, reason and hint, lag, rows per second, host."""
        sampler.start()
        return [job_document(one, _summary_of(recent, one, sampler), sampler) for one in store.deployments.all()]

    @router.get("/jobs/{name}")
    def get_job(
        name: _JobName,
        tables: Annotated[int, Query(ge=0, le=1000)] = PAGE,
        offset: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
        match: Annotated[str, Query(max_length=200)] = "",
        after: Annotated[str | None, Query(max_length=400)] = None,
        left_out_after: Annotated[str, Query(max_length=400)] = "",
    ) -> dict[str, Any]:
        """Return a job: its specification, desired state, host, and the status of its driver with a page of its tables.

        `tables`, `offset`: size and begin of the page. `match`: only tables whose names contain this text. `after`:
        tables by source name, only those after this name; an empty name returns the first page. Without it, tables that
        are loading are first, then those with the most changes: this order can change between two pages.
        `left_out` has `tables` tables too, by name: those after `left_out_after`.
        """
        sampler.start()
        found = _deployment(store, name)
        status = recent.live(found.record)
        page, matching = status_document(status, match, offset, tables, after, left_out_after)
        return {
            **job_document(found, status, sampler),
            "spec": shown_spec(found.spec),
            "fence": found.fence,
            "tables_matching": matching,
            "status": page,
        }

    @router.get("/jobs/{name}/checkpoints")
    def list_checkpoints(name: _JobName, before: _Before = None) -> list[dict[str, Any]]:
        """List COMMITTED checkpoints, newest first, 100 at a time."""
        _deployment(store, name)
        found = store.committed(name, before=before if before is not None else 1 << 62, limit=PAGE)
        return [checkpoint_document(one) for one in found]

    @router.get("/jobs/{name}/changes")
    def list_changes(
        name: _JobName, limit: Annotated[int, Query(ge=1, le=1000)] = 20, before: _Before = None
    ) -> list[dict[str, Any]]:
        """List the schema changes that a job has followed, newest first. `before`: only those of older checkpoints."""
        _deployment(store, name)
        return [change_document(one) for one in store.changes(name, limit, before=before)]

    @router.get("/jobs/{name}/events")
    def list_events(name: _JobName, before: _Before = None) -> list[dict[str, Any]]:
        """List state changes, schema changes, take-overs and requests, newest first, 100 at a time."""
        _deployment(store, name)
        found = store.events.newest(name, before=before, limit=PAGE)
        return [event_document(one) for one in found if one.detail.get("verb") not in _QUESTIONS]

    @router.get("/jobs/{name}/events/{number}")
    def get_event(name: _JobName, number: Annotated[int, Path(ge=0, le=1 << 62)]) -> dict[str, Any]:
        """Return one event: the result of a request, once there is one."""
        event = store.events.get(number)
        if event is None or event.job != name:
            raise no_event(name, number)
        return event_document(event)

    @router.get("/jobs/{name}/history")
    def get_history(name: _JobName, minutes: Annotated[float, Query(gt=0, le=60)] = 60) -> dict[str, Any]:
        """Return samples of the last minutes; null: no driver answered. Kept in memory for an hour."""
        sampler.start()
        _deployment(store, name)
        times, series = sampler.history(name).since(time.time() - 60 * minutes)
        return {"job": name, "interval_seconds": EVERY_S, "times": times, "series": series}

    @router.get("/jobs/{name}/logs")
    def get_log(
        name: _JobName,
        lines: Annotated[int, Query(ge=0, le=5000)] = 200,
        offset: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    ) -> dict[str, Any]:
        """Return the last lines of the log of a job, or its lines after `offset`; and the offset after them.

        After a move, the log is another file: an offset is valid only for the same `log_id`. `host` has this log.
        """
        record = _deployment(store, name).record
        if is_here(store, record):
            folder = JobDirectory(state_folder(), name)
            if not record.job_file and not folder.log.is_file():
                raise not_run_yet(record)
            answer = read_log(folder, {"lines": lines, "offset": offset}, store.host)
            return {"job": name, **answer}
        return {"job": name, **asdict(RemoteDriver(store, record).log(lines=lines, offset=offset))}


def _add_changing(router: APIRouter, store: SqlStore) -> None:
    actions = JobActions(store)

    @router.put("/jobs/{name}", openapi_extra=_SPEC_BODY, responses={409: {"description": "Another generation."}})
    def put_job(name: _JobName, body: _Body, request: Request, if_match: Annotated[str, Header()] = "") -> Response:
        """Save the specification of a job (a job file, YAML or JSON) and run it. `If-Match`: the generation."""
        spec, expected = _text(body), _generation(if_match)
        try:
            check_spec(name, spec)
        except ConfigError as error:
            return JSONResponse(error_document(error), status_code=400)
        generation = actions.declare(name, spec, expected, _actor(request))
        return JSONResponse({"job": name, "generation": generation}, headers={"ETag": f'"{generation}"'})

    @router.delete("/jobs/{name}", status_code=202)
    def delete_job(name: _JobName, request: Request, tasks: BackgroundTasks, forget: bool = False) -> dict[str, Any]:
        """Stop a job for ever. `forget=true`: delete the state of a job that has ended; its rows stay."""
        found = _deployment(store, name)
        if forget:
            actions.forget(found)
            return {"job": name, "is_forgotten": True}
        return _send(found, "stop", StopJob(), request, tasks)

    @router.post("/check", openapi_extra=_SPEC_BODY)
    def check(body: _Body) -> Response:
        """Check a specification, its source, sink and tables from this host. Nothing changes."""
        try:
            return JSONResponse(findings_of(store, _text(body)))
        except ConfigError as error:
            return JSONResponse(error_document(error), status_code=400)

    def _send(found: Deployment, verb: str, body: Any, request: Request, tasks: BackgroundTasks) -> dict[str, Any]:
        number = actions.request(found, verb, body, _actor(request))
        tasks.add_task(actions.deliver, found, number, body)  # after the answer
        return {"job": found.job, "event": number}

    def add_action(verb: str) -> None:
        kind = REQUESTS[verb]
        schema = {"requestBody": {"content": {"application/json": {"schema": schema_of(kind)}}}}

        def act(name: _JobName, body: _Body, request: Request, tasks: BackgroundTasks) -> dict[str, Any]:
            try:
                requested = request_from_json(verb, body)
            except ValueError as error:
                raise HTTPException(400, f"The body is refused: {error}") from None
            return _send(_deployment(store, name), verb, requested, request, tasks)

        act.__doc__ = f"{kind.__doc__} The event of the answer gets the result."
        router.add_api_route(
            f"/jobs/{{name}}/{verb}", act, methods=["POST"], status_code=202, name=verb, openapi_extra=schema
        )

    for verb in REQUESTS:
        add_action(verb)

    move_schema = {"requestBody": {"content": {"application/json": {"schema": schema_of(Move)}}}}

    @router.post("/jobs/{name}/move", status_code=202, openapi_extra=move_schema)
    def move(name: _JobName, body: _Body, request: Request) -> dict[str, Any]:
        """Move a job to another host; its position is kept. Without `host`, the best other host gets it."""
        try:
            wanted = Move.model_validate_json(body or b"{}").host
        except ValidationError as error:
            raise HTTPException(400, f"The body is refused: {error.errors()[0]['msg']}") from None
        host = move_job(store, _deployment(store, name), wanted, _actor(request))
        return {"job": name, "host": host}


def _deployment(store: SqlStore, name: str) -> Deployment:
    found = store.deployments.get(name)
    if found is None:
        raise no_job(name)
    return found


def _summary_of(recent: RecentStatus, found: Deployment, sampler: Sampler) -> JobStatus:
    """Return the newest known status, without a question to a driver."""
    known = sampler.status(found.job)
    if known is not None:
        return known
    status = recent.saved(found.record)
    if not found.is_held:
        return status
    record = found.record  # another host runs it: what its driver has saved
    return replace(
        status,
        state=record.state,
        reason=record.reason,
        hint=record.hint,
        resume=record.resume,
        pause=record.pause if record.state is JobState.PAUSED else None,
    )


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "The body is not UTF-8 text.") from None


def _generation(text: str) -> int | None:
    number = text.strip().removeprefix("W/").strip('"')
    if number in ("", "*"):
        return None
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise HTTPException(400, "If-Match must be a generation, such as 3.")
    return int(number)


def _actor(request: Request) -> str:
    # a program on this machine may name any text as the client of a proxy
    return f"{request.scope['state']['role']}@{network_of(client_of(request)) or 'unknown'}"
