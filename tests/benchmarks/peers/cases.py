"""The cases: which model, under which limit, and the ratio of sipd to its peer that each metric is to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `targets` maps a metric ("decode", "prefill_128", "first_token") to the ratio wanted.

    `limit` is a fraction of the file, or bytes when above 1; None runs unlimited and warm. `read_bytes_per_s` throttles
    reads; `read_ahead_kib` puts the model on a disk of that read-ahead.
    """

    name: str
    model: str
    targets: dict[str, float]
    limit: float | None = None
    read_bytes_per_s: int | None = None
    read_ahead_kib: int | None = None
    prompt_lengths: tuple[int, ...] = (16,)
    tokens: int = 16

    @property
    def is_limited(self) -> bool:
        """Whether the case runs cold in a memory cgroup."""
        return self.limit is not None

    @property
    def peer_repacks(self) -> bool:
        """Whether the peer makes its faster second copy of Q4_0 weights; under a limit that would be its end."""
        return not self.is_limited

    def limit_bytes(self, file_bytes: int) -> int | None:
        """The limit in whole pages."""
        if self.limit is None:
            return None
        return int(self.limit * file_bytes if self.limit < 1 else self.limit) // 4096 * 4096


def _resident(name: str, model: str, decode: float, **prefill: float) -> Case:
    lengths = tuple(int(key.removeprefix("prefill_")) for key in prefill)
    return Case(name, model, {"decode": decode} | prefill, prompt_lengths=lengths, tokens=64)


def _limited(name: str, ratios: dict[float, float], **options: int) -> list[Case]:
    return [
        Case(f"{name}-{limit:g}", "tinyllama-q4_0", {"decode": ratio}, limit=limit, **options)  # type: ignore[arg-type]
        for limit, ratio in ratios.items()
    ]


def _first_token(name: str, ratio: float, read_bytes_per_s: int | None = None) -> list[Case]:
    return [
        Case(
            f"{name}-{limit:g}",
            "tinyllama-q4_0",
            {"first_token": ratio},
            limit=limit,
            read_bytes_per_s=read_bytes_per_s,
            prompt_lengths=(128,),
            tokens=2,
        )
        for limit in (0.5, 0.25)
    ]


CASES: tuple[Case, ...] = (
    _resident("smollm2-resident", "smollm2", 0.9, prefill_128=1.2, prefill_512=1.2),
    _resident("tinyllama-q4_0-resident", "tinyllama-q4_0", 0.9, prefill_128=1.0),
    _resident("tinyllama-q8_0-resident", "tinyllama-q8_0", 0.95, prefill_128=1.5),
    _resident("tinyllama-q4_k_m-resident", "tinyllama-q4_k_m", 0.9, prefill_128=0.9),
    *_limited("limited", {0.9: 4.0, 0.75: 2.5, 0.5: 1.3, 0.25: 1.2}),
    *_limited("board", {0.9: 10.0, 0.75: 5.0, 0.5: 3.5, 0.25: 2.5}, read_ahead_kib=128),
    *_limited("throttled", {0.9: 3.5, 0.5: 1.25}, read_bytes_per_s=90_000_000),
    Case("smollm2-96m", "smollm2", {"decode": 2.5}, limit=96 * 1024**2),
    *_first_token("first-token", 1.3),
    *_first_token("first-token-45mb", 1.8, read_bytes_per_s=45_000_000),
)
CASES_BY_NAME = {case.name: case for case in CASES}
