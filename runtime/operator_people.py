"""Who is at the control socket, what they may do, and how fast."""

import os
import pwd
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from steadyhand.runtime.operator_protocol import Role

_PEERCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Who may connect, and for how long. Times are real seconds."""

    path: Path
    group_id: int | None = None
    """Members of this group may connect, and look if they have no role of their own."""
    roles: Mapping[int, Role] = field(default_factory=dict)
    """Role by user id. The runtime's own user and root are engineers without being named."""
    line_s: float = 5.0
    """A line once begun must be complete by then."""
    idle_s: float = 300.0
    max_connections: int = 8
    max_per_user: int = 4
    """Below `max_connections`, so that one user cannot lock the others out."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """User and group id of the other end, as the kernel knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    _, uid, gid = _PEERCRED.unpack(raw)
    return uid, gid


def user_name(uid: int) -> str:
    """Login name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def role_of(uid: int, gid: int, settings: OperatorSettings) -> Role | None:
    """Role of a peer as the kernel names it; None: it has no business here."""
    named = settings.roles.get(uid)
    if named is not None:
        return named
    if uid in (0, os.geteuid()):
        return Role.ENGINEER
    if settings.group_id is None:
        return None
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        groups = [gid]
    return Role.VIEW if settings.group_id in groups else None


class Bucket:
    """Token bucket: `burst` at once, `rate_per_s` on the long run."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate_per_s, self._burst = rate_per_s, float(burst)
        self._tokens, self._at_s = float(burst), time.monotonic()

    def left(self) -> bool:
        """Is there a token to take?"""
        now_s = time.monotonic()
        gained = (now_s - self._at_s) * self._rate_per_s
        self._tokens, self._at_s = min(self._burst, self._tokens + gained), now_s
        return self._tokens >= 1.0

    def take(self) -> bool:
        """Take one token; False when there is none."""
        if not self.left():
            return False
        self._tokens -= 1.0
        return True

    def give(self) -> None:
        """Put one token back."""
        self._tokens = min(self._burst, self._tokens + 1.0)
