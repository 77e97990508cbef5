"""Who gets into the simulated plant: one trusted client application, one user.

The server itself, closed by default, is `adapters.opcua.guarded_server`.
"""

import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.crypto.permission_rules import User, UserRole
from cryptography import x509

from steadyhand.adapters.opcua import guarded_server
from steadyhand.adapters.opcua.guarded_server import GuardedInternals, ServerLimits
from steadyhand.adapters.opcua.guarded_session import GuardedSession
from steadyhand.adapters.sim.certificates import USER_NAME, Pki


class TrustList:
    """Certificates that are let in, by their exact bytes."""

    def __init__(self, directory: Path) -> None:
        self._certificates = {
            path.read_bytes(): x509.load_der_x509_certificate(path.read_bytes())
            for path in sorted(directory.glob("*.der"))
        }

    def trusts(self, der: bytes | None) -> bool:
        """Is this certificate on the list, and valid now?"""
        known = self._certificates.get(der or b"")
        if known is None:
            return False
        return bool(known.not_valid_before_utc <= datetime.now(UTC) <= known.not_valid_after_utc)


class PlantUsers:
    """User manager of the simulated plant."""

    def __init__(self, pki: Pki, *, anonymous: bool = False) -> None:
        self._password = pki.password.encode()
        self._user_certificate = pki.user_cert.read_bytes()
        self._anonymous = anonymous

    def get_user(
        self,
        iserver: Any,  # noqa: ANN401  (the library's signature)
        username: str | None = None,
        password: str | None = None,
        certificate: bytes | None = None,
    ) -> User | None:
        """The user these credentials belong to, or None to refuse."""
        del iserver
        if username is not None:
            same_name = hmac.compare_digest(username.encode(), USER_NAME.encode())
            same_word = hmac.compare_digest((password or "").encode(), self._password)
            return User(UserRole.User, username) if same_name and same_word else None
        if certificate == self._user_certificate:
            return User(UserRole.User, "certificate")
        return User(UserRole.User, "anonymous") if self._anonymous else None


class PlantInternals(GuardedInternals):
    """With as few session slots as a small controller has, when a test wants that."""

    most_sessions = 0
    """0: as many as there are connections; below 0: others have them all."""

    def create_session(
        self,
        name: Any,  # noqa: ANN401
        user: User | None = None,
        external: bool = False,
    ) -> GuardedSession:
        """One more session, while there is a slot."""
        full = self.most_sessions and len(self._external_sessions) >= self.most_sessions
        if external and full:
            raise ServiceError(ua.StatusCodes.BadTooManySessions)
        return super().create_session(name, user, external)


class GuardedServer(guarded_server.GuardedServer):
    """The plant's server: the guarded one with a plant's certificates.

    Args:
        pki: certificates, trust list and password.
        insecure: also offer the unencrypted endpoint and anonymous users, on the operator's word.
    """

    def __init__(self, pki: Pki, *, insecure: bool = False) -> None:
        self._pki = pki
        users = PlantUsers(pki, anonymous=insecure)
        trust = None if insecure else TrustList(pki.trusted_clients)
        internals = PlantInternals(users, trust, ServerLimits())
        super().__init__(internals, pki.server_cert, pki.server_key, insecure=insecure)
        self.product_uri = "urn:steadyhand:plant-server"
        self.name = "steadyhand simulated plant"

    async def init(self, shelf_file: Path | None = None) -> None:
        """Load the standard address space and the plant's own certificate."""
        await super().init(shelf_file)
        await self.set_application_uri(self._pki.server_uri)
