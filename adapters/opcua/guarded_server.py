"""An OPC UA server that lets nobody in by default, and gives nobody more than their share.

The library's own server offers an unencrypted endpoint, accepts every certificate and anonymous
users, takes anybody called "admin" for the administrator, lets one client use another's session
and subscriptions, and keeps whatever is sent to it. Here:

- only SignAndEncrypt with Basic256Sha256 is offered; an unencrypted channel serves discovery only;
- a channel opens only for a client certificate on the trust list and within its dates. Checking
  there, and not when a session is made, also closes the way in with somebody else's (public)
  certificate in the session request;
- a session lives and dies with its connection, so there is no way onto a living one; what it
  subscribed to is its own (`guarded_session.py`);
- users are who the user manager says; nobody is administrator;
- connections, requests, subscriptions, queues and answers not read have limits.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from asyncua import ua
from asyncua.common.connection import TransportLimits
from asyncua.common.utils import ServiceError
from asyncua.crypto.permission_rules import PermissionRuleset, User, UserRole
from asyncua.crypto.security_policies import SecurityPolicyFactory, SecurityPolicyNone
from asyncua.server.internal_server import InternalServer
from asyncua.server.server import Server
from cryptography import x509

from steadyhand.adapters.opcua.guarded_connection import Listener
from steadyhand.adapters.opcua.guarded_session import GuardedSession
from steadyhand.adapters.opcua.trust_files import load_private_key

SECURE = (ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt,)
CHUNK_BYTES = 65_535
SMALLEST_CHUNK_BYTES = 8_192
"""OPC 10000-6: no peer may ask for less; tiny ones would make us sign each byte."""
_FIT_TO_ENCRYPT = ("", "rsa-oaep", "rsa-oaep-sha2-256")
"""Encryptions of a password, by the last part of their names. None is needed inside an encrypted
channel, and the one left out (RSA 1.5) tells a patient client about our key."""
_FIT_TO_SIGN = ("rsa-sha256", "rsa-pss-sha2-256")

Call = Callable[[User, Sequence[Any]], Awaitable[list[Any]]]
"""Carries out method calls (CallMethodRequest to CallMethodResult) for a user."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may take at most."""

    connections: int = 50
    unnamed_per_host: int = 16
    """Connections of one host that have not logged in yet."""
    login_s: float = 10.0
    """A connection that has not logged in by then is closed."""
    requests_per_s: float = 1e9
    """Of one connection; beyond it we read slower."""
    burst: int = 400
    message_bytes: int = 1 << 20
    unread_bytes: int = 4 << 20
    """Answers a client does not read; beyond it the connection is cut."""
    nodes_per_request: int = 2000
    calls_per_request: int = 10
    subscriptions: int = 100
    subscriptions_per_session: int = 16
    items_per_subscription: int = 2000
    queue: int = 100
    """Values kept per monitored item, and notifications per subscription, for a slow client."""
    fastest_s: float = 0.001
    slowest_s: float = 60.0
    """Publishing intervals."""
    session_s: float = 600.0
    """Longest silence of a session."""
    filter_elements: int = 8
    """Of an event filter's where clause: its work can double with each."""
    filter_fields: int = 400
    """Of an event filter's select clauses."""


class Trust(Protocol):
    """Which client applications are let in."""

    def trusts(self, der: bytes | None) -> bool:
        """Is this certificate on the list, and valid now?"""
        ...


class Users(Protocol):
    """Who people are."""

    def get_user(
        self,
        iserver: Any,  # noqa: ANN401  (the library's signature)
        username: str | None = None,
        password: str | None = None,
        certificate: bytes | None = None,
    ) -> User | None:
        """The user these credentials belong to, or None to refuse."""
        ...


_REFRESH_SEVERITY = 100
"""Of the events before and after a refresh; they announce nothing."""


def tell_nobody(event: str, text: str) -> None:
    """For servers whose comings and goings nobody records."""
    del event, text


class _TrustingFactory(SecurityPolicyFactory):  # type: ignore[misc]  # untyped library
    """Security policy for channels of trusted clients only."""

    def __init__(self, factory: SecurityPolicyFactory, trust: Trust) -> None:
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


class _Transport(TransportLimits):  # type: ignore[misc]  # untyped library
    """Refuses peers that ask for chunks smaller than the standard allows."""

    def create_acknowledge_and_set_limits(self, msg: Any) -> Any:  # noqa: ANN401
        if min(msg.ReceiveBufferSize, msg.SendBufferSize) < SMALLEST_CHUNK_BYTES:
            raise ua.UaStatusCodeError(ua.StatusCodes.BadConnectionRejected)
        return super().create_acknowledge_and_set_limits(msg)


class GuardedInternals(InternalServer):  # type: ignore[misc]  # untyped library
    """The server behind the wire: guarded sessions, nobody registers anything."""

    time_task: Any
    gone = 0
    """Connections that ended."""

    def __init__(
        self,
        users: Users,
        trust: Trust | None,
        limits: ServerLimits,
        call: Call | None = None,
        told: Callable[[str, str], None] = tell_nobody,
        still: Callable[[User], bool] = lambda user: True,
    ) -> None:
        """Set the library's own limits.

        Args:
            users: who people are.
            trust: whom to let in; None: everybody, on the operator's word.
            limits: what clients may take.
            call: carries out method calls; None: the library does.
            told: hears of logins, refusals and logouts: event and text.
            still: may a user who is logged in still be here?
        """
        self.trust = trust
        self.shares = limits
        self.on_call = call
        self.told = told
        self.still = still
        super().__init__(user_manager=users)
        if call is not None:
            # who shows alarms can be asked for those that stand: ConditionRefresh, with a severity
            self.bind_condition_methods = _REFRESH_SEVERITY
        self.allow_remote_admin = False
        self.max_connections = limits.connections
        self.max_pending_activation_seconds = limits.login_s
        self.max_pending_messages_per_connection = 500
        self.max_session_timeout_ms = 1000.0 * limits.session_s
        self.max_subscriptions = limits.subscriptions
        self.max_unacked_messages_per_subscription = limits.queue
        self.max_monitored_item_queue_size = limits.queue
        self.max_lifetime_count = 1000
        self.max_keep_alive_count = 1000

    async def stop(self) -> None:
        """End at once: the library's clock would be waited for up to a second."""
        if self.time_task is not None:
            self.time_task.cancel()
            with suppress(asyncio.CancelledError):
                await self.time_task
            self.time_task = None
        await super().stop()

    def create_session(
        self,
        name: Any,  # noqa: ANN401
        user: User | None = None,
        external: bool = False,
    ) -> GuardedSession:
        """One session per connection; `name` is the peer's address."""
        if external and any(one.name == name for one in self._external_sessions.values()):
            raise ServiceError(ua.StatusCodes.BadTooManySessions)
        return GuardedSession(
            self,
            self.aspace,
            self.subscription_service,
            name,
            user=user or User(UserRole.Anonymous),
            external=external,
        )

    def lookup_external_session(self, auth_token: Any) -> None:  # noqa: ANN401
        """Nobody gets onto a living session from another connection."""
        del auth_token

    def register_server(self, server: Any, conf: Any = None) -> None:  # noqa: ANN401
        """Refused: we are no discovery server, and this service asks nobody for a name."""
        raise ServiceError(ua.StatusCodes.BadServiceUnsupported)

    def register_server2(self, params: Any) -> Any:  # noqa: ANN401
        """Refused, as `register_server`."""
        raise ServiceError(ua.StatusCodes.BadServiceUnsupported)

    def decrypt_user_token(self, isession: Any, token: Any) -> tuple[str, str]:  # noqa: ANN401
        """User name and password of a token."""
        if not token.UserName:  # the library would take the channel's certificate for the user
            raise ServiceError(ua.StatusCodes.BadIdentityTokenInvalid)
        if (token.EncryptionAlgorithm or "").rpartition("#")[2].rpartition("/")[2] not in (
            _FIT_TO_ENCRYPT
        ):
            raise ServiceError(ua.StatusCodes.BadIdentityTokenInvalid)
        found: tuple[str, str] = super().decrypt_user_token(isession, token)
        return found

    def verify_x509_token(self, isession: Any, token: Any, signature: Any) -> bytes:  # noqa: ANN401
        """The user's certificate, once its signature is proven."""
        if (signature.Algorithm or "").rpartition("#")[2].rpartition("/")[2] not in _FIT_TO_SIGN:
            raise ServiceError(ua.StatusCodes.BadIdentityTokenInvalid)
        found: bytes = super().verify_x509_token(isession, token, signature)
        return found


def _certificate(content: bytes) -> x509.Certificate:
    if b"-----BEGIN" in content:
        return x509.load_pem_x509_certificate(content)
    return x509.load_der_x509_certificate(content)


class GuardedServer(Server):  # type: ignore[misc]  # untyped library
    """asyncua server, closed by default."""

    def __init__(
        self,
        internals: GuardedInternals,
        certificate: Path | None,
        private_key: Path | None,
        *,
        insecure: bool = False,
        listening: socket.socket | None = None,
    ) -> None:
        """Prepare; `init` loads, `start` listens.

        Args:
            internals: users, trust list, limits.
            certificate: DER or PEM, ours.
            private_key: its key.
            insecure: also offer the unencrypted endpoint and anonymous users, on somebody's word.
            listening: a bound socket to listen on, instead of the endpoint's address.
        """
        self._listening = listening
        self._files = (certificate, private_key)
        self._insecure = insecure
        super().__init__(iserver=internals)
        self.limits = _Transport(
            max_recv_buffer=CHUNK_BYTES,
            max_send_buffer=CHUNK_BYTES,
            max_chunk_count=internals.shares.message_bytes // SMALLEST_CHUNK_BYTES + 1,
            max_message_size=internals.shares.message_bytes,
        )
        self.application_type = ua.ApplicationType.Server
        self.manufacturer_name = "steadyhand"
        tokens: list[type] = [ua.UserNameIdentityToken, ua.X509IdentityToken]
        policies = list(SECURE)
        if insecure:
            tokens.append(ua.AnonymousIdentityToken)
            policies.append(ua.SecurityPolicyType.NoSecurity)
        self.set_identity_tokens(tokens)
        self.set_security_policy(policies)

    async def init(self, shelf_file: Path | None = None) -> None:
        """Load the standard address space, our certificate and key."""
        await super().init(shelf_file)
        certificate, private_key = self._files
        if certificate is not None and private_key is not None:
            self.iserver.certificate = _certificate(certificate.read_bytes())
            self.iserver.private_key = load_private_key(private_key.read_bytes())
        names = ua.object_ids.ObjectIds
        prefix = "Server_ServerCapabilities_OperationLimits_Max"
        for name in vars(names):
            if name.startswith(prefix):
                node = self.get_node(ua.NodeId(getattr(names, name)))
                with suppress(ua.UaStatusCodeError):  # not every one is in the address space
                    most = self.iserver.shares.nodes_per_request
                    if "MethodCall" in name:
                        most = self.iserver.shares.calls_per_request
                    await node.write_value(ua.Variant(most, ua.VariantType.UInt32))

    async def start(self) -> None:
        """Listen, with our own kind of connection.

        Raises:
            OSError: the address cannot be had.
        """
        await self._setup_server_nodes()
        await self.iserver.start()
        host, port = self._get_bind_socket_info()
        self.bserver: Listener | None = Listener(self.iserver, host, port, self.limits)
        self.bserver.set_policies(self._policies)
        self.bserver.listening = self._listening
        try:
            await self.bserver.start()
        except OSError:
            await self.iserver.stop()
            self.bserver = None
            raise

    async def _setup_server_nodes(self) -> None:
        """Called between the making of the policies and the first connection."""
        await super()._setup_server_nodes()
        if self._insecure:
            return
        guarded = [_TrustingFactory(factory, self.iserver.trust) for factory in self._policies]
        discovery = SecurityPolicyFactory(
            SecurityPolicyNone, ua.MessageSecurityMode.None_, permission_ruleset=_Nothing()
        )
        # The library falls back to an unchecked unencrypted channel when no policy matches.
        self._policies: list[Any] = [*guarded, discovery]
