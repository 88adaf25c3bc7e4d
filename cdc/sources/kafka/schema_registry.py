"""A client of a schema registry (Confluent's REST interface): schemas of Avro messages by id.

Source: Confluent documentation, "Schema Registry API Reference", GET /schemas/ids/{id}.
"""

from __future__ import annotations

import base64
import http.client
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from cdc.errors import CdcError, SourceActionRequired, SourceUnavailable
from cdc.sources.kafka.formats.json_slices import parsed_json

_TIMEOUT_S = 10.0
_LARGEST = 16 << 20  # bytes of an answer
_WAITS_S = (0.2, 0.5, 1.0, 2.0)  # between attempts for an id that the registry does not know yet
_UNKNOWN = 404


class SchemaRegistry:
    """Schemas by id, each requested once: the schema of an id never changes. Calls: one thread at a time."""

    def __init__(
        self,
        url: str,
        username: str = "",
        password: str = "",
        *,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """Connect to nothing. ``wait``: waits between attempts."""
        self._url = url.rstrip("/")
        self._login = f"{username}:{password}" if username else ""
        self._wait = wait
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return an Avro schema as parsed JSON.

        Raises: SourceUnavailable - the registry does not answer; SourceActionRequired - it refuses the request, or it
        does not have the schema after several attempts.
        """
        if number not in self._known:
            status, body = self._get(f"/schemas/ids/{number}")
            for pause in _WAITS_S:
                if status != _UNKNOWN:
                    break
                self._wait(pause)
                status, body = self._get(f"/schemas/ids/{number}")
            self._known[number] = self._parsed(number, status, body)
        return self._known[number]

    def _get(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if self._login:
            headers["Authorization"] = "Basic " + base64.b64encode(self._login.encode()).decode()
        try:
            connection.request("GET", parts.path + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise SourceUnavailable(
                f"The schema registry does not answer: {error or type(error).__name__}.",
                hint="Check `source.registry.url`, and that the registry runs. The job retries automatically.",
                registry=self._url,
            ) from error
        finally:
            connection.close()

    def _parsed(self, number: int, status: int, body: bytes) -> Any:
        if status == 200:
            try:
                answer = parsed_json(body)
                if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
                    raise self._refused(
                        f"Schema {number} is not a whole Avro schema.",
                        "Let Debezium use the AvroConverter. Schemas with references are not supported.",
                    )
                return parsed_json(answer["schema"].encode())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._refused(
                    f"The schema registry's answer for schema {number} cannot be read.",
                    "Check that `source.registry.url` is the base address of a schema registry.",
                ) from error
        if status == _UNKNOWN:
            raise self._refused(
                f"The schema registry does not have schema {number}, which a message names.",
                "Check that `source.registry.url` is the registry of the producer. Then run `cdc resume NAME`.",
            )
        if status in (401, 403):
            raise self._refused(
                f"The schema registry refuses the request (HTTP status {status}).",
                "Correct `source.registry.username` and `password`. Then run `cdc resume NAME`.",
            )
        if 300 <= status < 500 and status != 429:
            raise self._refused(
                f"The schema registry answers with HTTP status {status}.",
                "Check that `source.registry.url` is the base address of a registry. Redirects are not followed.",
            )
        raise SourceUnavailable(
            f"The schema registry answers with HTTP status {status}.",
            hint="Check the registry. The job retries automatically.",
            registry=self._url,
        )

    def _refused(self, message: str, hint: str) -> CdcError:
        return SourceActionRequired(message, hint=hint, registry=self._url)
