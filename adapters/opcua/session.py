"""One connection to one server, made anew each time: never reused after a failure.

Every await has a deadline of ours. asyncua's own reconnecting is not used: it backs off up to
30 s, holds requests back for up to 60 s and then sends them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlparse

from asyncua import Client, ua
from asyncua.crypto import security_policies
from asyncua.ua.ua_binary import struct_from_binary
from cryptography import x509

from steadyhand.adapters.opcua.channel import abort, cap_messages
from steadyhand.adapters.opcua.decoding import new_message
from steadyhand.adapters.opcua.refusals import hung_up
from steadyhand.adapters.opcua.security import (
    Credentials,
    ServerIdentityError,
    check_server,
    choose_endpoint,
    renewed,
    split_chain,
)
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.wire import to_ticks
from steadyhand.controllers.errors import LinkError

T = TypeVar("T")

_LIMIT_NODES = {"read": 11705, "write": 11707, "browse": 11712, "monitor": 11714}
_MOST_BROWSED = {"references": 11710}
"""Asked for by those who browse only: some servers take no more than four nodes at once."""
_NEVER_S = 1e6
"""asyncua's own health probe is put off for ever: the link has its own."""


class LinkTimeoutError(LinkError):
    """No answer within the deadline."""


class ChannelError(LinkError):
    """The secure channel could not be renewed before its token ends."""


async def within(seconds: float, awaitable: Awaitable[T], what: str) -> T:
    """Await with a deadline.

    Raises:
        LinkTimeoutError: no answer in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError:
        raise LinkTimeoutError(f"{what}: no answer within {seconds:g} s") from None


class Session:
    """An open session: typed service calls with deadlines, and nothing clever."""

    def __init__(self, client: Any, timeout_s: float) -> None:  # noqa: ANN401
        self._client = client
        self.timeout_s = timeout_s
        """Deadline of every request."""
        self.limits: dict[str, int] = {}
        self.certificate: x509.Certificate | None = None
        """What the server showed; None on an open channel."""

    @property
    def protocol(self) -> Any:  # noqa: ANN401
        """Asyncua's transport, for the cyclic fast path."""
        return self._client.uaclient.protocol

    @property
    def alive(self) -> bool:
        """False once the socket is known to be gone."""
        protocol = self.protocol
        return protocol is not None and protocol.transport is not None

    async def channel_lost(self) -> None:
        """Wait until the channel can be renewed no more: asyncua tries once and says nothing.

        Raises:
            ChannelError: a renewal was refused or not answered. The session lives on until its
                token ends, so there is time for a new one.
        """
        renewal = self._client._renew_channel_task
        await asyncio.wait([renewal])
        error = None if renewal.cancelled() else renewal.exception()
        why = str(error) or type(error).__name__
        raise ChannelError(f"the secure channel was not renewed ({why}): a new one is made")

    async def call(self, request: Any, reply: Any, what: str) -> Any:  # noqa: ANN401
        """Send one request, decode the reply, check the service result.

        Raises:
            LinkTimeoutError: no answer in time.
            ConnectionError: the connection is gone.
            asyncua's UaError: the server refused the call as a whole.
        """
        uaclient = self._client.uaclient
        data = await within(self.timeout_s, uaclient._send_request(request, self.timeout_s), what)
        new_message()
        response = struct_from_binary(reply, data)
        response.ResponseHeader.ServiceResult.check()
        return response

    async def read(self, wanted: list[tuple[Any, Any]], what: str) -> tuple[list[Any], int]:
        """Full DataValues of (node id, attribute) pairs, split to the server's limit.

        Returns:
            The DataValues, and the server's clock (ticks) when it answered last.
        """
        values: list[Any] = []
        clock = 0
        for part in chunks(wanted, self.limits.get("read", 0)):
            request = ua.ReadRequest()
            request.Parameters.TimestampsToReturn = ua.TimestampsToReturn.Both
            request.Parameters.NodesToRead = [
                ua.ReadValueId(NodeId=node, AttributeId=attribute) for node, attribute in part
            ]
            response = await self.call(request, ua.ReadResponse, what)
            results = response.Results or []
            if len(results) != len(part):
                raise LinkError(f"{what}: {len(results)} results for {len(part)} nodes")
            values += results
            clock = to_ticks(response.ResponseHeader.Timestamp)
        return values, clock

    async def write(self, wanted: list[tuple[Any, Any]], what: str) -> list[int]:
        """Write (node id, Variant) pairs, value only; returns one StatusCode per pair.

        No stamps and no status travel along: servers may refuse both (Bad_WriteNotSupported).
        """
        statuses: list[int] = []
        for part in chunks(wanted, self.limits.get("write", 0)):
            request = ua.WriteRequest()
            request.Parameters.NodesToWrite = [
                ua.WriteValue(
                    NodeId=node,
                    AttributeId=ua.AttributeIds.Value,
                    Value=ua.DataValue(Value=variant, StatusCode=None),
                )
                for node, variant in part
            ]
            response = await self.call(request, ua.WriteResponse, what)
            statuses += [int(status.value) for status in response.Results or []]
        if len(statuses) != len(wanted):
            raise LinkError(f"{what}: {len(statuses)} results for {len(wanted)} nodes")
        return statuses

    async def translate(self, paths: list[Any]) -> list[Any]:
        """Resolve browse paths."""
        results: list[Any] = []
        for part in chunks(paths, self.limits.get("browse", 0)):
            request = ua.TranslateBrowsePathsToNodeIdsRequest()
            request.Parameters.BrowsePaths = part
            response = await self.call(
                request, ua.TranslateBrowsePathsToNodeIdsResponse, "resolve browse paths"
            )
            results += response.Results or []
        return results

    async def browse(self, nodes: list[Any], page: int) -> list[Any]:
        """ReferenceDescriptions of objects and variables below `nodes`, up to the last page.

        What cannot be browsed has nothing below it.
        """
        if "references" not in self.limits:
            await self.read_limits(_MOST_BROWSED)
        found: list[Any] = []
        for part in chunks(nodes, self.limits["references"]):
            request = ua.BrowseRequest()
            request.Parameters.RequestedMaxReferencesPerNode = page
            request.Parameters.NodesToBrowse = [_below(node) for node in part]
            response = await self.call(request, ua.BrowseResponse, "browse")
            results = response.Results or []
            while results:
                found += [one for result in results for one in result.References or []]
                points = [one.ContinuationPoint for one in results if one.ContinuationPoint]
                if not points:
                    break
                more = ua.BrowseNextRequest()
                more.Parameters.ReleaseContinuationPoints = False
                more.Parameters.ContinuationPoints = points
                answer = await self.call(more, ua.BrowseNextResponse, "browse on")
                results = answer.Parameters.Results or []
        return found

    async def create_subscription(self, parameters: Any, callback: Callable[[Any], None]) -> Any:  # noqa: ANN401
        """Create a subscription; publish responses and keep-alives go to `callback`."""
        return await within(
            self.timeout_s,
            self._client.uaclient.session.create_subscription(parameters, callback),
            "create subscription",
        )

    async def create_monitored_items(self, parameters: Any) -> list[Any]:  # noqa: ANN401
        """Add items to a subscription, split to the server's limit."""
        results: list[Any] = []
        for part in chunks(list(parameters.ItemsToCreate), self.limits.get("monitor", 0)):
            request = ua.CreateMonitoredItemsRequest()
            request.Parameters.SubscriptionId = parameters.SubscriptionId
            request.Parameters.TimestampsToReturn = parameters.TimestampsToReturn
            request.Parameters.ItemsToCreate = part
            response = await self.call(
                request, ua.CreateMonitoredItemsResponse, "create monitored items"
            )
            results += response.Results or []
        return results

    async def delete_subscription(self, subscription_id: int) -> None:
        """Delete a subscription that is no longer wanted."""
        await within(
            self.timeout_s,
            self._client.uaclient.session.delete_subscriptions([subscription_id]),
            "delete subscription",
        )

    async def read_limits(self, which: Mapping[str, int] = _LIMIT_NODES) -> None:
        """Ask how many nodes fit one request; a server that does not say has no limit."""
        nodes = [(ua.NodeId(i), ua.AttributeIds.Value) for i in which.values()]
        values, _ = await self.read(nodes, "read operation limits")
        for name, data_value in zip(which, values, strict=True):
            value = data_value.Value.Value if data_value.Value is not None else None
            self.limits[name] = value if isinstance(value, int) and value > 0 else 0

    async def close(self, grace_s: float) -> None:
        """Log out within `grace_s`, then cut. Never raises, never waits longer."""
        if grace_s > 0 and self.alive:
            with suppress(Exception, asyncio.CancelledError):
                await within(grace_s, self._client.disconnect(), "disconnect")
        abort(self._client)


def _below(node: Any) -> Any:  # noqa: ANN401
    wanted = ua.BrowseDescription()
    wanted.NodeId = node
    wanted.BrowseDirection = ua.BrowseDirection.Forward
    wanted.ReferenceTypeId = ua.NodeId(ua.ObjectIds.HierarchicalReferences)
    wanted.IncludeSubtypes = True
    wanted.NodeClassMask = ua.NodeClass.Object | ua.NodeClass.Variable
    wanted.ResultMask = ua.BrowseResultMask.BrowseName | ua.BrowseResultMask.NodeClass
    return wanted


def chunks(items: list[T], limit: int) -> list[list[T]]:
    """Split to at most `limit` per part; 0 means no limit."""
    if limit <= 0 or len(items) <= limit:
        return [items] if items else []
    return [items[i : i + limit] for i in range(0, len(items), limit)]


async def open_session(settings: OpcUaSettings, credentials: Credentials | None) -> Session:
    """Find the endpoint, check who answers, open channel and session.

    The caller bounds the whole; each step is bounded here too.

    Raises:
        ServerIdentityError: wrong server, or not as secure as configured.
        LinkError: it hangs up as soon as it sees our certificate.
        LinkTimeoutError, OSError, asyncua's UaError: the server cannot be reached or refuses.
    """
    endpoint = await _find_endpoint(settings)
    client = _new_client(settings)
    certificate: x509.Certificate | None = None
    if credentials is not None:
        credentials = renewed(settings.security, credentials)
        host = urlparse(settings.endpoint).hostname if settings.security.check_host else None
        certificate = check_server(
            split_chain(endpoint.ServerCertificate), credentials, settings.server_uri, host
        )
        policy = getattr(security_policies, f"SecurityPolicy{settings.security.policy}")(
            certificate,
            credentials.certificate,
            credentials.private_key,
            ua.MessageSecurityMode.SignAndEncrypt,
        )
        client.security_policy = policy
        client.uaclient.set_security(policy)
        client.application_uri = credentials.application_uri
        if credentials.user:
            client.set_user(credentials.user)
            client.set_password(credentials.password)
    try:
        await within(settings.connect_timeout_s, client.connect(), "open session")
        session = Session(client, settings.request_timeout_s)
        session.certificate = certificate
        await session.read_limits()
    except BaseException as error:
        abort(client)
        if isinstance(error, ua.UaError) and "certificate mismatch" in str(error):
            raise ServerIdentityError(
                "the server uses another certificate in the session than in its endpoint list"
            ) from None
        if isinstance(error, ConnectionError) and credentials is not None:
            # it answered a moment ago, in the clear: what is new is who we say we are
            raise LinkError(hung_up(settings.security.certificate)) from None
        raise
    return session


async def _find_endpoint(settings: OpcUaSettings) -> Any:  # noqa: ANN401
    probe = _new_client(settings)
    try:
        endpoints = await within(
            settings.connect_timeout_s, probe.connect_and_get_server_endpoints(), "get endpoints"
        )
    finally:
        abort(probe)
    return choose_endpoint(
        endpoints,
        settings.security.policy,
        settings.server_uri,
        insecure=settings.security.insecure,
    )


def _new_client(settings: OpcUaSettings) -> Any:  # noqa: ANN401
    client = Client(
        settings.endpoint, timeout=settings.request_timeout_s, watchdog_intervall=_NEVER_S
    )
    client.name = client.description = "steadyhand"
    client.session_timeout = settings.session_life_s * 1000.0
    client.secure_channel_timeout = int(settings.channel_life_s * 1000.0)
    cap_messages(client, settings.max_message_bytes)
    return client
