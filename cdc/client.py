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
import ssl
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

import requests
import yaml

from cdc.api.log_page import LogPage
from cdc.errors import CdcError, ConfigError, PrerequisiteError, error_from_json
from cdc.files import read_text_file

if TYPE_CHECKING:
    import pandas as pd

ANSWER_S = 30.0  # a driver on another host answers within 6 s
REQUEST_S = 61.0  # a request that no driver has taken within 60 s is not carried out
RESULT_S = 120.0  # a driver takes a request within 60 s, and its checks of the source end within 45 s
CHECK_S = 300.0  # of source, sink and tables, with the start of Spark
POLL_S = 0.5
_PAGE = 1000  # tables or schema changes of one answer
_SET_CA = "Set CDC_CA_FILE (in Python: ca_file) to a file with"
_MISMATCHES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
COLUMNS = ("job", "state", "reason", "lag_seconds", "rows_per_second", "host", "last_committed_at")


class Jobs:
    """The jobs of a ``cdc serve``. A notebook shows them as a table.

    Raises from every call: CdcError - the request is refused; PrerequisiteError - the server does not answer.
    """

    def __init__(self, url: str, token: str | None = None, *, ca_file: str | Path | None = None) -> None:
        """``ca_file``: PEM certificates that the server is checked with; default: those of the requests package.

        Raises: ConfigError - the address or the token is not valid, or the file has no certificate that can be read.
        """
        _check_address(url)
        self._url = url.rstrip("/")
        self._pauses: dict[str, str | None] = {}  # of each job, as its caller has seen it last
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc must not replace the token
        if ca_file is not None:
            _check_certificates(ca_file)
            self._session.verify = str(ca_file)
        if token:
            _check_token(token)
            self._session.headers["Authorization"] = f"Bearer {token}"

    def start(self, spec: str | Path, *, generation: int | None = None) -> int:
        """Save a job file and run the job. Return its generation; with ``generation``, only if it is the current one.

        ``spec``: the path of a file. ``${NAME}`` is replaced on the host that runs the job.
        """
        text = read_text_file(spec, "The job file", "Give the path of a readable YAML file.")
        headers = {"If-Match": f'"{generation}"'} if generation is not None else {}
        answer = self._ask(
            "PUT", self._path(name_in(text, spec)), data=text.encode(), headers=headers, key="generation"
        )
        return int(answer["generation"])

    def list(self) -> list[dict[str, Any]]:
        """Return all jobs: state, reason, hint, lag_seconds, rows_per_second, host."""
        found = self._list("/v1/jobs")
        self._pauses = {str(one.get("job")): one.get("pause") for one in found}
        return found

    def status(
        self,
        name: str,
        *,
        tables: int = 100,
        offset: int = 0,
        match: str = "",
        after: str | None = None,
        left_out_after: str | None = None,
    ) -> dict[str, Any]:
        """Return a job. The item ``status`` has position and newest checkpoint, and ``tables`` tables from ``offset``.

        ``tables``: at most 1000. ``match``: only tables whose names contain this text. ``after``: tables by name, only
        those after this source table, "" for the first page. Without it, tables with the most changes are first.
        ``left_out_after``: in ``left_out``, only tables after this one.
        """
        query = {"tables": tables, "offset": offset, "match": match, "after": after, "left_out_after": left_out_after}
        found = self._ask("GET", self._path(name), params=query, key="status")  # None is not sent
        self._pauses[name] = found.get("pause")
        return found

    def whole_status(self, name: str, match: str = "") -> dict[str, Any]:
        """Return a job with all its tables and all that are left out, by name. ``match``: as in ``status``."""
        channels: builtins.list[dict[str, Any]] = []
        left_out: builtins.list[dict[str, Any]] = []
        while True:
            after = channels[-1]["source"] if channels else ""
            left_out_after = left_out[-1]["table"] if left_out else ""
            found = self.status(name, tables=_PAGE, match=match, after=after, left_out_after=left_out_after)
            page = found["status"]["channels"]
            # a host with an older version returns its first page again
            omitted = [one for one in found["status"]["left_out"] if one["table"] > left_out_after]
            channels += page
            left_out += omitted
            if len(page) < _PAGE and len(omitted) < _PAGE:
                return {**found, "status": {**found["status"], "channels": channels, "left_out": left_out}}

    def tables(self, name: str, match: str = "") -> pd.DataFrame:
        """Return all tables of a job whose names contain ``match``: source, target, upserts, deletes and so on."""
        import pandas as pd

        return pd.DataFrame(self.whole_status(name, match)["status"]["channels"])

    def pause(self, name: str) -> None:
        """Pause a job; its position is kept. Return when its driver has accepted it."""
        self._pauses.pop(name, None)
        self._request(name, "pause", {})

    def resume(self, name: str, **options: bool) -> None:
        """Continue after a pause. ``options``: past_ddl, apply_ddl, accept_server, accept_gap, reload_missing.

        Only the pause that ``status``, ``list`` or ``wait`` has returned last is ended. Without one, any pause is.
        """
        pause = self._pauses.get(name)
        self._request(name, "resume", {**options, "pause": pause} if pause is not None else options)

    def snapshot(self, name: str, table: str, where: str | None = None) -> None:
        """Load a table ``database.table`` again, or only the rows that the SQL condition ``where`` selects."""
        self._request(name, "snapshot", {"table": table, "where": where})

    def stop(self, name: str) -> None:
        """Cancel a job for ever. The rows in its targets stay."""
        self._request(name, "stop", {})

    def forget(self, name: str) -> None:
        """Delete the state of a job that has ended, with its position. The rows in its targets stay."""
        self._ask("DELETE", self._path(name), params={"forget": "true"})

    def check(self, spec: str) -> dict[str, Any]:
        """Check the text of a job file from the host: job, can_start, findings with problem, hint and fatal."""
        return self._ask("POST", "/v1/check", data=spec.encode(), timeout=CHECK_S, key="can_start")

    def log(self, name: str, *, lines: int = 200, offset: int | None = None) -> tuple[builtins.list[str], int]:
        """Return the last ``lines`` of the log of a job, or those after ``offset``; and the offset after them."""
        page = self.log_page(name, lines=lines, offset=offset)
        return [*page.lines], page.offset

    def log_page(self, name: str, *, lines: int = 200, offset: int | None = None) -> LogPage:
        """Return the same as ``log``, and the host and ``log_id`` of the log: ``offset`` is valid in this log only."""
        query = {"lines": lines} if offset is None else {"offset": offset}
        return LogPage.from_json(self._ask("GET", f"{self._path(name)}/logs", params=query, key="offset"))

    def events(self, name: str) -> builtins.list[dict[str, Any]]:
        """Return the newest events of a job, newest first, at most 100: state and schema changes, requests, hosts."""
        return self._list(f"{self._path(name)}/events")

    def changes(self, name: str, limit: int = 20) -> builtins.list[dict[str, Any]]:
        """Return the newest ``limit`` schema changes that a job has followed, newest first."""
        found: builtins.list[dict[str, Any]] = []
        while len(found) < limit:
            size = min(limit - len(found), _PAGE)
            query = {"limit": size, "before": found[-1]["checkpoint"] if found else None}  # None is not sent
            page = self._list(f"{self._path(name)}/changes", params=query)
            found += page
            if len(page) < size:
                break
        return found

    def move(self, name: str, host: str | None = None) -> str:
        """Move a job to ``host``, or to the best other one, and return its name. ``wait`` returns when it runs."""
        return str(self._ask("POST", f"{self._path(name)}/move", json={"host": host}, key="host")["host"])

    def hosts(self) -> builtins.list[dict[str, Any]]:
        """Return all hosts: name, address, memory_bytes, labels, is_alive, is_drained, jobs and so on."""
        return self._list("/v1/hosts")

    def drain(self, host: str) -> None:
        """Move the jobs of a host to other hosts, and assign no more to it. ``undrain`` ends that."""
        self._ask("POST", f"/v1/hosts/{_quoted(host)}/drain")

    def undrain(self, host: str) -> None:
        """Assign jobs to a drained host again."""
        self._ask("POST", f"/v1/hosts/{_quoted(host)}/undrain")

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

        found = self._ask("GET", f"{self._path(name)}/history?minutes={minutes}", key="times")
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
        number = self._ask("POST", f"{self._path(name)}/{verb}", json=body, key="event")["event"]
        began = time.monotonic()
        path = f"{self._path(name)}/events/{number}"
        while True:
            waited = time.monotonic() - began
            event = self._ask("GET", path, key="result")
            if (result := event["result"]) is not None:
                break
            is_taken = event.get("taken_by") is not None
            if waited >= (RESULT_S if is_taken else REQUEST_S):
                raise PrerequisiteError(
                    f"The driver of {name} has not answered.",
                    hint=f"`jobs.status({name!r})` shows the job."
                    + (" It has received the request, so do not repeat it at once." if is_taken else ""),
                    event=number,
                )
            time.sleep(POLL_S)
        if not result["ok"]:
            raise error_from_json(result["error"])

    def _ask(self, method: str, path: str, *, key: str = "", **options: Any) -> dict[str, Any]:
        """Return the JSON object of an answer. ``key``: one that it has."""
        code, body = self._exchange(method, path, **options)
        if not isinstance(body, dict) or (key and key not in body):
            raise self._other_server(code)
        return body

    def _list(self, path: str, **options: Any) -> builtins.list[dict[str, Any]]:
        """Return the JSON objects of an answer that is a list."""
        code, body = self._exchange("GET", path, **options)
        if not isinstance(body, list) or not all(isinstance(one, dict) for one in body):
            raise self._other_server(code)
        return body

    def _exchange(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Return the status code of an answer and its JSON value. Raises: CdcError - the request is refused."""
        try:
            options = {"timeout": ANSWER_S, **options}
            answer = self._session.request(method, self._url + path, allow_redirects=False, **options)
        except requests.exceptions.SSLError as error:
            raise _tls_error(error, self._url) from error
        except (requests.RequestException, ValueError) as error:
            raise PrerequisiteError(
                f"The REST API does not answer: {_cause(error)}.",
                hint="Check the address, and that the host runs.",
                url=self._url,
            ) from error
        try:
            body = answer.json()
            if answer.ok and answer.status_code < 300:
                return answer.status_code, body
            where = {"where": body["where"]} if body.get("where") else {}
            refusal = error_from_json({**body, "context": where})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._other_server(answer.status_code) from None
        raise refusal

    def _other_server(self, code: int) -> PrerequisiteError:
        return PrerequisiteError(
            f"The address replied HTTP {code}, not the REST API of `cdc serve`.",
            hint="Use the address that `cdc serve` prints, without a path.",
            url=self._url,
        )

    @staticmethod
    def _path(name: str) -> str:
        return f"/v1/jobs/{_quoted(name)}"

    def close(self) -> None:
        """Close the connections. May be repeated."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def name_in(text: str, file: str | Path) -> str:
    """Return the name in the text of a job file. ``file``: for the error. Raises: ConfigError - it has none."""
    try:
        name = yaml.safe_load(re.sub(r"\$\{[^{}\n]*\}", "x", text)).get("name")
    except (yaml.YAMLError, AttributeError, RecursionError, ValueError):  # ValueError: a date such as 2026-13-01
        name = None
    if not isinstance(name, str):
        raise ConfigError("The job file has no name.", hint="Add `name:` to it.", file=file)
    return name


def _quoted(name: str) -> str:
    """Return a name for a path of the API. Raises: ConfigError - no job and no host can have it."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"There is no job or host {name!r}.", hint="`cdc list` and `cdc hosts` show the names."
        ) from error


def _check_address(url: str) -> None:
    """Raise ConfigError if ``url`` is not an address. The error does not show it: it may contain a password."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    else:
        if "@" in parts.netloc:
            raise ConfigError(
                "The address of the REST API contains a user name or a password.",
                hint="Remove them from CDC_URL (in Python: url), and set CDC_TOKEN (in Python: token).",
            )
    if not is_valid:
        raise ConfigError(
            "The address of the REST API is not valid.",
            hint="Set CDC_URL (in Python: url) to http://HOST:PORT or https://HOST:PORT.",
        )


def _check_token(token: str) -> None:
    """Raise ConfigError if an HTTP header cannot contain the token. The error does not show it."""
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "The token of the REST API has a character that is not printable ASCII, such as a line break.",
            hint="Set CDC_TOKEN or the file in CDC_TOKEN_FILE (in Python: token) to a token of `cdc serve`.",
        )


def _cause(error: BaseException) -> str:
    """Return the cause of a request that failed, in a few words."""
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror and not isinstance(found, requests.RequestException):
            return found.strerror.lower()
        found = found.__cause__ or found.__context__
    if isinstance(error, requests.ConnectionError):
        return "the connection was closed"
    return "the address is not valid" if isinstance(error, ValueError) else type(error).__name__


def _check_certificates(file: str | Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:  # SSLError too
        reason = _tls_reason(error) if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"The file has no certificate that can be read: {reason}.", hint=f"{_SET_CA} PEM certificates.", file=file
        ) from error


def _tls_error(error: BaseException, url: str) -> PrerequisiteError:
    """Return what failed in the connection: the certificate of the server, or TLS."""
    found: Any = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__context__  # requests and urllib3 have raised errors of their own
    if not isinstance(found, ssl.SSLCertVerificationError):
        reason = _tls_reason(found) if found is not None else str(error)
        return PrerequisiteError(
            f"The TLS connection to the REST API failed: {reason}.",
            hint="Use http:// in the address if `cdc serve` has no certificate.",
            url=url,
        )
    hint = f"{_SET_CA} the certificate of its authority."
    if found.verify_code in _MISMATCHES:
        hint = "Use a host name or an IP address of the certificate in the address."
    reason = found.verify_message.rstrip(".")
    return PrerequisiteError(f"The certificate of the REST API is not accepted: {reason}.", hint=hint, url=url)


def _tls_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _shown(value: object) -> str:
    return "" if value is None else str(value)
