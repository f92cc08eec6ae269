from __future__ import annotations

from pathlib import Path

from tests.benchmarks.peers.sipllm_table import PUBLISHED, Counted, count_bytes, row
from tests.builders import build_gguf

BLOCK_BYTES = 2 * 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
HEAD_BYTES = 4 * 320 * 64
ROW_BYTES = 4 * 64


def test_a_prompt_in_one_pass_streams_the_model_once_a_generated_token(tmp_path: Path) -> None:
    model = build_gguf(tmp_path / "tiny.gguf")
    assert count_bytes(model, 9) == Counted(4, 4 * (BLOCK_BYTES + HEAD_BYTES) + 12 * ROW_BYTES)


def test_a_prompt_token_by_token_streams_the_blocks_once_a_token_and_the_head_for_the_last(tmp_path: Path) -> None:
    model = build_gguf(tmp_path / "tiny.gguf")
    assert count_bytes(model, 9, rows_per_pass=1) == Counted(12, 12 * BLOCK_BYTES + 4 * HEAD_BYTES + 12 * ROW_BYTES)


def test_the_published_figures_stand_beside_ours() -> None:
    line = row(PUBLISHED[0], Counted(125, 9_000_000_000), Counted(4, 450_000_000))
    assert line == "| smollm2 | 122 | 14,456 | 790 | 18.3 | 9,000 | 450 | 20.0 | 125, 4 |"
    assert row(PUBLISHED[1], Counted(1, 2), Counted(1, 1)).startswith("| tinyllama-q4_0 | 50 | 31,128 | 2,882 | 10.8 |")
