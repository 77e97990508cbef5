"""Where the observations come from: a subscription if it can be had, cyclic reads otherwise.

Two shapes. A plant that numbers its images is *read* whole, in one request, whenever the
subscription reports a new number: the image is coherent, and the number read before and after the
values proves it. Any other plant's values are taken as the subscription reports them.
"""

import asyncio
import logging
from collections.abc import Callable
from math import isnan, nan
from typing import Any

from asyncua import ua

from steadyhand.adapters.opcua.plant import Plant
from steadyhand.adapters.opcua.session import LinkTimeoutError, Session
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.subscription import Subscription, SubscriptionRefusedError
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode

RESUBSCRIBE_S = 2.0
"""Pause before a dead subscription is asked for anew."""

MOST_BUSY = 5
"""Refusals in a row after which the session is given up."""
BUSY = (
    ua.uaerrors.BadServerTooBusy,
    ua.uaerrors.BadTooManyOperations,
    ua.uaerrors.BadResourceUnavailable,
)
"""Refusals of one request that say nothing about the next."""

_log = logging.getLogger(__name__)


async def wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Feed:
    """Keeps the measurements of one session coming.

    Args:
        session: open.
        plant: verified, with a first complete image.
        settings: intervals.
        due: set when everything should be read now.
        monotonic: our clock.
        show: called with this feed after every change of what is known.
    """

    def __init__(
        self,
        session: Session,
        plant: Plant,
        settings: OpcUaSettings,
        due: asyncio.Event,
        monotonic: Callable[[], float],
        show: "Callable[[Feed], None]",
    ) -> None:
        self.plant = plant
        self.faults: tuple[Fault, ...] = ()
        self.busy: tuple[Fault, ...] = ()
        """The server refused the last reading because it had too much to do."""
        self._session = session
        self._settings = settings
        self._due = due
        self._now = monotonic
        self._show = show
        self._subscription: Subscription | None = None
        self._wanted = settings.subscribe
        self._retry_s = 0.0
        self._whole = False
        self._busy = 0
        self._news = True
        self._witness_value = nan
        self._witness_moved_s = self._reported_s = monotonic()

    @property
    def _carries(self) -> bool:
        """Is there a subscription that has shown life?"""
        return self._subscription is not None and self._subscription.proven

    @property
    def alive_s(self) -> float:
        """When the source of the observations last showed life."""
        subscription = self._subscription
        if subscription is None or not subscription.proven or self.plant.numbered:
            return self.plant.signs.alive_s
        return min(subscription.alive_s, self.plant.signs.alive_s)

    def take_news(self) -> int:
        """1 once after each new image, else 0."""
        news, self._news = self._news, False
        return int(news)

    async def run(self) -> None:
        """Read when due, for ever.

        Raises:
            LinkError, OSError, asyncua's UaError: the session is no good any more.
        """
        while True:
            await self._keep_subscribed()
            whole = self._whole or not self._carries
            self._whole = False
            self._news |= await self._pulse(whole)
            self._watch_witness()
            self._show(self)
            if self._whole:
                continue
            settings = self._settings
            pause_s = settings.pulse_s if self._carries else settings.sample_period_s
            if await wait(self._due, pause_s):
                self._whole = True
            self._due.clear()

    async def _pulse(self, whole: bool) -> bool:
        """One reading; a server that says it is busy is left alone until the next turn."""
        try:
            new = await self.plant.pulse(whole)
        except BUSY as error:
            self._busy += 1
            if self._busy > MOST_BUSY:
                raise
            text = f"a reading was refused: {type(error).__name__}"
            self.busy = (Fault(ReasonCode.SERVER_BUSY, "", self._busy, MOST_BUSY, text),)
            _log.info("the server is busy: %s", error)
            return False
        self._busy, self.busy = 0, ()
        return new

    async def _keep_subscribed(self) -> None:
        subscription = self._subscription
        if subscription is not None:
            silent = subscription.stale() or self._contradiction(subscription)
            if silent:
                self.faults = (Fault(ReasonCode.SUB_STALE, text=f"subscription {silent}"),)
                self._subscription = None
                self._retry_s = self._now() + RESUBSCRIBE_S
                await self._quietly(subscription.stop())
            elif subscription.proven:
                self.faults = ()
        elif self._wanted and self._now() >= self._retry_s:
            await self._subscribe()

    async def _subscribe(self) -> None:
        subscription = Subscription(self._session, self._settings, self._take, self._now)
        self._retry_s = self._now() + RESUBSCRIBE_S
        try:
            await subscription.start(self.plant.subscribed_nodes())
        except SubscriptionRefusedError as error:
            _log.warning("reading cyclically instead of by subscription: %s", error)
            self._wanted = False
            await self._quietly(subscription.stop())
        except (ua.UaError, LinkTimeoutError) as error:
            _log.warning("no subscription, trying again: %s", error)
            await self._quietly(subscription.stop())
        else:
            self._subscription = subscription
            self._reported_s = self._witness_moved_s = self._now()

    @staticmethod
    async def _quietly(awaitable: Any) -> None:  # noqa: ANN401
        """For what is only tidy: whether the link still works, the next read tells."""
        try:
            await awaitable
        except (ua.UaError, LinkTimeoutError, OSError) as error:
            _log.info("deleting a subscription: %s", error)

    def _watch_witness(self) -> None:
        """Note when the witness, as read, last moved."""
        value = self.plant.witness
        if value != self._witness_value and not isnan(value):
            self._witness_value = value
            self._witness_moved_s = self._now()

    def _contradiction(self, subscription: Subscription) -> str:
        """Reads see the plant move, the subscription does not: it is dead without saying so."""
        behind_s = self._witness_moved_s - self._reported_s
        if behind_s > subscription.stale_after_s:
            return f"reports nothing although the plant moves, for {behind_s:.1f} s"
        return ""

    def _take(self, changes: list[tuple[int, Any]], complete: bool) -> None:
        """A publish response."""
        plant = self.plant
        if any(column == plant.witness_column for column, _ in changes):
            self._reported_s = self._now()
        if plant.numbered or not complete:
            self._due.set()
        if plant.numbered:
            return
        changes = [change for change in changes if change[0] != plant.witness_column]
        if changes:
            plant.take_reported(changes)
            self._news = True
            self._show(self)
