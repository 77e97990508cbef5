"""Who may give commands from the page: a token per person, a session per sitting.

The file of tokens has mode 0600 and one person a line: a name, a space, a token. A request carries
the token in its Authorization header; a browser never adds that by itself, so no other page can
make it. A session's sequence numbers only grow, so that recorded bytes are worth nothing.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from steadyhand.adapters.input_file import read_secret
from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime.operator_people import Bucket

MAX_BYTES = 64 * 1024
SHORTEST_TOKEN = 32
MAX_SESSIONS = 32
IDLE_S = 12 * 3600.0
"""A session unused for so long is over."""
WRONG_BURST, WRONG_PER_S = 10, 0.2
"""Wrong tokens: so many at once, then one every five seconds, over all who try."""
_LINE = re.compile(rf"([a-z][a-z0-9_.-]{{0,31}}) +([!-~]{{{SHORTEST_TOKEN},256}})")


def read_people(file: Path) -> dict[str, bytes]:
    """Token of each person.

    Raises:
        ConfigError: the file cannot be read or others could read it; a line that is not a name and
            a token, or a name or token twice. The message names the line and never shows what is
            in it.
    """
    content = read_secret(file, MAX_BYTES)
    people: dict[str, bytes] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ConfigError(
                f"line {number} is not a name (a-z, 0-9, _ . -), a space and a token "
                f"of at least {SHORTEST_TOKEN} characters, such as openssl rand -hex 32 makes"
            )
        name, token = found.groups()
        if name in people or token.encode() in people.values():
            raise ConfigError(f"line {number} has a name or a token for a second time")
        people[name] = token.encode()
    if not people:
        raise ConfigError("names nobody; write a line with a name and a token")
    return people


@dataclass(slots=True)
class _Session:
    person: str
    used_s: float
    last: int = 0


class Access:
    """Recognises people and their sessions; belongs to the server's thread."""

    def __init__(
        self, people: Mapping[str, bytes], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Remember who there is.

        Args:
            people: token of each person.
            monotonic: clock, injectable for tests.
        """
        self._people = dict(people)
        self._monotonic = monotonic
        self._sessions: dict[str, _Session] = {}
        self._wrong = Bucket(WRONG_PER_S, WRONG_BURST)
        self.denied = 0
        """Requests without a right token."""

    def person(self, token: bytes) -> str:
        """Whose token it is, in a time that does not tell how nearly right it was.

        Raises:
            RequestError: DENIED, or RATE after too many wrong ones, the right ones among them.
        """
        if not self._wrong.left():
            raise RequestError("RATE", "too many wrong tokens: wait, or use the command line")
        found = ""
        for name, right in self._people.items():
            if hmac.compare_digest(token, right):
                found = name
        if not found:
            self._wrong.take()
            self.denied += 1
            raise RequestError("DENIED", "the token is not one of the token file's")
        return found

    def begin(self, person: str) -> str:
        """A new session; the oldest ends when there are too many."""
        now_s = self._monotonic()
        for key in [k for k, s in self._sessions.items() if now_s - s.used_s > IDLE_S]:
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda k: self._sessions[k].used_s)]
        key = secrets.token_hex(16)
        self._sessions[key] = _Session(person, now_s)
        return key

    def admit(self, person: str, key: str, sequence: int) -> None:
        """Use up one number of a session.

        Raises:
            RequestError: SESSION (over, or somebody else's) or REPLAY.
        """
        session, now_s = self._sessions.get(key), self._monotonic()
        if session is None or session.person != person or now_s - session.used_s > IDLE_S:
            self._sessions.pop(key, None) if session and session.person == person else None
            raise RequestError("SESSION", "the session is over: sign in again")
        if sequence <= session.last:
            raise RequestError("REPLAY", "this sequence number was used before")
        session.last, session.used_s = sequence, now_s
