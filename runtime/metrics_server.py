"""The page of metrics over HTTP, on loopback unless told otherwise.

GET and HEAD of /metrics; everything else is 404 (or 405). Who asks for OpenMetrics gets it,
everybody else plain text. Twenty scrapes a second; a page is rendered at most ten times a second.
What keeps the server free stands in `http_server.py`.
"""

import hmac
import time
from collections.abc import Callable

from steadyhand.controllers.errors import ConfigError
from steadyhand.runtime.exposition import OPEN_METRICS, TEXT, wants_open_metrics
from steadyhand.runtime.http_server import (
    Counters,
    HttpServer,
    Request,
    Response,
    Uncounted,
    bearer_token,
    listen_address,
)
from steadyhand.runtime.operator_people import Bucket

SCRAPES_PER_S = 20.0
RENDER_EVERY_S = 0.1


class MetricsServer(HttpServer):
    """Serves what `render` gives. Its failures are told, never raised into the control loop."""

    def __init__(
        self,
        render: Callable[[], bytes],
        listen: str = "127.0.0.1:9464",
        allow_remote: bool = False,
        token: str = "",
        on_event: Callable[[dict[str, str]], None] = lambda event: None,
        counters: Counters | None = None,
        open_metrics: Callable[[], bytes] | None = None,
    ) -> None:
        """Check who may listen; opens nothing yet.

        Args:
            render: makes the page; called in the server's thread.
            listen: address and port; port 0 takes a free one.
            allow_remote: may the address be reached from other machines?
            token: bearer token that scrapers must show; needed for remote addresses.
            on_event: told when the port is taken or the thread had to be restarted.
            counters: where refused requests and restarts are counted: the `Metrics` themselves.
            open_metrics: makes the page in OpenMetrics; None: everybody gets plain text.

        Raises:
            ConfigError: a remote address without both `allow_remote` and a token, or not an
                address at all.
        """
        address, _ = listen_address(listen, "metrics")
        if not address.is_loopback and not (allow_remote and token):
            raise ConfigError(
                f"metrics: listen={listen!r} can be reached from outside: use 127.0.0.1, "
                "or set allow_remote and a token"
            )
        counted = counters or Uncounted()
        super().__init__("metrics", listen, self._answer, on_event, counted)
        self._renders = {TEXT: render}
        if open_metrics is not None:
            self._renders[OPEN_METRICS] = open_metrics
        self._token = token.encode()
        self._counted = counted
        self._pages: dict[str, tuple[bytes, float]] = {}
        """By format: the page, and until when it is good enough."""
        self._allowance = Bucket(SCRAPES_PER_S, int(SCRAPES_PER_S))

    def _answer(self, request: Request) -> Response:
        """Reply to one request."""
        if request.path != "/metrics":
            return Response(404)
        if request.method not in {"GET", "HEAD"}:
            return Response(405, headers=(("Allow", "GET, HEAD"),))
        if self._token and not self._authorised(request):
            self._counted.refused += 1
            return Response(401, headers=(("WWW-Authenticate", "Bearer"),))
        if not self._allowance.take():
            self._counted.refused += 1
            return Response(503, headers=(("Retry-After", "1"),))
        kind = OPEN_METRICS if wants_open_metrics(request.headers.get("accept", "")) else TEXT
        if kind not in self._renders:
            kind = TEXT
        return Response(200, self._page(kind), kind)

    def _page(self, kind: str) -> bytes:
        page, until_s = self._pages.get(kind, (b"", 0.0))
        if time.monotonic() >= until_s:
            page = self._renders[kind]()
            self._pages[kind] = page, time.monotonic() + RENDER_EVERY_S
        return page

    def _authorised(self, request: Request) -> bool:
        return hmac.compare_digest(bearer_token(request), self._token)
