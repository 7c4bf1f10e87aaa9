"""A bucket of an object store on this machine: lists and returns the objects of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Bucket(BaseHTTPRequestHandler):
    """Answers the requests of S3's API that reading needs.

    Attributes:
        objects: Objects by their names.
    """

    objects: ClassVar[dict[str, bytes]]
    name: ClassVar[str] = "feed"
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Answer with the head of an object."""
        self._object(with_body=False)

    def do_GET(self) -> None:
        """Answer with a listing or an object."""
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" not in query:
            self._object(with_body=True)
            return
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        folders: set[str] = set()
        found = []
        for name, data in sorted(self.objects.items()):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            found.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size>"
                "<LastModified>2024-03-01T10:00:00.000Z</LastModified></Contents>"
            )
        found += [f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders]
        self._answer(
            200,
            '<?xml version="1.0"?><ListBucketResult '
            f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{self.name}</Name>'
            f"<IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>".encode(),
        )

    def _object(self, *, with_body: bool) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix(f"/{self.name}").lstrip("/")
        data = self.objects.get(name)
        if data is None:
            self._answer(404, b"", with_body=with_body)
            return
        begin, _, end = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(begin) : int(end) + 1 if end else len(data)]
        self._answer(206 if "range" in self.headers else 200, part, with_body=with_body)

    def _answer(self, status: int, body: bytes, *, with_body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Fri, 01 Mar 2024 10:00:00 GMT")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def bucket(objects: dict[str, bytes]) -> Iterator[str]:
    """Serve a bucket with these objects; yield its storageUrl."""
    kind = type("Objects", (Bucket,), {"objects": objects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    keys = "AWS_ACCESS_KEY_ID=me&AWS_SECRET_ACCESS_KEY=geheim"
    try:
        port = server.server_address[1]
        yield f"s3://{Bucket.name}/shop?{keys}&AWS_ENDPOINT=http://127.0.0.1:{port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
