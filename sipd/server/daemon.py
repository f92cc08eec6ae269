"""The life of the daemon: bind, load and verify the model, serve, drain, exit.

Invariant: READY=1 is sent only when the ports are bound and the model is verified; SIGTERM always ends in exit 0
within the grace, a dead engine always in a non-zero exit; no subprocess is ever started once gRPC runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from sipd.config import Config, SystemdEnvironment
from sipd.engine.request import Outcome
from sipd.errors import EX_SOFTWARE, ConfigError, DataLoss, StorageFault
from sipd.memory import Ledger
from sipd.server.auth import TokenFile
from sipd.server.descriptors import require_descriptors
from sipd.server.events import Events
from sipd.server.journal import RequestJournal, find_journal_send
from sipd.server.listener import Listener
from sipd.server.monitor import Monitor
from sipd.server.notify import Notifier
from sipd.server.served_model import ServedModel
from sipd.server.service import GrpcService, build_service
from sipd.server.service_state import DaemonState, ServiceState
from sipd.server.tls import ServerTls, configured_tls

_LOG = logging.getLogger("sipd.daemon")
_LOAD_TICK_S = 5.0  # how often a long load asks systemd for more time
_STOP_S = 2.0  # for transport to flush last messages after the engine has drained

Loader = Callable[[Config], tuple[ServedModel, Ledger]]


async def run_daemon(config: Config, environment: SystemdEnvironment, load: Loader) -> int:
    """Serves until a signal or a dead engine; returns the exit code. Raises what `load` raises."""
    require_descriptors(len(config.listen))
    tokens = None if config.token_file is None else TokenFile(config.token_file)
    daemon = Daemon(config, environment, tokens, configured_tls(config))
    return await daemon.run(load)


class Daemon:
    """Owns every part of the running daemon; lives in the event loop's thread."""

    def __init__(
        self, config: Config, environment: SystemdEnvironment, tokens: TokenFile | None, tls: ServerTls | None
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._tls = tls
        self._state = ServiceState(config)
        self._notifier = Notifier(environment.notify_socket)
        self._watchdog_s = environment.watchdog_s
        self._events = Events(find_journal_send())
        self._fault: StorageFault | None = None  # the latest one told: requests of one pass share it
        self._listener = Listener(tls)
        self._stop = asyncio.Event()
        self._service: GrpcService | None = None
        self._monitor: Monitor | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    async def run(self, load: Loader) -> int:
        """Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        journal = RequestJournal(find_journal_send())
        service = await build_service(self._state, journal, self._tokens, self._on_outcome, self._events)
        self._service = service
        self._listener.bind(service.server, self._config.listen)
        self._warn_of_open_doors()
        try:
            await service.server.start()
            return await self._serve(service, load)
        finally:
            await service.server.stop(0)
            self._listener.remove_sockets()

    async def _serve(self, service: GrpcService, load: Loader) -> int:
        served, ledger = await self._load(load)
        try:
            self._state.served, self._state.ledger = served, ledger
            if self._stop.is_set():
                return 0
            self._state.state = DaemonState.SERVING
            await service.health.set_serving(is_serving=True)
            monitor = self._monitor = Monitor(self._state, self._notifier, self._watchdog_s, self._events)
            self._events.started(served.name, ", ".join(map(str, self._listener.bound)))
            self._notifier.ready(monitor.line())
            if not await self._watch(monitor):
                return await self._fail(service)
            await self._drain(service, served)
            return 0
        finally:
            await asyncio.to_thread(served.engine.stop)

    async def _load(self, load: Loader) -> tuple[ServedModel, Ledger]:
        """Runs `load` in a thread and asks systemd for more time while it works; a signal is seen after it."""
        loading = asyncio.create_task(asyncio.to_thread(load, self._config))
        began = time.monotonic()
        while True:
            done, _ = await asyncio.wait({loading}, timeout=_LOAD_TICK_S)
            if done:
                return loading.result()
            self._notifier.extend_timeout(4 * _LOAD_TICK_S)
            self._notifier.status("loading the model")
            _LOG.info("loading the model, for %.0f s now", time.monotonic() - began)

    async def _watch(self, monitor: Monitor) -> bool:
        """Returns True when asked to stop, False when the engine is dead."""
        while monitor.tick():
            with suppress(TimeoutError):
                async with asyncio.timeout(monitor.interval_s):
                    await self._stop.wait()
                    return True
        return False

    async def _fail(self, service: GrpcService) -> int:
        """Ends a daemon whose engine is dead; systemd restarts it."""
        self._state.state = DaemonState.FAILED
        await service.health.shut_down()
        self._events.engine_dead(self._state.last_error or "no cause known")
        await service.server.stop(_STOP_S)
        return EX_SOFTWARE

    async def _drain(self, service: GrpcService, served: ServedModel) -> None:
        """Refuses new calls, lets live ones finish within the grace, ends the rest."""
        self._state.state = DaemonState.DRAINING
        self._notifier.stopping("draining")
        self._notifier.extend_timeout(self._config.grace_s + 2 * _STOP_S)
        await service.health.shut_down()
        await asyncio.to_thread(served.engine.drain, self._config.grace_s)
        await service.server.stop(_STOP_S)
        self._events.stopped(time.monotonic() - self._state.started_at)

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():  # asked twice: at once
            self._listener.remove_sockets()
            os._exit(128 + number)
        _LOG.info("%s: stopping, live requests get %g s", number.name, self._config.grace_s)
        self._stop.set()

    def _warn_of_open_doors(self) -> None:
        """Tells what the settings allow and their author may not have meant."""
        is_on_network = any(not address.is_local for address in self._listener.bound)
        if self._tls is None:
            return
        if not is_on_network:
            _LOG.warning("tls_cert is set, but no address is on the network: loopback and Unix sockets stay plain")
        elif self._tokens is None and not self._tls.requires_client_certificate:
            _LOG.warning("whoever reaches this machine may call: neither token_file nor tls_client_ca is set")

    def _on_reload(self) -> None:
        """Reads tokens and certificates again; what is bad stays as it was. Everything else needs a restart."""
        is_serving = self._state.state is DaemonState.SERVING
        if is_serving:
            self._notifier.reloading()
        for part in (self._tokens, self._tls):
            if part is None:
                continue
            try:
                self._events.reloaded(part.reload())
            except ConfigError as error:
                self._events.reload_failed(error)
        if is_serving and self._monitor is not None:
            self._notifier.ready(self._monitor.line())

    def _on_outcome(self, outcome: Outcome) -> None:
        """A changed model file makes the daemon unhealthy until a request succeeds again."""
        if self._service is None or self._state.state is not DaemonState.SERVING:
            return
        if isinstance(outcome.error, StorageFault) and outcome.error is not self._fault:
            self._fault = outcome.error
            self._events.storage(outcome.error)
        if isinstance(outcome.error, DataLoss):
            self._state.last_error = str(outcome.error)
            self._set_health(is_serving=False)
        elif outcome.error is None:
            self._state.last_error = ""
            self._set_health(is_serving=True)

    def _set_health(self, *, is_serving: bool) -> None:
        assert self._service is not None
        task = asyncio.ensure_future(self._service.health.set_serving(is_serving=is_serving))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
