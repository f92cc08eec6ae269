from __future__ import annotations

import hashlib

import pytest

from sipd.server.tokens import new_token, parse_token_lines, token_line

SECRET = "a-token-of-24-characters"


def test_a_new_token_is_let_in_by_its_line_which_does_not_hold_it() -> None:
    token = new_token()
    line = token_line("kitchen", token)
    assert token not in line
    (parsed,) = parse_token_lines(line)
    assert (parsed.name, parsed.digest, parsed.is_plain) == ("kitchen", hashlib.sha256(token.encode()).digest(), False)


def test_new_tokens_differ_and_hold_256_bits() -> None:
    tokens = {new_token() for _ in range(50)}
    assert len(tokens) == 50
    assert {len(token) for token in tokens} == {43}


def test_plain_and_hashed_lines_stand_side_by_side() -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    text = f"# tokens\n\nold:{SECRET}\n{SECRET}\nnew:sha256:{digest}\nsha256:{digest.upper()}\n"
    tokens = parse_token_lines(text)
    assert [(each.name, each.is_plain) for each in tokens] == [
        ("old", True),
        ("line 4", True),
        ("new", False),
        ("line 6", False),
    ]
    assert len({each.digest for each in tokens}) == 1


def test_a_name_may_have_two_tokens_while_it_is_rotated() -> None:
    text = f"{token_line('kitchen', SECRET)}\n{token_line('kitchen', SECRET[::-1])}\n"
    assert [each.name for each in parse_token_lines(text)] == ["kitchen", "kitchen"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("kitchen:sha256:abcd", "line 1: the digest has 4 characters, wanted 64"),
        (f"kitchen:sha256:{'g' * 64}", "line 1: the digest has 64 characters, wanted 64 hexadecimal"),
        ("kitchen:short", "line 1: token has 5 characters, wanted 16"),
        (f"a\x1bb:{SECRET}", "line 1: name '3 characters'"),
        (f"{'n' * 49}:{SECRET}", "line 1: name '49 characters'"),
        (f"a:b:{SECRET}", "line 1: name 'a:b'"),
        ("# nothing", "holds no token"),
    ],
)
def test_a_line_that_lets_nobody_in_is_refused_by_its_number(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_token_lines(line)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "#a", "n" * 49])
def test_a_name_that_a_line_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="wanted 1 to 48"):
        token_line(name, SECRET)
