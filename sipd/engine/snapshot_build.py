"""Opens the snapshots of one model, when the configuration names a folder."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path

from sipd.config import Config
from sipd.engine.reuse import Reuse
from sipd.engine.snapshot_file import BUFFER_BYTES, ModelKey
from sipd.engine.snapshot_store import SnapshotStore
from sipd.engine.snapshots import Snapshots
from sipd.memory import Ledger
from sipd.models.forward import Forward
from sipd.weights.fingerprint import fingerprint
from sipd.weights.tensor_table import Checkpoint

_LOG = logging.getLogger(__name__)
TERM = "snapshot index"
OPEN_S = 60.0  # for a card with two thousand files; a start does not wait for a disk that hangs
_INDEX_SHARE, _MAX_INDEX_BYTES = 100, 10 << 20  # a hundredth of the limit: token ids of many long heads


def has_snapshots(config: Config) -> bool:
    """Whether keys and values are kept on disk."""
    return config.prefix_cache and config.snapshot_dir is not None


def grant_index(config: Config, ledger: Ledger) -> None:
    """Asks the ledger for the index and the buffers; does nothing without snapshots. Raises BudgetError."""
    if has_snapshots(config):
        ledger.grant(TERM, _index_bytes(ledger) + 2 * BUFFER_BYTES)  # a read goes before the rest of a write


def open_snapshots(  # noqa: PLR0917 - the parts of an engine
    config: Config, checkpoint: Checkpoint, reuse: Reuse, forward: Forward, contract: int, ledger: Ledger
) -> Snapshots | None:
    """The snapshots of `checkpoint`; None without a folder, or when its disk hangs.

    Blocks while the folder is looked through, for OPEN_S at most.
    """
    if not has_snapshots(config) or config.snapshot_dir is None:
        return None
    key = ModelKey(fingerprint(checkpoint.files), contract, forward.kv_layout, reuse.pool.page_bytes)
    store = _open_store(config.snapshot_dir, config.snapshot_bytes, key, _index_bytes(ledger))
    if store is None:
        return None
    return Snapshots(store, reuse, forward.page, config.snapshot_min_tokens, config.session_idle_s)


def _open_store(folder: Path, cap_bytes: int, key: ModelKey, index_bytes: int) -> SnapshotStore | None:
    """The store, or what it raises; None when the disk does not come to an end with it."""
    opening: Future[SnapshotStore] = Future()

    def open_store() -> None:
        try:
            opening.set_result(SnapshotStore(folder, cap_bytes, key, index_bytes))
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            opening.set_exception(error)

    threading.Thread(target=open_store, name="sipd-snapshot-start", daemon=True).start()
    try:
        return opening.result(OPEN_S)
    except TimeoutError:
        pass
    _LOG.warning("%s: the disk has not answered for %g s: no snapshots until a restart", folder, OPEN_S)
    return None


def _index_bytes(ledger: Ledger) -> int:
    return min(_MAX_INDEX_BYTES, ledger.limit_bytes // _INDEX_SHARE)
