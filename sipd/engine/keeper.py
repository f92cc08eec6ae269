"""What outlives a request: pages in the prefix cache, sessions, snapshots on disk.

Owned by the engine thread. Invariant: a sequence's pages are given back exactly once, and never while the disk is at
them.
"""

from __future__ import annotations

from sipd.engine.pass_plan import Sequence
from sipd.engine.reuse import Kept, Reuse
from sipd.engine.snapshots import Snapshots


class Keeper:
    """Ties the cache, its sessions and the disk together."""

    def __init__(self, reuse: Reuse, snapshots: Snapshots | None) -> None:
        self.reuse = reuse
        self._snapshots = snapshots

    @property
    def has_news(self) -> bool:
        """Whether the disk has done something since `keep_house`."""
        return self._snapshots is not None and self._snapshots.has_news

    @property
    def snapshot_fault(self) -> tuple[str, str] | None:
        """Path and cause when snapshots cannot be written; any thread."""
        return None if self._snapshots is None else self._snapshots.fault

    def begin(self, sequence: Sequence) -> None:
        """A sequence was admitted: what the disk has of its prompt is read."""
        if self._snapshots is not None:
            self._snapshots.restore(sequence)

    def computed(self, sequence: Sequence) -> None:
        """A pass has computed rows of a sequence; called before tokens are drawn from them, which may end it."""
        self.reuse.computed(sequence)
        if self._snapshots is not None and not sequence.is_decoding and not sequence.n_left:
            self._snapshots.keep_prompt(sequence)

    def end(self, sequence: Sequence, now: float) -> None:
        """A sequence has ended; `now` in seconds."""
        if sequence.is_restoring and self._snapshots is not None:
            self._snapshots.abandon(sequence)
        elif (kept := self.reuse.end(sequence)) is not None and self.reuse.sessions is not None:
            self._keep_session(sequence.request.session, kept, now)

    def give_way(self, sequence: Sequence) -> None:
        """A sequence goes back to the queue: its pages may be found again, but its session's turn is not over.

        Nothing of it goes to the disk: that would hold the pages that somebody waits for.
        """
        if sequence.is_restoring and self._snapshots is not None:
            self._snapshots.abandon(sequence)
        else:
            self.reuse.end(sequence)

    def keep_house(self, now: float) -> None:
        """Takes over what the disk has done, and lets go of sessions that nobody came back to."""
        sessions = self.reuse.sessions
        if self._snapshots is not None:
            self._snapshots.finish()
        if sessions is not None:
            for key in sessions.expire(now):
                self._end_session(key)
            if self._snapshots is not None:
                self._snapshots.forget_idle(sessions.keys, now)

    def forget(self) -> None:
        """The weights are not what they were: nothing that was computed with them is taken over any more."""
        if self.reuse.cache is not None:
            self.reuse.cache.clear()

    def close(self) -> bool:
        """Ends the disk's work; False when it hangs and its thread is left behind, which touches no page any more."""
        return self._snapshots is None or self._snapshots.close()

    def _keep_session(self, key: str, kept: Kept, now: float) -> None:
        assert self.reuse.sessions is not None
        gone = self.reuse.sessions.keep(key, kept.leaf, now)
        if self._snapshots is not None and key not in gone:
            self._snapshots.keep_session(key, kept.ids, kept.chain)
        for each in gone:
            self._end_session(each)

    def _end_session(self, key: str) -> None:
        if self._snapshots is not None:
            self._snapshots.end_session(key)
