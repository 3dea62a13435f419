"""Renews the node's certificate: over the session after two thirds of its validity; and with the old key if it expired
while the coordinator could not be reached. New connections use the new certificate."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

from distributed_grid.agent.session import CannotConnect, Session
from distributed_grid.identity.credentials import has_identity
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import NewCertificate, WantCertificate
from distributed_grid.runtime.logs import get_logger

MAX_SLEEP = 3600.0
"""Longest sleep (s): the clock may be set, and the machine may be suspended."""
ANSWER_SECONDS = 30.0
PAUSE = 1.0
BACK_OFF = 60.0
"""Back-off after a renewal that failed, or after which the next is due at once by a clock that is ahead: one to two
times as many seconds."""

log = get_logger("agent")


class Renewal:
    """Renewal for one agent. `session` returns the connection to the coordinator, if any. Without an identity it does
    nothing."""

    def __init__(self, folder: Path, url: str, session: Callable[[], Session | None]) -> None:
        self._folder = folder
        self._url = url
        self._session = session
        self._answer: asyncio.Future[NewCertificate] | None = None

    async def run(self) -> None:
        """Renew whenever it is due."""
        if not self._url.startswith("wss:") or not has_identity(self._folder):
            await asyncio.Event().wait()
        from distributed_grid.identity.enrollment import renewal_time

        at = 0.0
        while True:
            with contextlib.suppress(GridError):  # reported when dialling
                at = renewal_time(self._folder)
            if (left := at - time.time()) > 0:
                await asyncio.sleep(min(left, MAX_SLEEP))
            elif (session := self._session()) is None:
                await asyncio.sleep(PAUSE)
            else:
                renewed = await self._renewed(session)
                with contextlib.suppress(GridError):
                    at = renewal_time(self._folder)
                if not renewed or at <= time.time():
                    await asyncio.sleep(BACK_OFF * random.uniform(1, 2))  # noqa: S311

    async def _renewed(self, session: Session) -> bool:
        """Try once."""
        from distributed_grid.identity.enrollment import RenewalRequest

        asked = RenewalRequest(self._folder)
        self._answer = asyncio.get_running_loop().create_future()
        session.send(WantCertificate(request=asked.request))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._answer
            if answer.error:
                log.warning("the certificate is not renewed now", why=answer.error)
                return False
            await asyncio.to_thread(asked.keep, answer.certificate)
        except TimeoutError:
            return False
        except GridError as error:
            log.warning("the certificate is not renewed now", what=error.what, why=error.why)
            return False
        finally:
            self._answer = None
        log.info("certificate renewed")
        return True

    def answered(self, answer: NewCertificate) -> None:
        """Handle the coordinator's answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    async def revive(self, failed: bool = False) -> None:
        """Renew an expired certificate, before connecting. `failed`: the last attempt to connect failed. Then a
        certificate that is not valid yet is renewed, too, if possible: the coordinator accepts that only if its clock
        is ahead. Raises CannotConnect."""
        if not self._url.startswith("wss:") or not has_identity(self._folder):
            return
        from distributed_grid.identity.enrollment import NotRenewed, has_expired, is_of_the_future, renew_expired

        try:
            if has_expired(self._folder):
                await asyncio.to_thread(renew_expired, self._folder, self._url)
                log.info("certificate renewed after it had expired")
            elif failed and is_of_the_future(self._folder):
                with contextlib.suppress(NotRenewed):  # why is said by the next try to connect
                    await asyncio.to_thread(renew_expired, self._folder, self._url)
                    log.info("certificate renewed that was made while the clock was ahead")
        except NotRenewed as error:
            raise CannotConnect(error.what, error.why, error.hint, error.final) from None
        except GridError as error:
            raise CannotConnect(error.what, error.why, error.hint) from None
