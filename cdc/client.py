"""A client of the REST API of ``cdc serve``, for notebooks and scripts.

::

    jobs = Jobs("http://127.0.0.1:8480", token="...")
    jobs.start("shop.yaml")
    jobs.wait("shop", "RUNNING")
    jobs.history("shop").plot(y="lag_seconds")
"""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import requests
import yaml

from cdc.errors import CdcError, ConfigError, PrerequisiteError, error_from_json

if TYPE_CHECKING:
    import pandas as pd

ANSWER_S = 30.0  # a driver on another host answers within 6 s
POLL_S = 0.5
COLUMNS = ("job", "state", "reason", "lag_seconds", "rows_per_second", "host", "last_committed_at")


class Jobs:
    """The jobs of a ``cdc serve``. A notebook shows them as a table.

    Raises from every call: CdcError - the request is refused; PrerequisiteError - the server does not answer.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc must not replace the token
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def start(self, spec: str | Path, *, generation: int | None = None) -> int:
        """Save a job file and run the job. Return its generation; with ``generation``, only if it is the current one.

        ``spec``: the path of a file. ``${NAME}`` is replaced on the host that runs the job.
        """
        text = Path(spec).read_text(encoding="utf-8")
        headers = {"If-Match": f'"{generation}"'} if generation is not None else {}
        answer = self._ask("PUT", self._path(_name_in(text, spec)), data=text.encode(), headers=headers)
        return int(answer["generation"])

    def list(self) -> list[dict[str, Any]]:
        """Return all jobs: state, reason, hint, lag_seconds, rows_per_second, host."""
        return list(self._ask("GET", "/v1/jobs"))

    def status(self, name: str) -> dict[str, Any]:
        """Return a job. The item ``status`` has position and newest checkpoint, and the first 100 tables."""
        return dict(self._ask("GET", self._path(name)))

    def tables(self, name: str, match: str = "") -> pd.DataFrame:
        """Return all tables of a job whose names contain ``match``: source, target, upserts, deletes and so on."""
        import pandas as pd

        found: builtins.list[dict[str, Any]] = []
        while True:
            query = {"tables": 1000, "offset": len(found), "match": match}
            page = self._ask("GET", self._path(name), params=query)
            found += page["status"]["channels"]
            if not page["status"]["channels"] or len(found) >= page["tables_matching"]:
                return pd.DataFrame(found)

    def pause(self, name: str) -> None:
        """Pause a job; its position is kept. Return when its driver has accepted it."""
        self._request(name, "pause", {})

    def resume(self, name: str, **options: bool) -> None:
        """Continue after a pause. ``options``: past_ddl, apply_ddl, accept_server, accept_gap, reload_missing."""
        self._request(name, "resume", options)

    def stop(self, name: str) -> None:
        """Cancel a job for ever. The rows in its targets stay."""
        self._request(name, "stop", {})

    def move(self, name: str, host: str | None = None) -> str:
        """Move a job to ``host``, or to the best other one, and return its name. ``wait`` returns when it runs."""
        return str(self._ask("POST", f"{self._path(name)}/move", json={"host": host})["host"])

    def wait(self, name: str, state: str = "RUNNING", *, timeout_s: float = 300.0) -> dict[str, Any]:
        """Return the job as soon as it has ``state``. Raises: CdcError - not within ``timeout_s``, with its reason."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.status(name)
            if found["state"] == state:
                return found
            if time.monotonic() >= deadline:
                reason = f": {found['reason']}" if found["reason"] else ""
                raise CdcError(f"The job {name} is {found['state']}, not {state}{reason}", hint=found["hint"] or "")
            time.sleep(POLL_S)

    def history(self, name: str, minutes: float = 60) -> pd.DataFrame:
        """Return the newest samples, 2 s apart, at most an hour: lag_seconds, rows_per_second, bytes_per_second,
        window_bytes, and the seconds of a checkpoint: buffer, prepare, commit, save. Index: time in UTC.
        """
        import pandas as pd

        found = self._ask("GET", f"{self._path(name)}/history?minutes={minutes}")
        times = pd.to_datetime(pd.Series(found["times"], dtype="float64"), unit="s", utc=True)
        return pd.DataFrame(found["series"], index=pd.DatetimeIndex(times, name="time"), dtype="float64")

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(job.get(name)))}</td>" for name in COLUMNS) + "</tr>"
            for job in self.list()
        )
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def _request(self, name: str, verb: str, body: Mapping[str, Any]) -> None:
        number = self._ask("POST", f"{self._path(name)}/{verb}", json=body)["event"]
        deadline = time.monotonic() + ANSWER_S
        while (result := self._ask("GET", f"{self._path(name)}/events/{number}")["result"]) is None:
            if time.monotonic() >= deadline:
                raise PrerequisiteError(
                    f"The driver of {name} has not answered.",
                    hint=f"`jobs.status({name!r})` shows the job.",
                    event=number,
                )
            time.sleep(POLL_S)
        if not result["ok"]:
            raise error_from_json(result["error"])

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._session.request(method, self._url + path, timeout=ANSWER_S, allow_redirects=False, **options)
            body = answer.json()
        except (requests.RequestException, ValueError) as error:
            hint = "Check the address, and that the host runs."
            raise PrerequisiteError("The REST API does not answer.", hint=hint, url=self._url) from error
        if not answer.ok:
            where = {"where": body["where"]} if body.get("where") else {}
            raise error_from_json({"error": f"HTTP {answer.status_code}", **body, "context": where})
        return body

    @staticmethod
    def _path(name: str) -> str:
        return f"/v1/jobs/{quote(name, safe='')}"

    def close(self) -> None:
        """Close the connections. May be repeated."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name_in(text: str, file: str | Path) -> str:
    try:
        name = yaml.safe_load(re.sub(r"\$\{[^{}\n]*\}", "x", text)).get("name")
    except (yaml.YAMLError, AttributeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise ConfigError("The job file has no name.", hint="Add `name:` to it.", file=file)
    return name


def _shown(value: object) -> str:
    return "" if value is None else str(value)
