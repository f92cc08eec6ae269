"""The ledger: limits in, grants out. The one place where memory is promised to anyone.

Invariant: base + margin + all live grants never exceed the limit, and what does not fit is refused before
anything is allocated. Swap is no part of any sum; page cache is the kernel's to reclaim and is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sipd.cgroup import MemoryCgroup, find_memory_cgroup
from sipd.errors import BudgetError
from sipd.process_memory import AnonymousPeak, read_anonymous_bytes, read_process_memory
from sipd.size import format_size, setting_size

_MIB = 1024**2
_FILES_TERM = "program files"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The ceiling on this process's anonymous memory, and who set it."""

    n_bytes: int
    source: str  # "budget", "cgroup v2", "cgroup v1" or "MemAvailable"
    cgroup_bytes: int | None = None  # the cgroup's limit, which file pages count against as well


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What the ledger has promised against the limit of now, which may have changed since."""

    limit_bytes: int
    needed_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes by which the promises exceed the limit; 0 when they fit."""
        return max(0, self.needed_bytes - self.limit_bytes)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The limit moved under the running process."""

    before: MemoryLimit
    now: MemoryLimit


class LimitWatch:
    """Notices that the cgroup's limit moved, as by MemoryMax= of the unit. Owned by one thread."""

    def __init__(self, budget_bytes: int | None, start: MemoryLimit, cgroup: MemoryCgroup | None) -> None:
        self._budget_bytes = budget_bytes
        self._start = start
        self._cgroup = cgroup
        self._seen = start.cgroup_bytes
        self.limit = start
        self.n_changes = 0

    def look(self) -> LimitChange | None:
        """Returns the change since the last look, if any; a few small reads. The budget stays the ceiling."""
        if self._cgroup is None or (found := self._cgroup.limit_bytes()) == self._seen:
            return None
        self._seen = found
        before, self.limit = self.limit, self._limit(found)
        if self.limit == before:
            return None
        self.n_changes += self.limit.n_bytes != before.n_bytes
        return LimitChange(before, self.limit)

    def _limit(self, cgroup_bytes: int | None) -> MemoryLimit:
        budget = self._budget_bytes
        if cgroup_bytes is not None and (budget is None or cgroup_bytes < budget):
            assert self._cgroup is not None
            return MemoryLimit(cgroup_bytes, f"cgroup v{self._cgroup.version}", cgroup_bytes)
        if budget is not None:
            return MemoryLimit(budget, "budget", cgroup_bytes)
        # the limit was taken away: what was safe at the start still is
        return MemoryLimit(self._start.n_bytes, self._start.source)


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the ledger's table."""

    name: str
    n_bytes: int


def read_limit(budget_bytes: int | None, proc: Path = Path("/proc")) -> MemoryLimit:
    """Returns the lower of the configured budget and the cgroup's limit, or MemAvailable when there is neither.

    MemAvailable never lowers a configured budget: it changes by the second. Raises BudgetError when nothing is known.
    """
    cgroup = find_memory_cgroup(proc)
    cgroup_bytes = None if cgroup is None else cgroup.limit_bytes()
    if budget_bytes is not None and (cgroup_bytes is None or budget_bytes <= cgroup_bytes):
        return MemoryLimit(budget_bytes, "budget", cgroup_bytes)
    if cgroup is not None and cgroup_bytes is not None:
        return MemoryLimit(cgroup_bytes, f"cgroup v{cgroup.version}", cgroup_bytes)
    available_bytes = _read_available_bytes(proc)
    if available_bytes is None:
        raise BudgetError(
            "no memory limit found: no cgroup limit and no readable /proc/meminfo", "wanted --budget SIZE"
        )
    return MemoryLimit(available_bytes, "MemAvailable")


def default_margin_bytes(limit_bytes: int) -> int:
    """Returns what is left alone for stacks, allocator slack and messages in flight: 4 MiB and 1/64 of the limit."""
    return 4 * _MIB + limit_bytes // 64


def open_ledger(budget_bytes: int | None, proc: Path = Path("/proc")) -> Ledger:
    """Returns a ledger over the real limit, with the anonymous memory of this process now as its base.

    A cgroup charges the pages of the program's own files too. Where they have no room beside the budget they are
    granted: a process that loses its code pages crawls long before the kernel kills it.
    """
    limit = read_limit(budget_bytes, proc)
    base, file_bytes = read_anonymous_bytes(), read_process_memory().rss_file
    ledger = Ledger(limit.n_bytes, base, default_margin_bytes(limit.n_bytes), limit.source)
    ledger.watch = LimitWatch(budget_bytes, limit, find_memory_cgroup(proc))
    ledger.file_bytes = file_bytes
    if (lacking := _files_without_room(file_bytes, limit)) > 0:
        ledger.grant(_FILES_TERM, lacking)
    return ledger


def _files_without_room(file_bytes: int, limit: MemoryLimit) -> int:
    """Returns the bytes of program files that the cgroup's limit does not hold beside this one."""
    return 0 if limit.cgroup_bytes is None else max(0, file_bytes - (limit.cgroup_bytes - limit.n_bytes))


class Grant:
    """A part of the budget, held until `release`. Made by `Ledger.grant` only."""

    def __init__(self, ledger: Ledger, name: str, n_bytes: int) -> None:
        self._ledger = ledger
        self.name = name
        self.n_bytes = n_bytes

    def resize(self, n_bytes: int) -> None:
        """Grows or shrinks the grant; raises BudgetError, leaving it as it was, when the growth does not fit."""
        self._ledger.resize(self, n_bytes)

    def release(self) -> None:
        """Gives the bytes back; a second call does nothing."""
        self._ledger.release(self)


class Ledger:
    """Grants parts of one budget. Thread safe; never blocks for longer than a table walk."""

    def __init__(self, limit_bytes: int, base_bytes: int, margin_bytes: int, source: str = "budget") -> None:
        self.limit_bytes = limit_bytes
        self.base_bytes = base_bytes
        self.margin_bytes = margin_bytes
        self.source = source
        self.watch: LimitWatch | None = None  # set where the limit is this machine's and may change
        self.file_bytes = 0  # resident pages of the program's own files when the ledger was opened
        self._lock = threading.Lock()
        self._grants: list[Grant] = []
        self._peak = AnonymousPeak()

    def grant(self, name: str, n_bytes: int, remedy: Callable[[int], str] | None = None) -> Grant:
        """Returns a grant of `n_bytes`; raises BudgetError when it does not fit.

        `remedy` gets the bytes that remain, and says which setting would fit them (`--context 2048`).
        """
        return self.grant_all([Term(name, n_bytes)], remedy)[0]

    def grant_all(self, wanted: Sequence[Term], remedy: Callable[[int], str] | None = None) -> list[Grant]:
        """Returns a grant for each term, or none of them: BudgetError then names a budget that fits all of them."""
        grants = [Grant(self, term.name, term.n_bytes) for term in wanted]
        with self._lock:
            self._check(wanted, sum(term.n_bytes for term in wanted), remedy)
            self._grants += grants
        self._peak.sample()
        return grants

    def resize(self, grant: Grant, n_bytes: int) -> None:
        """Changes a live grant to `n_bytes`; raises BudgetError when the growth does not fit."""
        with self._lock:
            self._check([Term(grant.name, n_bytes)], n_bytes - grant.n_bytes, None, grant)
            grant.n_bytes = n_bytes
        self._peak.sample()

    def release(self, grant: Grant) -> None:
        """Takes a grant back; unknown or already released ones are ignored."""
        with self._lock:
            if grant in self._grants:
                self._grants.remove(grant)

    def relimit(self, limit: MemoryLimit) -> Shortfall:
        """Takes over a limit that changed; returns whether what was granted still fits. No grant is taken back.

        While there is a shortfall nothing more is granted; `Grant.resize` and `release` make it smaller.
        """
        with self._lock:
            if self.margin_bytes == default_margin_bytes(self.limit_bytes):
                self.margin_bytes = default_margin_bytes(limit.n_bytes)
            self.limit_bytes, self.source = limit.n_bytes, limit.source
            self._grants = [grant for grant in self._grants if grant.name != _FILES_TERM]
            if (lacking := _files_without_room(self.file_bytes, limit)) > 0:
                self._grants.append(Grant(self, _FILES_TERM, lacking))
            return self._shortfall()

    def shortfall(self) -> Shortfall:
        """Returns what is promised against the limit."""
        with self._lock:
            return self._shortfall()

    def remaining(self) -> int:
        """Returns the bytes that can still be granted (0 when base and margin alone exceed the limit)."""
        with self._lock:
            return max(0, self._remaining())

    def granted(self) -> int:
        """Returns the sum of all live grants in bytes."""
        with self._lock:
            return sum(grant.n_bytes for grant in self._grants)

    def terms(self) -> list[Term]:
        """Returns base, margin and one line per name granted (summed)."""
        with self._lock:
            return self._terms()

    def table(self) -> list[Term]:
        """Returns every term and what is free, for printing; the sum is the limit."""
        with self._lock:
            return [*self._terms(), Term("free", self._remaining())]

    def sample_peak(self) -> int:
        """Returns the highest anonymous memory seen at any grant or call of this, in bytes."""
        return self._peak.sample()

    def _shortfall(self) -> Shortfall:
        return Shortfall(self.limit_bytes, self.limit_bytes - self._remaining())

    def _remaining(self) -> int:
        granted = sum(grant.n_bytes for grant in self._grants)
        return self.limit_bytes - self.base_bytes - self.margin_bytes - granted

    def _terms(self, without: Grant | None = None) -> list[Term]:
        sums: dict[str, int] = {}
        for grant in self._grants:
            if grant is not without:
                sums[grant.name] = sums.get(grant.name, 0) + grant.n_bytes
        fixed = [Term("process base", self.base_bytes), Term("margin", self.margin_bytes)]
        return fixed + [Term(name, n_bytes) for name, n_bytes in sums.items()]

    def _check(
        self,
        wanted: Sequence[Term],
        growth: int,
        remedy: Callable[[int], str] | None,
        resized: Grant | None = None,
    ) -> None:
        """Raises BudgetError unless `growth` more bytes fit; the message lists every term, the largest first."""
        assert all(term.n_bytes >= 0 for term in wanted), wanted
        remaining = self._remaining()
        if growth <= max(0, remaining):
            return
        terms = sorted([*self._terms(resized), *wanted], key=lambda term: -term.n_bytes)
        listing = ", ".join(f"{term.name} {format_size(term.n_bytes)}" for term in terms)
        largest = max(wanted, key=lambda term: term.n_bytes)
        advice = f"wanted --budget {setting_size(self._limit_for(sum(term.n_bytes for term in terms)))} or more"
        if remedy is not None:
            advice += f", or {remedy(max(0, remaining))}"
        raise BudgetError(
            f"budget of {format_size(self.limit_bytes)} ({self.source}) cannot hold {largest.name} of "
            f"{format_size(largest.n_bytes)}: largest term is {terms[0].name}; terms: {listing}",
            advice,
        )

    def _limit_for(self, n_bytes: int) -> int:
        """The limit that holds terms of `n_bytes`, of which the margin grows with the limit."""
        if self.margin_bytes != default_margin_bytes(self.limit_bytes):
            return n_bytes
        others = n_bytes - self.margin_bytes
        return -(-(others + default_margin_bytes(0)) * 64 // 63)


def _read_available_bytes(proc: Path) -> int | None:
    """Returns MemAvailable, or None where it cannot be read (ProcSubset=pid hides it); swap never enters."""
    try:
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
