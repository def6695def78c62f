"""Real HTTP servers on loopback for the load generator: uvicorn around a scripted app, or raw bytes."""

import asyncio
import json
import socketserver
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn


@contextmanager
def serving(app):
    """Serve an ASGI app from a thread of its own; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive() or server.started
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def answering(response):
    """Answer every request with the same raw bytes and close the connection; gives the URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self.rfile.read(length)
            self.wfile.write(response)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Script:
    """An ASGI app that answers each request by a script: (pause before it in seconds, chunk) in turn.

    `cut` breaks the answer off after its last chunk. It keeps what it was asked, and how many it answered at once.
    `metrics` are what it exposes at the first reading and at later ones.
    """

    chunks: list[tuple[float, bytes]]
    metrics: tuple[bytes, bytes] = (b"", b"")
    scrapes: int = 0
    status: int = 200
    cut: bool = False
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)
    clients: set[tuple[str, int]] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, scope, receive, send):
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": self.metrics[min(self.scrapes, 1)]})
            self.scrapes += 1
            return
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            body = (await receive())["body"]
            self.bodies.append(json.loads(body))
            self.requests.append(scope)
            self.clients.add(scope["client"])
            await self.answer(send)
        finally:
            self.at_once -= 1

    async def answer(self, send):
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for pause_s, chunk in self.chunks:
            await asyncio.sleep(pause_s)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not self.cut:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
