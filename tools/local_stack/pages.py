"""A folder of pages that is served on this machine until the stack ends.

    python -m tools.local_stack.pages FOLDER PORT

Browsers keep their data by the address of a page: so the port stays the same as long as it is free.
"""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tools.local_stack import paths
from tools.local_stack.ports import HOST, choose_port, is_listening, wait_until
from tools.local_stack.processes import end_group, read_record, start_detached, write_record

PORT: Final = 4580
_MARK: Final = "tools.local_stack.pages"
_READY_SECONDS: Final = 20.0
_HEADERS: Final = {
    # An address may have other pages after the next demo.
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; connect-src *; img-src 'self' blob: data:; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def serve_pages(folder: Path, pages: Path, port: int = PORT) -> str:
    """Serve pages until the stack of ``folder`` ends; returns their address.

    Those that an earlier command serves are replaced, at the same address.

    Raises:
        LocalStackError: the server did not come up; the sentence names its log.
    """
    before = read_record(_record(folder))
    stop_pages(folder)
    chosen = choose_port(before.get("port", port))
    log = folder / "logs" / "pages.log"
    process = start_detached(
        [sys.executable, "-m", _MARK, str(pages), str(chosen)],
        environment={"PYTHONPATH": str(paths.ROOT), "PYTHONUNBUFFERED": "1"},
        folder=paths.ROOT,
        log=log,
    )
    write_record(_record(folder), {"port": chosen, "pid": process.pid})
    try:
        wait_until(
            lambda: is_listening(chosen),
            alive=lambda: process.poll() is None,
            what="the server of pages",
            log=str(log),
            seconds=_READY_SECONDS,
        )
    except BaseException:
        stop_pages(folder)
        raise
    # Not by its number: a browser trusts both, but people read this one.
    return f"http://localhost:{chosen}"


def stop_pages(folder: Path) -> bool:
    """Stop the server that is recorded in ``folder``; whether there was one."""
    record = read_record(_record(folder))
    if record:
        end_group(record["pid"], _MARK)
    _record(folder).unlink(missing_ok=True)
    return bool(record)


def _record(folder: Path) -> Path:
    return folder / "pages.json"


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: object) -> None:
        """Show no folder's contents."""
        del path
        self.send_error(404)

    def log_request(self, *_: object) -> None:
        """Note only what went wrong."""


def main(arguments: list[str]) -> None:
    """Serve a folder until the process is ended."""
    folder, port = arguments
    handler = partial(_Handler, directory=str(Path(folder).resolve()))
    with ThreadingHTTPServer((HOST, int(port)), handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
