"""Runs one job in this process and prints its result as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from sipd.process_memory import keep_heap_small
from tests.benchmarks.sharing import churn, clients, gap, prefix, speculation, storage
from tests.benchmarks.sharing.bench import Bench, running_bench
from tests.benchmarks.sharing.jobs import Job

MEASUREMENTS: dict[str, Callable[[Bench, dict[str, Any]], dict[str, Any]]] = {
    "clients": clients.measure,
    "gap": gap.measure,
    "prefix": prefix.measure,
    "speculation": speculation.measure,
    "requests": churn.measure,
}
_WITH_TEXT = frozenset({"speculation"})


def main() -> None:
    """Does what the only argument says."""
    keep_heap_small()
    job = Job.from_json(sys.argv[1])
    if job.measurement == "storage":
        result = storage.measure(job.model)
    else:
        with running_bench(job, needs_text=job.measurement in _WITH_TEXT) as bench:
            result = MEASUREMENTS[job.measurement](bench, dict(job.given))
            result |= bench.facts()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
