"""What a sound configuration leaves open: told by `check` and at the start, refused by nobody."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from cryptography import x509

from steadyhand.adapters.opcua.trust_files import (
    LISTS,
    UNPARSABLE,
    files_of,
    read_certificates,
    read_list,
)
from steadyhand.controllers.errors import ConfigError, LinkError
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.state_folder import forgotten_state


def cautions(loaded: Loaded, now: datetime | None = None) -> list[str]:
    """Everything that works and that the engineer should know, one sentence each.

    Args:
        loaded: a configuration without a problem.
        now: the time that lists are judged by (tests); the present by default.
    """
    forgotten = forgotten_state(loaded)
    found = [forgotten] if forgotten else []
    if isinstance(loaded.config.link, OpcUaLink):
        found += _lists(loaded, loaded.config.link, now or datetime.now(UTC))
        found += _not_followed(loaded.config.link)
    return found


def _lists(loaded: Loaded, link: OpcUaLink, now: datetime) -> Iterator[str]:
    """Authorities whose word nobody can take back, and lists that are overdue."""
    given = link.security
    if given.insecure_no_encryption is not None:
        return
    lists = []
    with suppress(LinkError):
        for file in files_of([loaded.path(name) for name in given.revoked], LISTS):
            with suppress(ConfigError, *UNPARSABLE):
                lists.append((file, read_list(file)))
    issuers = {one.issuer for _, one in lists}
    with suppress(LinkError):
        for file in files_of([loaded.path(name) for name in given.trusted]):
            with suppress(ConfigError, *UNPARSABLE):
                for found in read_certificates(file):
                    if _is_authority(found) and found.subject not in issuers:
                        yield (
                            f"link.security.trusted: {file.name} is an authority without a "
                            "revocation list: whatever it takes back stays believed; name its "
                            "list in link.security.revoked"
                        )
    for file, one in lists:
        end = one.next_update_utc
        if end is not None and now > end:
            so = (
                "nothing is connected to on its word"
                if given.overdue_list == "refuse"
                else "what was taken back since is still believed"
            )
            yield (
                f"link.security.revoked: {file.name} is overdue since {end:%Y-%m-%d %H:%M} UTC: "
                f"{so}; bring the authority's new list"
            )


def _is_authority(certificate: x509.Certificate) -> bool:
    """Does it sign others? One with an application URI is a single server's own."""
    extensions = certificate.extensions
    try:
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        return bool(error.oid == x509.SubjectAlternativeName.oid)
    return not names.get_values_for_type(x509.UniformResourceIdentifier)


def _not_followed(link: OpcUaLink) -> Iterator[str]:
    """Outputs that tell what they do, and nobody compares it."""
    for name, tag in link.outputs.items():
        if tag.feedback is not None and tag.follow_tolerance is None:
            yield (
                f"link.outputs.{name}: has a feedback but no follow_tolerance and follow_time: an "
                "actuator that does nothing is not told; give both"
            )
