"""Twenty prompts of different kinds and lengths, and long ones by number of tokens, for SmolLM2."""

from __future__ import annotations

from pathlib import Path

from sipd.text.tokenizer import Tokenizer
from sipd.weights.checkpoint import open_checkpoint

PROSE = Path(__file__).resolve().parent.parent / "reference" / "prose.txt"

QUESTIONS = (
    "Count from one to ten.",
    "What is the capital of Portugal, and which river flows through it?",
    "Write a haiku about rain on a tin roof.",
    "Explain to a child why the sky is blue.",
    "Translate into French: The library closes at six.",
    "List three uses of baking soda.",
    "My name is Petra. What is my name?",
    "Write a Python function that reverses a string.",
    "Is 91 a prime number? Explain.",
    "Give me a recipe for pancakes.",
)
CONTINUATIONS = (
    "Once upon a time",
    "The",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    '{"name": "sensor", "unit": "',
    "Der Zug nach München fährt um",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, count(*) FROM readings WHERE",
    "In 1969, two astronauts",
    "\u4f60\u597d\uff0c\u4e16\u754c \U0001f600 and",
)


class Prompts:
    """Token ids of texts for one model."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_gguf(open_checkpoint(model).metadata)
        self._prose = self._encode(PROSE.read_text(encoding="utf-8"))

    def varied(self) -> list[tuple[int, ...]]:
        """Returns the ids of all twenty prompts."""
        chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS]
        return [self._encode(text) for pair in zip(chats, CONTINUATIONS, strict=True) for text in pair]

    def long(self, n_tokens: int) -> tuple[int, ...]:
        """Returns exactly so many ids of prose, repeated where it ends."""
        times = -(-n_tokens // len(self._prose))
        return (self._prose * times)[:n_tokens]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special=True, parse_special=True))
