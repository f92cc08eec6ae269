"""What is asked where guesses are measured: texts to copy with a change, and texts to make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LETTER = (
    "Dear Ms. Harper,\n\nThank you for your order of the garden bench on Monday. The bench is made of oak from the "
    "northern valley and was oiled twice in our workshop. Our driver, Mr. Collins, will bring it to your house at "
    "14 Mill Lane on Thursday between nine and eleven in the morning. Please make sure that the gate is open, since "
    "the bench weighs forty kilograms and cannot be lifted over the fence. The invoice over 380 pounds is in the "
    "envelope that is taped to the backrest. If the wood shows small cracks in the first summer, do not worry: oak "
    "moves a little while it dries, and the cracks close again in autumn. Wipe the seat with a damp cloth once a "
    "month and oil it every spring.\n\nKind regards,\nThe Willow Workshop"
)
_CODE = (
    "class Account:\n"
    "    def __init__(self, owner, balance=0):\n"
    "        self.owner = owner\n"
    "        self.balance = balance\n"
    "        self.history = []\n\n"
    "    def deposit(self, amount):\n"
    "        if amount <= 0:\n"
    '            raise ValueError("the amount must be positive")\n'
    "        self.balance += amount\n"
    '        self.history.append(("deposit", amount))\n\n'
    "    def withdraw(self, amount):\n"
    "        if amount > self.balance:\n"
    '            raise ValueError("the balance is too low")\n'
    "        self.balance -= amount\n"
    '        self.history.append(("withdraw", amount))\n'
)


@dataclass(frozen=True, slots=True)
class Task:
    """One request of a user. `kind` groups tasks in the tables."""

    name: str
    kind: str
    request: str


COPYING: Sequence[Task] = (
    Task(
        "letter",
        "copying",
        f"Rewrite this text with one change: the day is Friday instead of Thursday. Give the whole text.\n\n{_LETTER}",
    ),
    Task(
        "rename in code", "copying badly", f"Rename `amount` to `value` in this code and give all of it.\n\n{_CODE}"
    ),  # SmolLM2 copies, but changes what it was not asked to
)
PROSE: Sequence[Task] = (
    Task("lighthouse", "prose", "Tell a story of a lighthouse keeper who finds a letter in a bottle."),
    Task("market", "prose", "Describe a busy fish market early in the morning, with its smells and sounds."),
    Task("why rain", "prose", "Explain to a child in plain words where rain comes from."),
)
CODE: Sequence[Task] = (
    Task(
        "tree",
        "code",
        "Write a Python class for a binary search tree with insert, search, delete and in-order traversal.",
    ),
)
