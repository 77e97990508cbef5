"""Names of hosts are looked up in a thread that nobody waits for.

asyncio does it in its pool, and both the loop's end and the interpreter's wait for that pool: a
name server that says nothing would hold up the stop for as long as the resolver is patient.
"""

import asyncio
import socket
from contextlib import suppress
from threading import Thread
from typing import Any


def look_up_aside(loop: asyncio.AbstractEventLoop) -> None:
    """Make `loop` look names up in daemon threads."""

    async def getaddrinfo(host: Any, port: Any, **hints: int) -> Any:  # noqa: ANN401
        found: asyncio.Future[Any] = loop.create_future()

        def tell(result: Any, error: OSError | None) -> None:  # noqa: ANN401
            if found.done():
                return  # given up meanwhile
            if error is None:
                found.set_result(result)
            else:
                found.set_exception(error)

        def look_up() -> None:
            result, problem = None, None
            try:
                result = socket.getaddrinfo(host, port, **hints)
            except OSError as error:
                problem = error
            with suppress(RuntimeError):  # the loop closed: nobody asks any more
                loop.call_soon_threadsafe(tell, result, problem)

        Thread(target=look_up, name="opcua-lookup", daemon=True).start()
        return await found

    loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]
