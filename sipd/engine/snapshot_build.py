"""Opens the snapshots of one model, when the configuration names a folder."""

from __future__ import annotations

from sipd.config import Config
from sipd.engine.reuse import Reuse
from sipd.engine.snapshot_file import ModelKey
from sipd.engine.snapshot_store import SnapshotStore
from sipd.engine.snapshots import Snapshots
from sipd.memory import Ledger
from sipd.models.forward import Forward
from sipd.weights.fingerprint import fingerprint
from sipd.weights.tensor_table import Checkpoint

TERM = "snapshot index"
_INDEX_SHARE, _MAX_INDEX_BYTES = 100, 10 << 20  # a hundredth of the limit: token ids of many long heads


def has_snapshots(config: Config) -> bool:
    """Whether keys and values are kept on disk."""
    return config.prefix_cache and config.snapshot_dir is not None


def grant_index(config: Config, ledger: Ledger) -> None:
    """Asks the ledger for the index; does nothing without snapshots. Raises BudgetError."""
    if has_snapshots(config):
        ledger.grant(TERM, _index_bytes(ledger))


def open_snapshots(  # noqa: PLR0917 - the parts of an engine
    config: Config, checkpoint: Checkpoint, reuse: Reuse, forward: Forward, contract: int, ledger: Ledger
) -> Snapshots | None:
    """The snapshots of `checkpoint`; None without a folder. Blocks while the folder is looked through."""
    if not has_snapshots(config) or config.snapshot_dir is None:
        return None
    key = ModelKey(fingerprint(checkpoint.files), contract, forward.kv_layout, reuse.pool.page_bytes)
    store = SnapshotStore(config.snapshot_dir, config.snapshot_bytes, key, _index_bytes(ledger))
    return Snapshots(store, reuse, forward.page, config.snapshot_min_tokens, config.session_idle_s)


def _index_bytes(ledger: Ledger) -> int:
    return min(_MAX_INDEX_BYTES, ledger.limit_bytes // _INDEX_SHARE)
