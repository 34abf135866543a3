"""Bucket server for tests: the part of Cloud Storage's JSON API that our libraries use.

TensorFlow's file system knows only the real address. So the server is a proxy too: it accepts
`CONNECT www.googleapis.com:443` and answers itself, with a certificate of its own authority.
Clients send the same requests as to the real service, through the same code.

Status: 404 for a missing object, 412 for a failed precondition, 401 for a missing token and 501
for an unknown request. `refused` lists the requests with 401 and 501.
"""

import contextlib
import http.server
import itertools
import json
import pathlib
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

import trustme

TOKEN = "a-token-for-tests"
PAGE_SIZE = 5  # entries of a listing: few, so that clients request further pages
_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Stored(NamedTuple):
    """An object with the number of its version."""

    content: bytes
    generation: int


class StatusError(Exception):
    """HTTP status other than success."""


class Server:
    """Server of one bucket in memory; `environment` connects a process to it."""

    def __init__(self, bucket: str, directory: pathlib.Path) -> None:
        self.bucket = bucket
        self.objects: dict[str, Stored] = {}
        self.before_write: Callable[[str], None] = lambda name: None  # called with an object's name
        self.refused: list[str] = []
        self.forbidden: set[str] = set()  # methods of the handler that answer 403
        self.clients: set[str] = set()
        self.uploads: dict[str, dict[str, str]] = {}  # unfinished: number -> query
        self.lock = threading.RLock()
        self._generations = itertools.count(1)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "authority.pem")
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*_HOSTS).configure_cert(self.tls)
        handler = type("Handler", (_Handler,), {"store": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{self._http.server_port}",
            "no_proxy": "none",
            "CURL_CA_BUNDLE": str(directory / "authority.pem"),  # tensorflow
            "TENSORSTORE_CA_BUNDLE": str(directory / "authority.pem"),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
        }

        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def below(self, prefix: str) -> dict[str, bytes]:
        """Return the objects below a prefix, without the markers of directories."""
        names = [n for n in list(self.objects) if n.startswith(prefix) and not n.endswith("/")]
        return {name.removeprefix(prefix): self.objects[name].content for name in names}

    def write(self, name: str, content: bytes) -> Stored:
        self.before_write(name)
        with self.lock:
            self.objects[name] = Stored(content, next(self._generations))
            return self.objects[name]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    host = ""
    store: Server

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        if self.host not in _HOSTS:
            return self._refuse(501)
        self._send(200)
        self.wfile.flush()
        self.request = self.store.tls.wrap_socket(self.request, server_side=True)
        self.setup()

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # the client was killed
            super().finish()
        self.request.close()

    def log_message(self, *_: object) -> None: ...

    def _serve(self) -> None:
        """Answer by method and path."""
        body = self._body()
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        self.store.clients.add(self.headers.get("User-Agent", "none"))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(401)
        for method, pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, url.path)
            if method == self.command and match:
                bucket, *names = map(urllib.parse.unquote, match.groups())
                try:
                    if bucket != self.store.bucket:
                        raise StatusError(404)
                    if answer.__name__ in self.store.forbidden:
                        raise StatusError(403)
                    return answer(self, body, *names)
                except StatusError as error:
                    return self._send(error.args[0])
        return self._refuse(501)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    # Names that http.server looks up.
    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 (names of http.server)

    def _refuse(self, status: int) -> None:
        self.store.refused.append(f"{status} {self.command} {self.host}{self.path}")
        self._send(status)

    def _send(self, status: int, answer: object = b"", **headers: str) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _find(self, name: str) -> Stored:
        self._check(name, self.query)
        if name not in self.store.objects:
            raise StatusError(404)
        return self.store.objects[name]

    def _check(self, name: str, query: dict[str, str]) -> None:
        """Check the preconditions on an object; a missing one has generation 0."""
        generation = self.store.objects.get(name, Stored(b"", 0)).generation
        if int(query.get("ifGenerationMatch", generation)) != generation:
            raise StatusError(412)
        if int(query.get("ifGenerationNotMatch", -1)) == generation:
            raise StatusError(304)

    def _write(self, name: str, content: bytes, query: dict[str, str]) -> None:
        with self.store.lock:
            self._check(name, query)
            self._send(200, self._describe(name, self.store.write(name, content)))

    def _describe(self, name: str, stored: Stored) -> dict[str, str]:
        size, generation = str(len(stored.content)), str(stored.generation)
        updated = "2018-10-11T00:00:00.000Z"
        return {"name": name, "size": size, "generation": generation, "updated": updated}

    def bucket(self, body: bytes) -> None:
        self._send(200, {"name": self.store.bucket})

    def metadata(self, body: bytes, name: str) -> None:
        if self.query.get("alt") == "media":
            return self.media(body, name)
        self._send(200, self._describe(name, self._find(name)))

    def media(self, body: bytes, name: str) -> None:
        stored = self._find(name)
        content, status = stored.content, 200
        headers = {"x-goog-generation": str(stored.generation)}
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(span[1]), int(span[2] or len(content)) + 1
            if first >= len(content):
                raise StatusError(416)
            content, status = content[first:last], 206
            last = first + len(content) - 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(stored.content)}"
        self._send(status, content, **headers)

    def listing(self, body: bytes) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        entries: dict[str, Stored | None] = {}  # None for a common prefix
        for name, stored in list(self.store.objects.items()):
            if name.startswith(prefix):
                head, separator, _ = name[len(prefix) :].partition(delimiter or "\0")
                entries |= {prefix + head + separator: None} if separator else {name: stored}
        remaining = [entry for entry in sorted(entries) if entry > self.query.get("pageToken", "")]
        page = remaining[: min(PAGE_SIZE, int(self.query.get("maxResults", PAGE_SIZE)))]
        items = [self._describe(name, stored) for name in page if (stored := entries[name])]
        prefixes = [name for name in page if not entries[name]]
        answer: dict[str, object] = {"items": items, "prefixes": prefixes}
        self._send(
            200, answer | ({"nextPageToken": page[-1]} if len(remaining) > len(page) else {})
        )

    def delete(self, body: bytes, name: str) -> None:
        self._find(name)
        del self.store.objects[name]
        self._send(204)

    def rewrite(self, body: bytes, source: str, bucket: str, target: str) -> None:
        self.store.write(target, self._find(source).content)
        self._send(200, {"done": True})

    def upload(self, body: bytes) -> None:
        if self.query["uploadType"] == "media":
            return self._write(self.query["name"], body, self.query)
        if self.query["uploadType"] != "resumable":
            return self._refuse(501)
        number = str(len(self.store.uploads))
        self.store.uploads[number] = self.query
        self._send(200, Location=f"https://{self.host}{self.path}&upload_id={number}")

    def finish_upload(self, body: bytes) -> None:
        """Store the content of an upload, which our clients send in one part."""
        query = self.store.uploads[self.query["upload_id"]]
        span = f"bytes 0-{len(body) - 1}/{len(body)}"
        if body and self.headers["Content-Range"] != span:
            return self._refuse(501)
        self._write(query["name"], body, query)


_ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", "/storage/v1/b/([^/]+)", _Handler.bucket),
    ("GET", "/storage/v1/b/([^/]+)/o", _Handler.listing),
    ("GET", "/storage/v1/b/([^/]+)/o/([^/]+)", _Handler.metadata),
    ("DELETE", "/storage/v1/b/([^/]+)/o/([^/]+)", _Handler.delete),
    ("POST", "/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", _Handler.rewrite),
    ("POST", "/upload/storage/v1/b/([^/]+)/o", _Handler.upload),
    ("PUT", "/upload/storage/v1/b/([^/]+)/o", _Handler.finish_upload),
    ("GET", "/([^/]+)/(.+)", _Handler.media),
]
