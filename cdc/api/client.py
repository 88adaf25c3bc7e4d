"""A client of a driver's HTTP endpoint."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cdc.api.models import REQUESTS, JobStatus, RequestBody, request_to_json
from cdc.errors import CdcError, PrerequisiteError, error_from_json, with_job
from cdc.paths import state_folder
from cdc.state.base import JobRecord
from cdc.state.events import REQUEST_S
from cdc.state.job_directory import JobDirectory
from cdc.state.processes import is_driver_alive

ANSWER_S = 5.0  # a driver replies within milliseconds, unless the machine swaps


class Driver:
    """The status endpoint of a job's driver."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._token = JobDirectory(state_folder(), record.name).known_token()

    def status(self) -> JobStatus | None:
        """Return the status of the job; None if no driver replies, or another job has the address."""
        try:
            code, body = self._ask("GET", "/status")
            status = JobStatus.from_json(body) if code == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return status if status is not None and status.job == self._record.name else None

    def request(self, requested: RequestBody) -> None:
        """Send a request. Raises: CdcError - the driver refused it; PrerequisiteError - it does not reply."""
        path = next(path for path, kind in REQUESTS.items() if isinstance(requested, kind))
        try:
            code, answer = self._ask("POST", f"/{path}", request_to_json(requested))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PrerequisiteError(
                "The driver does not reply.",
                hint=f"See `cdc logs {self._record.name}`.",
                url=self._record.status_url,
            ) from error
        if code == 409:
            refusal = error_from_json(answer)
            refusal.hint = with_job(refusal.hint, self._record.name)
            raise refusal
        if code == 401:
            raise PrerequisiteError(
                "The driver does not accept the token of this command.",
                hint="Run the command as the user that started the job, with the same CDC_HOME.",
                url=self._record.status_url,
            )
        if code != 202:
            raise CdcError(f"The driver replied {code}: {answer.get('error')}.", hint="See the job's log.")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        address = urlsplit(self._record.status_url or "")
        if address.hostname is None:
            raise ConnectionRefusedError("the job has no status address")
        if not is_driver_alive(self._record):
            # another process may use the port now, and must not get the token
            raise ConnectionRefusedError("the driver has ended")
        # the checks of a request may wait for the source; a repeated request would be carried out twice
        timeout_s = ANSWER_S if method == "GET" else REQUEST_S
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout_s)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, dict(json.loads(answer.read()))
        finally:
            connection.close()
