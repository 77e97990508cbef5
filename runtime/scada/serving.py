"""One life of the server, in its thread's event loop: address space, images, method calls."""

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.crypto.permission_rules import User, UserRole

from steadyhand.adapters.opcua.guarded_server import GuardedInternals, GuardedServer, ServerLimits
from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_protocol import Door
from steadyhand.runtime.record import TickRecord
from steadyhand.runtime.scada import methods
from steadyhand.runtime.scada.conditions import ACKNOWLEDGE, Conditions
from steadyhand.runtime.scada.nodes import ROOT
from steadyhand.runtime.scada.people import load_certificate
from steadyhand.runtime.scada.snapshot import (
    NO_TICKS,
    STALE_AFTER,
    STARTING,
    STOPPING,
    Clock,
    Told,
    aged,
    readings,
    service_level,
)
from steadyhand.runtime.scada.space import Reading, Space

if TYPE_CHECKING:
    from steadyhand.runtime.scada.server import ScadaServer

LEAVE_S = 2
"""So long clients are told that we stop before we do; many subscriptions publish once a second."""
SWEEP_AFTER = 50
"""Connections that ended; some ten milliseconds of work."""
_COMMAND_TEXTS = ("Actor", "Command", "Code", "Text")
PRODUCT_URI = "urn:steadyhand"
APPLICATION_URI = "urn:steadyhand:runtime"
"""Where we have no certificate that says otherwise."""


class Serving:
    """The server's nodes and what happens on them."""

    def __init__(self, owner: "ScadaServer", listening: socket.socket) -> None:
        """Prepare.

        Args:
            owner: settings, people, desk and what the loop said.
            listening: a bound socket; ours to close.
        """
        settings = owner.settings
        self._owner = owner
        self._listening = listening
        limits = ServerLimits(
            connections=2 * settings.sessions,
            unnamed_per_host=settings.sessions,
            login_s=5.0,
            requests_per_s=200.0,
            message_bytes=1 << 20,
            unread_bytes=1 << 20,
            nodes_per_request=1000,
            subscriptions=4 * settings.sessions,
            subscriptions_per_session=8,
            items_per_subscription=1000,
            fastest_s=0.1,
        )
        self._server = GuardedServer(
            GuardedInternals(
                self,
                owner.trust,
                limits,
                call=self.call,
                told=owner.tell,
                still=lambda user: owner.role_of(str(user.name)) is not None,
            ),
            settings.certificate,
            settings.private_key,
            insecure=settings.insecure,
            listening=listening,
        )
        self._space = Space(self._server)
        self._conditions = Conditions(self._server, owner.site.name)
        self._shown: Told | None = None
        self._stale = False
        self._level = -1
        self._swept = 0

    async def start(self) -> None:
        """Make the address space and listen."""
        owner, server = self._owner, self._server
        # its library tells every bad request of every client; we count and cut them instead
        logging.getLogger("asyncua.server").setLevel(logging.CRITICAL)
        server.set_endpoint(owner.url)
        server.name = f"steadyhand {owner.site.name}"
        server.product_uri = PRODUCT_URI
        await server.init()
        await server.set_application_uri(self._application_uri())
        await server.set_build_info(
            PRODUCT_URI, "steadyhand", "steadyhand", owner.site.version, "", datetime.now(UTC)
        )
        signals = owner.site.layout
        await self._space.build(owner.site.name, signals.outputs, signals.observations)
        loop = self._space.id_of(("loop", ROOT))
        self._conditions.place(loop.NamespaceIndex, loop)
        await self._say(STARTING, "starting: the loop has not ticked yet")
        await server.start()

    async def stop(self) -> None:
        """Say so, leave clients the time to hear it, and hang up on everybody."""
        if self._space.paths:  # else it was never told anything
            await self._say(STOPPING, "the runtime stops")
        if self._server.iserver._external_sessions:
            await self._announce(LEAVE_S, "the runtime stops; the plant has its own control")
            await asyncio.sleep(LEAVE_S)
        await self._server.stop()
        self._listening.close()

    def _application_uri(self) -> str:
        """As our certificate names us."""
        from cryptography import x509

        file = self._owner.settings.certificate
        if file is None:
            return APPLICATION_URI
        names = load_certificate(file).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        return uris[0] if uris else APPLICATION_URI

    # -- images ------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Show what the loop said last, if that is new, or that it has said nothing for long."""
        owner, told = self._owner, self._owner.told
        self._sweep()
        if told is None:
            return
        if told is not self._shown:
            self._shown, self._stale = told, False
            level = service_level(told.status)
            made = readings(told, self._record(told), owner.site, owner.bundle(), level)
            await self._space.show(made, datetime.fromtimestamp(told.wall_s, UTC))
            await self._serve_level(level)
            clock = Clock(told, owner.site.time_scale)
            await self._conditions.update(told.status["alarms"], clock.at, clock.now)
            return
        site = owner.site
        patience_s = STALE_AFTER * site.period_s / site.time_scale + 1.0
        if not self._stale and time.monotonic() - told.monotonic_s > patience_s:
            self._stale = True
            made = aged(readings(told, self._record(told), site, owner.bundle(), NO_TICKS))
            await self._space.show(made, datetime.fromtimestamp(told.wall_s, UTC))
            text = f"no tick for {patience_s:.0f} s: values are the last usable ones"
            await self._say(NO_TICKS, text)

    def _sweep(self) -> None:
        """Free what connections that ended have left behind in circles.

        The loop collects between ticks what is young; a connection is not, when it ends.
        """
        gone = self._server.iserver.gone
        if gone - self._swept >= SWEEP_AFTER:
            self._swept = gone
            if not gc.isenabled():
                gc.collect()

    def _record(self, told: Told) -> TickRecord | None:
        """The record of the loop's last word; None if it could not be made."""
        recorder = self._owner.recorder
        bodies, _, _ = recorder.ticks.peek(max(0, told.head - 1), 1)
        if not bodies:
            return None
        record = recorder.layout.decode(bodies[0])
        return record if record.sequence == told.status["tick"] else None

    async def _say(self, level: int, text: str) -> None:
        shown = {
            "Health.Level": Reading(level),
            "Health.Text": Reading(text),
            "Health.CertificateExpires": Reading(self._owner.site.certificate_expires),
            "Plant": Reading(self._owner.site.plant),
            "Version": Reading(self._owner.site.version),
            "PeriodSeconds": Reading(self._owner.site.period_s),
        }
        if level == STARTING:
            shown |= {f"LastCommand.{name}": Reading("") for name in _COMMAND_TEXTS}
        await self._space.show(shown, datetime.now(UTC))
        await self._serve_level(level)

    async def _announce(self, left_s: int, why: str) -> None:
        """The server's own status, whole and in parts: when it will be gone, and why."""
        ids, kinds = ua.ObjectIds, ua.VariantType
        reason = ua.LocalizedText(why)
        node = self._server.get_node(ua.NodeId(ids.Server_ServerStatus))
        status = await node.read_value()
        status.State, status.SecondsTillShutdown = ua.ServerState.Shutdown, left_s
        status.ShutdownReason = reason
        await node.write_value(status)
        for number, value, kind in (
            (ids.Server_ServerStatus_SecondsTillShutdown, left_s, kinds.UInt32),
            (ids.Server_ServerStatus_ShutdownReason, reason, kinds.LocalizedText),
            (ids.Server_ServerStatus_State, ua.ServerState.Shutdown, kinds.Int32),
        ):
            await self._server.get_node(ua.NodeId(number)).write_value(ua.Variant(value, kind))

    async def _serve_level(self, level: int) -> None:
        if level != self._level:
            self._level = level
            await self._set(ua.ObjectIds.Server_ServiceLevel, level, "Byte")

    async def _set(self, number: int, value: Any, kind: str) -> None:  # noqa: ANN401
        node = self._server.get_node(ua.NodeId(number))
        await node.write_value(ua.Variant(value, getattr(ua.VariantType, kind)))

    # -- people ------------------------------------------------------------------------------------

    def get_user(
        self,
        iserver: Any,  # noqa: ANN401  (the library's signature)
        username: str | None = None,
        password: str | None = None,
        certificate: bytes | None = None,
    ) -> User | None:
        """Who logs in."""
        del iserver
        from steadyhand.runtime.scada.server import ANONYMOUS

        people = self._owner.people
        try:
            if username is not None:
                found = None if people is None else people.by_password(username, password or "")
            else:
                found = None
                if people is not None and certificate:
                    found = people.by_certificate(certificate)
                if found is None and self._owner.settings.insecure:
                    return User(UserRole.User, ANONYMOUS)
        except PermissionError:
            raise ServiceError(ua.StatusCodes.BadTooManyOperations) from None
        return None if found is None else User(UserRole.User, found.name)

    # -- methods -----------------------------------------------------------------------------------

    async def call(self, user: User, requests: Sequence[Any]) -> list[Any]:
        """Carry out the calls of one request, one after the other."""
        results = []
        for request in requests:
            result = await self._call(user, request)
            missing = len(request.InputArguments or ()) - len(result.InputArgumentResults)
            result.InputArgumentResults += [ua.StatusCode()] * missing
            results.append(result)
        return results

    async def _call(self, user: User, request: Any) -> Any:  # noqa: ANN401
        bound = self._space.methods.get((request.ObjectId, request.MethodId))
        if request.MethodId == ACKNOWLEDGE:
            return await self._acknowledge(user, request)
        if bound is None:
            known = request.ObjectId in self._server.iserver.aspace
            status = ua.StatusCodes.BadMethodInvalid if known else ua.StatusCodes.BadNodeIdUnknown
            self._owner.desk.refusals.count("UNKNOWN_COMMAND")
            return methods.no_method("no such method on that object", status)

        def arguments() -> dict[str, Any]:
            given = methods.arguments_of(bound, request.InputArguments)
            if bound.method.command == "swap":
                given["file"] = self._bundle_file(given["file"])
            return given

        return await self._carry_out(user, bound.path, bound.method.command, arguments)

    async def _acknowledge(self, user: User, request: Any) -> Any:  # noqa: ANN401
        """A condition's own method: it has no outputs, and the event that follows tells who."""
        conditions = self._conditions

        def arguments() -> dict[str, Any]:
            code, comment = conditions.asked(request)
            # before the loop does it: the alarm may be gone before its answer is here
            conditions.acknowledging(code, f"scada:{user.name}", comment)
            return {"code": str(code)}

        result = await self._carry_out(user, "Acknowledge", "ack", arguments)
        result.OutputArguments = []
        return result

    async def _carry_out(
        self, user: User, path: str, command: str, arguments: Callable[[], dict[str, Any]]
    ) -> Any:  # noqa: ANN401
        """Put one command on the desk and wait for its answer.

        Args:
            user: who calls.
            path: of the method, for the last command.
            command: as the desk calls it.
            arguments: makes the desk's arguments, or raises `Wrong`.
        """
        name, owner = str(user.name), self._owner
        role = owner.role_of(name)
        actor, code = f"scada:{name}", "OK"
        try:
            if role is None:
                text = f"{name} has no role here any more"
                raise methods.Wrong(ua.StatusCodes.BadUserAccessDenied, text, "DENIED")
            given = arguments()
            assert owner.callers is not None  # noqa: S101  (made with this life)
            answer = await asyncio.get_running_loop().run_in_executor(
                owner.callers, owner.desk.call, command, given, actor, role, Door.SCADA
            )
            result, text = methods.done(answer)
        except methods.Wrong as wrong:
            code, text, result = wrong.code, wrong.text, methods.unfit(wrong)
            owner.desk.refusals.tell(RequestError(code, text), actor, command, Door.SCADA)
        except RequestError as error:
            code, text, result = error.code, error.message, methods.refused(error)
        await self._space.show(
            {
                "LastCommand.Time": Reading(datetime.now(UTC)),
                "LastCommand.Actor": Reading(actor),
                "LastCommand.Command": Reading(path),
                "LastCommand.Code": Reading(code),
                "LastCommand.Text": Reading(text),
            },
            datetime.now(UTC),
        )
        return result

    def _bundle_file(self, name: str) -> str:
        """A bundle by its bare name; a name from the network never leads anywhere else.

        Raises:
            Wrong: it is more than a name, or there is no folder of bundles.
        """
        folder = self._owner.settings.bundles
        if folder is None or not name or Path(name).name != name or name.startswith("."):
            where = "no bundle is configured" if folder is None else f"a file's name in {folder}"
            raise methods.Wrong(ua.StatusCodes.BadInvalidArgument, f"File: {where}, without a path")
        return str(folder / name)
