"""A server that lets nobody in by default.

The library's own server offers an unencrypted endpoint, accepts every certificate and anonymous
users, and takes anybody called "admin" for the administrator. Here:

- only SignAndEncrypt with Basic256Sha256 is offered; an unencrypted channel serves discovery only;
- a channel opens only for a client certificate on the trust list and within its dates. Checking
  there, and not when a session is made, also closes the way in with somebody else's (public)
  certificate in the session request, and the way onto a living session by guessing its token;
- users log in with the password or with the trusted user certificate; nobody is administrator.
"""

import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.crypto.permission_rules import PermissionRuleset, User, UserRole
from asyncua.crypto.security_policies import SecurityPolicyFactory, SecurityPolicyNone
from asyncua.server.internal_server import InternalServer
from asyncua.server.internal_session import InternalSession
from asyncua.server.server import Server
from cryptography import x509

from steadyhand.adapters.sim.certificates import USER_NAME, Pki

SECURE = [ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt]
MAX_MESSAGE_BYTES = 1 << 20


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


class _TrustingFactory(SecurityPolicyFactory):  # type: ignore[misc]  # untyped library
    """Security policy for channels of trusted clients only."""

    def __init__(self, factory: SecurityPolicyFactory, trust: TrustList) -> None:
        super().__init__(
            factory.cls,
            factory.mode,
            factory.certificate,
            factory.private_key,
            factory.permission_ruleset,
            factory.certificate_chain,
        )
        self._trust = trust

    def create(self, peer_certificate: bytes | None) -> Any:  # noqa: ANN401
        if not self._trust.trusts(peer_certificate):
            # The one exception on which the library closes the connection at once.
            raise ua.uaerrors.BadUserAccessDenied
        return super().create(peer_certificate)


class _Nothing(PermissionRuleset):  # type: ignore[misc]  # untyped library
    """Permits no service that needs a session."""

    def check_validity(self, user: User, action_type: Any, body: Any) -> bool:  # noqa: ANN401
        del user, action_type, body
        return False


class _GuardedSession(InternalSession):  # type: ignore[misc]  # untyped library
    """A session that becomes active only on the encrypted channel of a trusted client."""

    def activate_session(
        self,
        params: Any,  # noqa: ANN401
        peer_certificate: bytes | None,
    ) -> Any:  # noqa: ANN401
        if not self.iserver.trust.trusts(peer_certificate):
            raise ServiceError(ua.StatusCodes.BadSecurityChecksFailed)
        return super().activate_session(params, peer_certificate)


class _GuardedInternals(InternalServer):  # type: ignore[misc]  # untyped library
    """Internal server whose external sessions are guarded."""

    def __init__(self, users: PlantUsers, trust: TrustList) -> None:
        super().__init__(user_manager=users)
        self.trust = trust
        self.allow_remote_admin = False

    def create_session(
        self,
        name: str,
        user: User | None = None,
        external: bool = False,
    ) -> InternalSession:
        return _GuardedSession(
            self,
            self.aspace,
            self.subscription_service,
            name,
            user=user or User(UserRole.Anonymous),
            external=external,
        )


class GuardedServer(Server):  # type: ignore[misc]  # untyped library
    """asyncua server, closed by default.

    Args:
        pki: certificates, trust list and password.
        insecure: also offer the unencrypted endpoint and anonymous users, on the operator's word.
    """

    def __init__(self, pki: Pki, *, insecure: bool = False) -> None:
        self._pki = pki
        self._insecure = insecure
        self._trust = TrustList(pki.trusted_clients)
        users = PlantUsers(pki, anonymous=insecure)
        internals = InternalServer(user_manager=users)
        if not insecure:
            internals = _GuardedInternals(users, self._trust)
        super().__init__(iserver=internals)
        self.iserver.allow_remote_admin = False
        self.iserver.max_connections = 50
        self.iserver.max_pending_activation_seconds = 10.0
        self.limits.max_message_size = MAX_MESSAGE_BYTES
        self.application_type = ua.ApplicationType.Server
        self.product_uri = "urn:steadyhand:plant-server"
        self.name = "steadyhand simulated plant"
        self.manufacturer_name = "steadyhand"
        tokens: list[type] = [ua.UserNameIdentityToken, ua.X509IdentityToken]
        policies = list(SECURE)
        if insecure:
            tokens.append(ua.AnonymousIdentityToken)
            policies.append(ua.SecurityPolicyType.NoSecurity)
        self.set_identity_tokens(tokens)
        self.set_security_policy(policies)

    async def init(self, shelf_file: Path | None = None) -> None:
        """Load the standard address space and the plant's own certificate."""
        await super().init(shelf_file)
        await self.set_application_uri(self._pki.server_uri)
        await self.load_certificate(self._pki.server_cert)
        await self.load_private_key(self._pki.server_key)

    async def _setup_server_nodes(self) -> None:
        """Called by the library between the making of the policies and the first connection."""
        await super()._setup_server_nodes()
        if self._insecure:
            return
        guarded = [_TrustingFactory(factory, self._trust) for factory in self._policies]
        discovery = SecurityPolicyFactory(
            SecurityPolicyNone, ua.MessageSecurityMode.None_, permission_ruleset=_Nothing()
        )
        # The library falls back to an unchecked unencrypted channel when no policy matches.
        self._policies: list[Any] = [*guarded, discovery]
