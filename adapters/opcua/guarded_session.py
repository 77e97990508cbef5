"""One client's session: its own subscriptions, its share of the work, and nobody else's."""

import logging
import time
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from typing import Any

from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.server.internal_session import InternalSession, SessionState

from steadyhand.adapters.opcua.event_filter import know_supertypes

_LOGGERS = "asyncua.server.monitored_item_service"
_REFRESH_EVERY_S = 0.5
_REFRESHES = (
    ua.NodeId(ua.ObjectIds.ConditionType_ConditionRefresh),
    ua.NodeId(ua.ObjectIds.ConditionType_ConditionRefresh2),
)


class GuardedSession(InternalSession):  # type: ignore[misc]  # untyped library
    """Sessions of the outside are guarded; the server's own inner one is free."""

    _refreshed_s = -inf
    """When this session last asked for all conditions."""

    # -- coming and going --------------------------------------------------------------------------

    def activate_session(
        self,
        params: Any,  # noqa: ANN401
        peer_certificate: bytes | None,
    ) -> Any:  # noqa: ANN401
        """Log in, on the encrypted channel of a trusted client only."""
        internals = self.iserver
        if internals.trust is not None and not internals.trust.trusts(peer_certificate):
            raise ServiceError(ua.StatusCodes.BadSecurityChecksFailed)
        try:
            result = super().activate_session(params, peer_certificate)
        except ServiceError as error:
            name = str(getattr(params.UserIdentityToken, "UserName", "") or "")
            status = ua.StatusCode(error.code).name
            internals.told("refused", f"{_host(self.name)} as {name[:64]!r}: {status}")
            raise
        internals.told("login", f"{self.user.name} from {_host(self.name)}")
        return result

    async def close_session(self, delete_subs: bool = True) -> None:
        """Log out; what was subscribed to ends with it, whatever the client wants."""
        del delete_subs
        if self.external and self.state is SessionState.Activated:
            self.iserver.told("logout", f"{self.user.name} from {_host(self.name)}")
        ended = self._owned()
        await super().close_session(True)
        for number in ended:  # the library makes a logger for each subscription and keeps it
            logging.Logger.manager.loggerDict.pop(f"{_LOGGERS}.{number}", None)

    # -- shares ------------------------------------------------------------------------------------

    def _few(self, asked: Sequence[Any] | None) -> None:
        """Refuse more operations in one request than we tell we take, and any once logged out.

        Raises:
            ServiceError: BadTooManyOperations, BadSessionClosed.
        """
        if self.external and self.state is SessionState.Closed:
            raise ServiceError(ua.StatusCodes.BadSessionClosed)
        if self.external and len(asked or ()) > self.iserver.shares.nodes_per_request:
            raise ServiceError(ua.StatusCodes.BadTooManyOperations)

    async def read(self, params: Any) -> Any:  # noqa: ANN401
        """Values and attributes."""
        self._few(params.NodesToRead)
        return await super().read(params)

    async def write(self, params: Any) -> Any:  # noqa: ANN401
        """Values, where they are writable."""
        self._few(params.NodesToWrite)
        return await super().write(params)

    async def browse(self, params: Any) -> Any:  # noqa: ANN401
        """References of nodes; always all of them, which our address space is small enough for."""
        self._few(params.NodesToBrowse)
        return await super().browse(params)

    async def browse_next(self, parameters: Any) -> Any:  # noqa: ANN401
        """Nothing is ever left to browse."""
        raise ServiceError(ua.StatusCodes.BadContinuationPointInvalid)

    async def translate_browsepaths_to_nodeids(self, params: Any) -> Any:  # noqa: ANN401
        """Nodes by their paths."""
        self._few(params)
        if self.external and any(not 0 < len(p.RelativePath.Elements or ()) <= 32 for p in params):
            raise ServiceError(ua.StatusCodes.BadInvalidArgument)
        return await super().translate_browsepaths_to_nodeids(params)

    async def history_read(self, params: Any) -> Any:  # noqa: ANN401
        """We keep no history here: the journal does."""
        raise ServiceError(ua.StatusCodes.BadHistoryOperationUnsupported)

    async def call(self, params: Any) -> Any:  # noqa: ANN401
        """Methods, in the name of this session's user."""
        if not self.external:
            return await super().call(params)
        if len(params) > self.iserver.shares.calls_per_request:
            raise ServiceError(ua.StatusCodes.BadTooManyOperations)
        if self.iserver.on_call is None:
            return await super().call(params)
        results: list[Any] = []
        for request in params:
            if request.MethodId in _REFRESHES:
                results += await self._refresh(request)
            else:
                results += await self.iserver.on_call(self.user, [request])
        return results

    async def _refresh(self, request: Any) -> Any:  # noqa: ANN401
        """ConditionRefresh: all conditions that stand, to a subscription of this session."""
        given = list(request.InputArguments or ())
        number = given[0].Value if given else None
        status, now_s = 0, time.monotonic()
        if number not in self._owned():
            status = ua.StatusCodes.BadSubscriptionIdInvalid
        elif now_s - self._refreshed_s < _REFRESH_EVERY_S:
            status = ua.StatusCodes.BadRefreshInProgress
        if status:
            result = ua.CallMethodResult()
            result.StatusCode = ua.StatusCode(status)
            result.InputArgumentResults = [ua.StatusCode() for _ in given]
            return [result]
        self._refreshed_s = now_s
        return await super().call([request])

    # -- subscriptions -----------------------------------------------------------------------------

    def _owned(self) -> list[int]:
        subscriptions = self.subscription_service.subscriptions
        return [
            number for number, one in subscriptions.items() if one.session_id == self.session_id
        ]

    def _own(self, number: int) -> None:
        """Somebody else's subscription does not exist for this session.

        Raises:
            ServiceError: BadSubscriptionIdInvalid.
        """
        if self.external and number not in self._owned():
            raise ServiceError(ua.StatusCodes.BadSubscriptionIdInvalid)

    async def create_subscription(
        self,
        params: Any,  # noqa: ANN401
        callback: Any,  # noqa: ANN401
        request_callback: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """A subscription at a pace we can keep."""
        if self.external:
            shares = self.iserver.shares
            if len(self._owned()) >= shares.subscriptions_per_session:
                raise ServiceError(ua.StatusCodes.BadTooManySubscriptions)
            asked = float(params.RequestedPublishingInterval)
            fastest, slowest = 1000.0 * shares.fastest_s, 1000.0 * shares.slowest_s
            asked = asked if isfinite(asked) else fastest
            params.RequestedPublishingInterval = min(max(asked, fastest), slowest)
        return await super().create_subscription(params, callback, request_callback)

    def modify_subscription(self, params: Any) -> Any:  # noqa: ANN401
        """Pace of a subscription."""
        self._own(params.SubscriptionId)
        return super().modify_subscription(params)

    async def create_monitored_items(self, params: Any) -> Any:  # noqa: ANN401
        """Watch nodes."""
        self._own(params.SubscriptionId)
        self._few(params.ItemsToCreate)
        if self.external:
            self._check_items(params)
        made = await super().create_monitored_items(params)
        subscription = self.subscription_service.subscriptions[params.SubscriptionId]
        know_supertypes(subscription.monitored_item_srv)
        return made

    def _check_items(self, params: Any) -> None:  # noqa: ANN401
        shares = self.iserver.shares
        service = self.subscription_service.subscriptions[params.SubscriptionId].monitored_item_srv
        if (
            len(service._monitored_items) + len(params.ItemsToCreate)
            > shares.items_per_subscription
        ):
            raise ServiceError(ua.StatusCodes.BadTooManyMonitoredItems)
        for item in params.ItemsToCreate:
            given = item.RequestedParameters.Filter
            events = item.ItemToMonitor.AttributeId == ua.AttributeIds.EventNotifier
            if events and not isinstance(given, ua.EventFilter):
                raise ServiceError(ua.StatusCodes.BadEventFilterInvalid)
            where = getattr(given, "WhereClause", None)
            fields = getattr(given, "SelectClauses", None)
            if (
                len(getattr(where, "Elements", None) or ()) > shares.filter_elements
                or len(fields or ()) > shares.filter_fields
            ):
                raise ServiceError(ua.StatusCodes.BadEventFilterInvalid)

    async def modify_monitored_items(self, params: Any) -> Any:  # noqa: ANN401
        """Change how nodes are watched; the filter stays as it was made."""
        self._own(params.SubscriptionId)
        self._few(params.ItemsToModify)
        if self.external:
            most = self.iserver.shares.queue
            for item in params.ItemsToModify:
                asked = item.RequestedParameters
                asked.QueueSize = min(int(asked.QueueSize) or most, most)
                asked.Filter = None
        return await super().modify_monitored_items(params)

    async def delete_monitored_items(self, params: Any) -> Any:  # noqa: ANN401
        """Watch no longer."""
        self._own(params.SubscriptionId)
        return await super().delete_monitored_items(params)

    async def set_monitoring_mode(self, params: Any) -> Any:  # noqa: ANN401
        """Pause and go on watching nodes."""
        self._own(params.SubscriptionId)
        return await super().set_monitoring_mode(params)

    async def set_publishing_mode(self, params: Any) -> Any:  # noqa: ANN401
        """Pause and go on with subscriptions."""
        for number in params.SubscriptionIds:
            self._own(number)
        return await super().set_publishing_mode(params)

    async def delete_subscriptions(self, ids: list[int]) -> Any:  # noqa: ANN401
        """End subscriptions; of somebody else's there is none."""
        owned = self._owned()
        mine = [number for number in ids if not self.external or number in owned]
        results = iter(await super().delete_subscriptions(mine))
        unknown = ua.StatusCode(ua.StatusCodes.BadSubscriptionIdInvalid)
        return [next(results) if number in mine else unknown for number in ids]

    def republish(self, params: Any) -> Any:  # noqa: ANN401
        """Send a notification again."""
        self._own(params.SubscriptionId)
        return super().republish(params)

    async def transfer_subscriptions(self, params: Any, callback: Any) -> Any:  # noqa: ANN401
        """A subscription stays with the session that made it."""
        del callback
        result = ua.TransferResult()
        result.StatusCode = ua.StatusCode(ua.StatusCodes.BadSubscriptionIdInvalid)
        return [result for _ in params.SubscriptionIds]

    def publish(self, acks: Iterable[Any] | None = None) -> Any:  # noqa: ANN401
        """What was received need not be kept any longer."""
        given, owned = list(acks or ()), self._owned()
        if self.external and not owned:
            raise ServiceError(ua.StatusCodes.BadNoSubscription)
        mine = [not self.external or ack.SubscriptionId in owned for ack in given]
        _, done = super().publish([ack for ack, own in zip(given, mine, strict=True) if own])
        results = iter(done)
        unknown = ua.StatusCode(ua.StatusCodes.BadSubscriptionIdInvalid)
        return len(owned), [next(results) if own else unknown for own in mine]


def _host(peer: Any) -> str:  # noqa: ANN401
    return str(peer[0]) if isinstance(peer, tuple) else str(peer)
