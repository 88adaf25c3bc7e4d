"""A schema registry with Confluent's interface for reading: strict about paths and logins, and it can be away."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class RegistryEmulator:
    """Serves ``schemas`` by number. ``answers`` are sent before them: HTTP statuses, one per request."""

    def __init__(self, login: str = "", port: int = 0) -> None:
        """``login``: user and password, with a colon between them."""
        self.schemas: dict[int, Any] = {}
        self.answers: list[int] = []
        self.requests: list[str] = []
        expected = f"Basic {base64.b64encode(login.encode()).decode()}" if login else None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                if registry.answers:
                    return self._answer(registry.answers.pop(0), {"message": "as requested by the test"})
                if self.headers["Authorization"] != expected:
                    return self._answer(401, {"error_code": 40101})
                head, _, number = self.path.rpartition("/")
                if head != "/schemas/ids" or not number.isdigit():
                    return self._answer(400, {"error_code": 400})
                schema = registry.schemas.get(int(number))
                if schema is None:
                    return self._answer(404, {"error_code": 40403})
                return self._answer(200, {"schema": json.dumps(schema)})  # schemaType is absent for Avro

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
