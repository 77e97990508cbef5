"""Why a server does not let us in, in words that say what to do about it."""

import socket
from asyncio import CancelledError

from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.controllers.errors import LinkError

FOREIGN_TEXT = 200
"""Characters of somebody else's words that one line has room for."""


def words_of(error: BaseException, settings: OpcUaSettings) -> str:
    """One line about an error of the network or a status that the server answered with.

    What the server or the kernel said stands in it; where that has a usual cause, the remedy too.
    """
    if isinstance(error, LinkError):
        return str(error)  # our own words
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {settings.endpoint}: start the server, or correct the port"
    if isinstance(error, socket.gaierror):
        return f"the host of {settings.endpoint} is unknown: correct endpoint or the name service"
    name = type(error).__name__
    if isinstance(error, CancelledError):  # what was under way is in it, in bytes
        return "the connection ended while it was being used"
    text = str(error)[:FOREIGN_TEXT]
    said = f"{name}: {text}" if text else name
    remedy = _remedy(name, settings)
    return f"{said}: {remedy}" if remedy else said


def _remedy(name: str, settings: OpcUaSettings) -> str:
    security = settings.security
    if name in _USER:
        who = f"user {security.user!r}" if security.user else "a login without a user"
        return (
            f"the server refuses {who}: correct security.user and its password_file, "
            "or the server's list of users"
        )
    if name in _CERTIFICATE:
        return f"the server refuses our certificate {security.certificate}: {_LET_IN}"
    return _OTHERS.get(name, "")


def hung_up(certificate: object) -> str:
    """For a server that closes the connection without a word once it has seen `certificate`."""
    return (
        f"the server answers, but closes the connection when it sees our certificate "
        f"{certificate}, as one does that refuses it: {_LET_IN}"
    )


_LET_IN = "let its people trust it (it may lie in the server's folder of rejected certificates)"
_USER = {
    "BadUserAccessDenied",
    "BadIdentityTokenInvalid",
    "BadIdentityTokenRejected",
    "BadUserSignatureInvalid",
}
_CERTIFICATE = {
    "BadSecurityChecksFailed",
    "BadCertificateUntrusted",
    "BadCertificateInvalid",
    "BadCertificateTimeInvalid",
    "BadCertificateUriInvalid",
    "BadCertificateUseNotAllowed",
    "BadCertificateIssuerTimeInvalid",
    "BadCertificateRevocationUnknown",
    "BadCertificateRevoked",
    "BadCertificateIssuerRevoked",
    "BadCertificateChainIncomplete",
    "BadApplicationSignatureInvalid",
}
_OTHERS = {
    "BadTooManySessions": "close a client that is not needed; it is tried again by itself",
    "BadTcpEndpointUrlInvalid": "the server knows no such path: correct the end of endpoint",
    "BadServerHalted": "start the server",
    "BadShutdown": "the server is stopping; it is tried again by itself",
    "BadSecurityPolicyRejected": "choose a security.policy that the server offers",
    "BadSecurityModeRejected": "let the server offer sign-and-encrypt",
}
