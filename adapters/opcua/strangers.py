"""Who else could write our outputs? Asked from outside, without writing anything.

A server may let in whom it was told to refuse. Only trying it shows; what a session may then do is
the server's own word (UserAccessLevel), for the surest answer would be to write.
"""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from asyncua import ua
from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.application_certificate import make_certificate
from steadyhand.adapters.opcua.resolve import writable
from steadyhand.adapters.opcua.security import load_credentials
from steadyhand.adapters.opcua.session import open_session, within
from steadyhand.adapters.opcua.settings import INSECURE_WORD, OpcUaSettings, Security
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.controllers.errors import LinkError

STRANGER_URI = "urn:steadyhand:commission:stranger"


def open_doors(settings: OpcUaSettings, tags: TagMap) -> list[str]:
    """Ways in which somebody else gets in and may write what we write, one sentence each.

    Tried are: no encryption and no name; a certificate that nobody knows and no name; our own
    certificate and no name, where ours logs in by a name. A server that cannot be reached has no
    open door: that it is not there is told by the link.

    Raises:
        LinkError: our own certificates cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="steadyhand") as folder:
        return asyncio.run(_try_all(settings, tags, Path(folder)))


async def _try_all(settings: OpcUaSettings, tags: TagMap, folder: Path) -> list[str]:
    given, found = settings.security, []
    doors = {"without encryption or a name": Security(insecure_no_encryption=INSECURE_WORD)}
    if not given.insecure:
        cert, key = folder / "stranger.der", folder / "stranger.pem"
        use = ExtendedKeyUsageOID.CLIENT_AUTH
        make_certificate(cert, key, STRANGER_URI, ["stranger"], use, days=1.0)
        nameless = replace(given, user="", password_file=None, allow_anonymous=True)
        unknown = replace(nameless, certificate=cert, private_key=key)
        doors["with a certificate that nobody knows and without a name"] = unknown
        if given.user:
            doors["with a trusted certificate, but without a name"] = nameless
    for words, security in doors.items():
        names = await _writable_as(replace(settings, security=security), tags)
        if names:
            found.append(f"whoever comes {words} may write {', '.join(names)}")
    return found


async def _writable_as(settings: OpcUaSettings, tags: TagMap) -> list[str]:
    """What may be written by whoever logs in so; nothing where nobody gets in."""
    credentials = load_credentials(settings.security)
    try:
        session = await within(
            settings.connect_timeout_s, open_session(settings, credentials), "connect"
        )
    except (LinkError, OSError, ua.UaError, asyncio.CancelledError):
        return []  # not let in: the library cancels what waits when a connection is cut
    try:
        return await writable(session, tags)
    except (LinkError, OSError, ua.UaError, asyncio.CancelledError):
        return []
    finally:
        await session.close(settings.request_timeout_s)
