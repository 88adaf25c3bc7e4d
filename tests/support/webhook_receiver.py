"""A real HTTP server that receives the messages of a webhook."""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT_S = 120.0  # finds a hang
TOKEN = "T0KEN-of-the-receiver"


class WebhookReceiver(ThreadingHTTPServer):
    """Keeps each request, and replies with the next of ``statuses``, then with 200. None: not before ``released``."""

    daemon_threads = True

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = list(statuses)
        self.requests = queue.Queue()
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/hook/{TOKEN}?k={TOKEN}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def next(self):
        return self.requests.get(timeout=LIMIT_S)

    def message(self):
        return json.loads(self.next()[1])


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.server.requests.put((self.path, body, dict(self.headers)))
        if status is None:
            self.server.released.wait(LIMIT_S)
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Be silent."""
