"""The panel over HTTP, on loopback only: page, data, and commands for people with a token.

    GET  /  /*.css  /*.js        the page, from memory
    GET  /api/plant.json         what does not change
    GET  /api/state.json         once a second
    GET  /api/trends.bin?since=  rows of numbers
    GET  /api/decisions.json     the last ticks, explained
    POST /api/session            a session for the person whose token it is
    POST /api/command            the operator's words, over the operator's desk

Every refusal is JSON with a code and a sentence. A request for another host's name is refused, so
that no page elsewhere can reach this one through a name it controls; there is no word that lets
another page read anything.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

from steadyhand.controllers.errors import ConfigError, JournalError, RequestError
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.http_server import (
    HttpServer,
    Request,
    Response,
    bearer_token,
    listen_address,
    shown_address,
)
from steadyhand.runtime.operator_people import Bucket
from steadyhand.runtime.operator_protocol import COMMANDS as DESK
from steadyhand.runtime.operator_protocol import Door, Role, encode, parse_request
from steadyhand.runtime.operator_protocol import Request as Command
from steadyhand.runtime.panel.access import Access
from steadyhand.runtime.panel.pages import read_pages
from steadyhand.runtime.panel.past import Past
from steadyhand.runtime.panel.trends import Trends
from steadyhand.runtime.panel.view import About, Told, View, plant_view
from steadyhand.runtime.recorder import Recorder

MAX_BODY = 4096
REQUESTS_PER_S, REQUESTS_AT_ONCE = 30.0, 60
SAMPLE_EVERY_S = 0.5
SAMPLE_LIMIT = 4096
RENDER_EVERY_S = 0.2
IN_HAND = 2
"""Commands that wait for the loop at the same time; more are refused."""
COMMANDS = frozenset(name for name, spec in DESK.items() if Door.PANEL in spec.doors)
"""What may be asked from the page: neither stop nor swap."""
JSON = "application/json"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HARDENED = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), usb=(), serial=()"),
    ("Cache-Control", "no-store"),
)
_CODES = {
    400: "MALFORMED",
    404: "NOT_FOUND",
    405: "METHOD",
    411: "LENGTH",
    413: "TOO_LONG",
    431: "TOO_LONG",
    503: "BUSY",
}
_WORDS = {
    400: "the request is not well-formed",
    404: "there is nothing by this name",
    405: "this is not done with that method",
    411: "a body needs its length, in one piece",
    413: f"a body may have {MAX_BODY} bytes",
    431: "the headers are too long",
    503: "too much at once: try again",
}
_STATUS = {
    "MALFORMED": 400,
    "ARGUMENTS": 400,
    "UNKNOWN_COMMAND": 400,
    "UNKNOWN_MODE": 400,
    "DENIED": 401,
    "SESSION": 401,
    "ROLE": 403,
    "READ_ONLY": 403,
    "ORIGIN": 403,
    "MEDIA_TYPE": 415,
    "HOST": 421,
    "RATE": 429,
    "BUSY": 503,
    "QUEUE_FULL": 503,
    "STARTING": 503,
    "STOPPING": 503,
    "INTERNAL": 503,
    "TIMEOUT": 504,
    "UNKNOWN": 504,
}
"""HTTP's word for a refusal; what is not here is a conflict with what is: 409."""
_SINCE = re.compile(r"since=([0-9]{1,15})")
_UNSOUND = re.compile(r"[^!-~]")


def json_reply(status: int, data: Mapping[str, Any]) -> Response:
    """Data, with all the headers that keep a browser strict."""
    return Response(status, encode(data), JSON, HARDENED)


def refusal(code: str, message: str, status: int | None = None) -> Response:
    """A refusal with its code."""
    number = status or _STATUS.get(code, 409)
    reply = json_reply(number, {"ok": False, "error": {"code": code, "message": message}})
    if number == 401:
        return Response(reply.status, reply.body, JSON, (*HARDENED, ("WWW-Authenticate", "Bearer")))
    return reply


def plain_refusal(status: int) -> Response:
    """The refusal of what HTTP itself does not allow."""
    return refusal(_CODES.get(status, "MALFORMED"), _WORDS.get(status, _WORDS[400]), status)


class Panel:
    """Page, data and commands of one loop."""

    def __init__(
        self,
        about: About,
        view: View,
        trends: Trends,
        recorder: Recorder,
        desk: Desk,
        people: Mapping[str, bytes],
        listen: str = "127.0.0.1:9465",
        hosts: tuple[str, ...] = (),
        past: Past | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            about: what does not change.
            view: makes what is shown.
            trends: filled by our sampler.
            recorder: where the sampler looks.
            desk: takes the commands.
            people: token by name; empty: nobody gives commands here.
            listen: address and port on this machine; port 0 takes a free one.
            hosts: further names by which browsers may reach us.
            past: records of earlier runs for the trends; None: they begin with this one.

        Raises:
            ConfigError: the address is none, or can be reached from outside.
        """
        address, _ = listen_address(listen, "panel")
        if not address.is_loopback:
            raise ConfigError(
                f"panel: listen={listen!r} can be reached from outside: use 127.0.0.1, and "
                "ssh -L or a proxy with TLS in front of it"
            )
        self._view, self._trends, self._recorder, self._desk = view, trends, recorder, desk
        self._hosts = frozenset(name.lower() for name in hosts)
        self._access = Access(people) if people else None
        self._pages = read_pages()
        self._plant = encode(plant_view(about, trends))
        self._told: Told | None = None
        self._alive_s = time.monotonic()
        self._state: tuple[Told | None, float, bytes] = (None, -1.0, b"")
        self._decided: tuple[int, bytes] = (-1, b"")
        self._allowance = Bucket(REQUESTS_PER_S, REQUESTS_AT_ONCE)
        self._crew = ThreadPoolExecutor(IN_HAND, "panel-command")
        self._room = threading.BoundedSemaphore(IN_HAND)
        self._closing = threading.Event()
        self._sampled = recorder.ticks.head
        self._past, self._first = past, recorder.sequence
        self._sampler = Guarded(self._sample, "panel-trends", until=self._closing)
        self.refused = 0
        self.restarts = 0
        self.server = HttpServer(
            "panel", listen, self._answer, recorder.event, self, MAX_BODY, plain_refusal
        )

    @property
    def url(self) -> str:
        """What to type into a browser; empty while nothing is served."""
        return f"http://{shown_address(self.server.address)}/" if self.server.address else ""

    def open(self) -> None:
        """Listen and serve; a port that is taken is told, and tried again."""
        self.server.start()
        self._sampler.start()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._closing.set()
        self.server.close()
        self._crew.shutdown(wait=False, cancel_futures=True)
        if self._sampler.is_alive():
            self._sampler.join(2.0 * SAMPLE_EVERY_S)

    # -- the loop's side: two assignments ----------------------------------------------------------

    def publish(self, status: Mapping[str, Any]) -> None:
        """Take the status of a finished tick; the loop hands over a mapping it will not change."""
        now_s = time.monotonic()
        self._told = Told(status, self._recorder.ticks.head, time.time(), now_s)
        self._alive_s = now_s

    def alive(self) -> None:
        """The loop waits for its next tick, and lives."""
        self._alive_s = time.monotonic()

    # -- the sampler -------------------------------------------------------------------------------

    def _sample(self) -> None:
        """Until the end; whatever breaks is told once, and trends go on with the next record."""
        self._remember()
        while not self._closing.wait(SAMPLE_EVERY_S):
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001  (a defect here must not end the trends)
                self.restarts += 1
                if self.restarts == 1:
                    text = f"the panel's trends: {error!r}"
                    self._recorder.event(
                        {"event": "PanelProblem", "code": "TASK_DIED", "text": text}
                    )

    def _remember(self) -> None:
        """What was before this run, from the journal; tried once, should the thread begin anew."""
        past, self._past = self._past, None
        if past is None:
            return
        try:
            for portion in past.portions(self._first):
                self._trends.take(portion)
                if self._closing.is_set():
                    return
        except (JournalError, OSError) as error:
            text = f"trends begin with this run, the journal cannot be read: {error}"
            self._recorder.event({"event": "PanelProblem", "text": text})

    def sample(self) -> None:
        """Bring the trends up to date."""
        bodies, self._sampled, _ = self._recorder.ticks.peek(self._sampled, SAMPLE_LIMIT)
        self._trends.take(bodies)

    # -- requests ----------------------------------------------------------------------------------

    def _answer(self, request: Request) -> "Response | Future[Response]":
        """Reply to one request, in the server's thread."""
        try:
            self._check_host(request)
            if not self._allowance.take():
                raise RequestError("RATE", f"at most {REQUESTS_PER_S:g} requests per second")
            if request.path in ("/api/session", "/api/command"):
                return self._post(request)
            return self._get(request)
        except RequestError as error:
            self.refused += 1
            self._desk.refusals.count(error.code)
            return refusal(error.code, error.message)

    def _check_host(self, request: Request) -> None:
        """Is it really us whom the browser means?

        Raises:
            RequestError: HOST. A name that somebody else's name server points at this machine.
        """
        host = request.headers.get("host", "").lower()
        if host in self._hosts:
            return
        name, _, port = host.rpartition(":")
        if not name or name.startswith("[") != name.endswith("]"):
            name, port = host, "80"
        address = self.server.address
        try:
            local = name == "localhost" or ip_address(name.strip("[]")).is_loopback
        except ValueError:
            local = False
        if not local or address is None or port != str(address[1]):
            shown = _UNSOUND.sub("?", host)[:64]
            raise RequestError("HOST", f"nobody here is called {shown!r}; see panel.hosts")

    def _get(self, request: Request) -> Response:
        """Page and data.

        Raises:
            RequestError: NOT_FOUND, METHOD or ARGUMENTS.
        """
        path = request.path
        page = self._pages.get(path)
        data = _DATA.get(path)
        if page is None and data is None and path != "/favicon.ico":
            return plain_refusal(404)
        if request.method not in ("GET", "HEAD"):
            reply = plain_refusal(405)
            return Response(405, reply.body, JSON, (*HARDENED, ("Allow", "GET, HEAD")))
        if page is not None:
            return Response(200, *page, HARDENED)
        if data is None:
            return Response(204, b"", JSON, HARDENED)
        return data(self, request)

    def _plant_data(self, request: Request) -> Response:
        del request
        return Response(200, self._plant, JSON, HARDENED)

    def _state_data(self, request: Request) -> Response:
        """The state, made again only when there is something new; its age is always new."""
        del request
        told, now_s = self._told, time.monotonic()
        known, made_s, body = self._state
        if (told is not known and now_s - made_s >= RENDER_EVERY_S) or now_s - made_s >= 1.0:
            known, made_s, body = told, now_s, encode(self._view.state(told))
            self._state = (known, made_s, body)
        age_s = None if known is None else round(now_s - known.monotonic_s, 3)
        head = {"age_s": age_s, "alive_s": round(now_s - self._alive_s, 3), "now_s": time.time()}
        return Response(200, encode(head)[:-2] + b"," + body[1:], JSON, HARDENED)

    def _trends_data(self, request: Request) -> Response:
        """Rows of the trends.

        Raises:
            RequestError: ARGUMENTS.
        """
        found = _SINCE.fullmatch(request.query)
        if request.query and found is None:
            raise RequestError("ARGUMENTS", "since= takes the number of a row")
        since = int(found.group(1)) if found is not None else 0
        return Response(200, self._trends.read(since), "application/octet-stream", HARDENED)

    def _decisions_data(self, request: Request) -> Response:
        del request
        head = self._recorder.ticks.head
        if self._decided[0] != head:
            self._decided = (head, encode({"decisions": self._view.decisions()}))
        return Response(200, self._decided[1], JSON, HARDENED)

    # -- commands ----------------------------------------------------------------------------------

    def _post(self, request: Request) -> "Response | Future[Response]":
        """A session or a command; a refusal goes into the journal with the person's name."""
        if request.method != "POST":
            reply = plain_refusal(405)
            return Response(405, reply.body, JSON, (*HARDENED, ("Allow", "POST")))
        who, what = "panel", request.path.rpartition("/")[2]
        try:
            person, access = self._person(request)
            who = f"panel:{person}"
            if request.path == "/api/session":
                session = access.begin(person)
                return json_reply(
                    200, {"session": session, "name": person, "role": Role.OPERATE.name.lower()}
                )
            command = parse_request(request.body)
            what = command.command
            return self._command(person, access, command)
        except RequestError as error:
            self.refused += 1
            self._desk.refusals.tell(error, who, what, Door.PANEL)
            return refusal(error.code, error.message)

    def _person(self, request: Request) -> tuple[str, Access]:
        """Whose token it is, if the request comes from our own page.

        Raises:
            RequestError: READ_ONLY, ORIGIN, MEDIA_TYPE, DENIED or RATE.
        """
        if self._access is None:
            raise RequestError("READ_ONLY", "the configuration names no panel.token_file")
        self._check_origin(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise RequestError("MEDIA_TYPE", f"commands come as {JSON}")
        return self._access.person(bearer_token(request)), self._access

    @staticmethod
    def _check_origin(request: Request) -> None:
        """A browser says which page asks; it must be ours.

        Raises:
            RequestError: ORIGIN.
        """
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
        if foreign or site != "same-origin":
            raise RequestError("ORIGIN", "commands come from the panel's own page only")

    def _command(self, person: str, access: Access, command: Command) -> "Future[Response]":
        """Hand one command to the desk; the reply comes when the loop has answered.

        Raises:
            RequestError: UNKNOWN_COMMAND, SESSION, REPLAY or BUSY.
        """
        if command.command not in COMMANDS:
            raise RequestError(
                "UNKNOWN_COMMAND", f"the panel's commands are: {', '.join(sorted(COMMANDS))}"
            )
        access.admit(person, command.session, command.sequence)
        if not self._room.acquire(blocking=False):
            raise RequestError("BUSY", "too many commands wait for the loop: try again")
        actor = f"panel:{person}"

        def carry_out() -> Response:
            try:
                result = self._desk.call(
                    command.command, command.arguments, actor, Role.OPERATE, Door.PANEL
                )
            except RequestError as error:
                return refusal(error.code, error.message)
            return json_reply(200, {"sequence": command.sequence, "ok": True, "result": result})

        promise = self._crew.submit(carry_out)
        promise.add_done_callback(lambda _: self._room.release())
        return promise


_DATA: Mapping[str, Callable[[Panel, Request], Response]] = {
    "/api/plant.json": Panel._plant_data,
    "/api/state.json": Panel._state_data,
    "/api/trends.bin": Panel._trends_data,
    "/api/decisions.json": Panel._decisions_data,
}
