"""Reading the configuration again while the service runs: what a SIGHUP does, and where a change is applied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from magnitude import log as logging_setup
from magnitude.config.changes import LIVE_KEYS, ReloadOutcome, changed, followed
from magnitude.config.load import Loaded
from magnitude.errors import MagnitudeError
from magnitude.intake.live import LiveSettings
from magnitude.intake.sockets import ListeningSocket, refuse_open_doors
from magnitude.service import Service
from magnitude.supervise.teller import Teller

log = logging.getLogger("magnitude.config")


class Reloader:
    """`read` gives the configuration as it stands in the files now, with the same overrides as at the start."""

    def __init__(
        self,
        read: Callable[[], Loaded],
        *,
        live: LiveSettings,
        service: Service,
        sockets: Sequence[ListeningSocket],
        teller: Teller,
    ) -> None:
        self._read = read
        self._live = live
        self._service = service
        self._sockets = sockets
        self._teller = teller
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> ReloadOutcome:
        """Read, and apply what can be applied; a broken configuration changes nothing. Raises nothing for it."""
        async with self._one_at_a_time:
            self._teller.reloading()
            outcome = ReloadOutcome(error="it was given up")
            try:
                outcome = await self._outcome()
            finally:
                self._live.last_reload = outcome
                self._teller.reloaded(str(outcome) if outcome.error or outcome.needs_restart else "")
            return outcome

    async def _outcome(self) -> ReloadOutcome:
        old = self._live.current
        try:
            loaded = await asyncio.to_thread(self._read)
            # Taking the keys away must not open a door that the start would have refused to open.
            new = followed(old, loaded.settings)
            refuse_open_doors(self._sockets, new.server)
            self._service.board.check(new.thermal)
        except MagnitudeError as error:
            fields = {"reason": error.message, "hint": error.hint}
            log.error("reload failed, the old configuration is kept", extra={"fields": fields})
            return ReloadOutcome(error=error.message, hint=error.hint)
        except Exception as error:  # nothing in a file may end a service that runs
            log.exception("reload failed on an error that nobody foresaw, the old configuration is kept")
            return ReloadOutcome(error=f"{type(error).__name__}: {error}")
        keys = changed(old, loaded.settings)
        outcome = ReloadOutcome(
            applied=[key for key in keys if key in LIVE_KEYS],
            needs_restart=[key for key in keys if key not in LIVE_KEYS],
        )
        self._apply(outcome.applied, loaded)
        log.info("%s", outcome, extra={"fields": {"files": ", ".join(loaded.files) or "none, all defaults"}})
        for notice in loaded.notices:
            log.warning("%s", notice)
        return outcome

    def _apply(self, keys: Sequence[str], loaded: Loaded) -> None:
        """The one place where a change of settings reaches those who follow it."""
        settings = followed(self._live.current, loaded.settings)
        self._live.current = settings
        if {"log.level", "log.format"} & set(keys):
            logging_setup.setup(settings.log)
        self._service.dispatcher.tune(
            aliases=settings.models.aliases,
            max_queue=settings.server.max_queue,
            schedule=settings.schedule,
            kv=settings.kv,
        )
        self._service.memory.tune(settings.memory)
        self._service.board.tune(settings.thermal, settings.power)
        self._service.switch.keep_alive(settings.models.keep_alive_s)
        self._service.tune_strategies(settings)
