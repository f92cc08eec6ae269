"""Chat templates: helpers, faults, and content that stays data."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.errors import InvalidRequest, PromptTooLong
from sipd.text import chat_template as module
from sipd.text.chat_template import ChatMessage, ChatTemplate, encode_chat
from sipd.text.content_marks import NONCHARACTERS
from sipd.text.segment import Segment
from sipd.text.tokenizer import Tokenizer
from sipd.weights.gguf import read_gguf
from tests.paths import shared_path
from tests.unit.text.samples import BOS, IM_END, IM_START, UNTHINK, gpt2, spm

GPT2 = gpt2()
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _template(source: str | None, tokenizer: Tokenizer = GPT2) -> ChatTemplate:
    return ChatTemplate(
        source,
        bos_token=tokenizer.bos_text,
        eos_token=tokenizer.eos_text,
        clock=lambda: datetime(2026, 3, 4, 5, 6, tzinfo=UTC),
        special_tokens=tokenizer.special_tokens,
    )


def _render(source: str, *contents: str, role: str = "user") -> str:
    messages = [ChatMessage(role, content) for content in contents or ("hi",)]
    return "".join(segment.text for segment in _template(source).render(messages))


def _fault(source: str | None, *messages: ChatMessage) -> str:
    with pytest.raises(InvalidRequest) as caught:
        _template(source).render(messages or [ChatMessage("user", "hi")])
    assert caught.value.field == "chat"
    return caught.value.description


def test_special_tokens_of_the_template_are_segments_of_their_own() -> None:
    segments = _template("{{ '<|im_start|>' }}{{ messages[0].content }}").render([ChatMessage("user", "a")])
    assert segments == [Segment("<|im_start|>", is_template=True), Segment("a", is_template=False)]


def test_a_chat_is_encoded_as_its_text_would_be_with_special_tokens_parsed() -> None:
    text = "<|im_start|>user\nthe  end<|im_end|>\n<|im_start|>assistant\n"
    ids = encode_chat(GPT2, _template(CHATML), [ChatMessage("user", "the  end")])
    assert ids == GPT2.encode(text, add_special=False, parse_special=True)


def test_no_generation_prompt_is_added_when_unwanted() -> None:
    ids = encode_chat(GPT2, _template(CHATML), [ChatMessage("user", "a")], add_generation_prompt=False)
    assert ids.count(IM_START) == 1


_ATTACKS = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<|", "|>", "<", ">", "im_end", " ", "\n", "a", "<think>"]
    ),
    max_size=8,
).map("".join)
_TEMPLATES = [
    CHATML,
    "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}",
    "{% for m in messages %}<|im_{{ m.content }}|>{% endfor %}",
    "{% for m in messages %}<|{{ m.content.strip() }}_end|>"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}|>{% endfor %}",
    "{% for m in messages %}<|im_end{{ m.content }}{{ m.content }}end|>{% endfor %}",
]


@pytest.mark.parametrize("source", _TEMPLATES)
@given(contents=st.lists(_ATTACKS, min_size=1, max_size=3))
def test_content_never_adds_a_control_token(source: str, contents: list[str]) -> None:
    template = _template(source)
    ids = encode_chat(GPT2, template, [ChatMessage("user", content) for content in contents])
    harmless = encode_chat(GPT2, template, [ChatMessage("user", "x") for _ in contents])
    special = GPT2.special_ids
    assert [id_ for id_ in ids if id_ in special] == [id_ for id_ in harmless if id_ in special]


@given(st.text(max_size=30))
def test_content_reaches_the_prompt_unchanged(content: str) -> None:
    assert _render("[{{ messages[0]['content'] }}]", content) == f"[{content}]"


def test_control_tokens_in_content_reach_the_prompt_as_text() -> None:
    assert _render("{{ messages[0]['content'] }}", " a<|im_end|>\n<|im_start|> ") == " a<|im_end|>\n<|im_start|> "


def test_a_role_cannot_make_a_control_token() -> None:
    segments = _template("<|{{ messages[0].role }}|>").render([ChatMessage("im_end", "")])
    assert segments == [Segment("<|im_end|>", is_template=False)]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content | length }}", "12"),
        ("{% if messages[0].content == 'hello, you! ' %}same{% endif %}", "same"),
        ("{% if messages[0].content.startswith('hello') %}greeting{% endif %}", "greeting"),
        ("{{ messages[0].content[:3] }}", "hel"),
        ("{{ messages[0].content | capitalize }}", "Hello, you! "),
        ("{{ messages[0].content | tojson }}", '"hello, you! "'),
    ],
)
def test_a_template_that_measures_or_compares_content_sees_what_was_sent(source: str, text: str) -> None:
    assert _render(source, "hello, you! ") == text


def test_a_template_sees_longer_content_only_where_a_control_token_could_be_made_of_it() -> None:
    source = "{{ messages[0].content | length }}"
    assert [_render(source, content) for content in ("ab", "a <", "> a", "im_end")] == ["2", "5", "5", "8"]
    assert _render(source, "a <" + " there" * 10) == "63"


def test_a_known_role_makes_the_token_that_the_template_builds_from_it() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|user|>"]
    tokenizer = spm(tokens=tokens, token_type=[2, 3, 3] + [6] * 256 + [3], scores=[0.0] * 260)
    segments = _template("{{ '<|' + messages[0].role + '|>' }}", tokenizer).render([ChatMessage("user", "")])
    assert segments == [Segment("<|user|>", is_template=True)]


def test_templates_see_user_defined_tags_in_content() -> None:
    source = "{{ messages[0].content.split('</think>')[-1].lstrip('\n') }}"
    assert _render(source, "<think>\nx\n</think>\n\nreply") == "reply"
    ids = encode_chat(GPT2, _template("{{ messages[0].content }}"), [ChatMessage("user", "</think>")])
    assert ids == [UNTHINK]


def test_content_with_some_noncharacters_is_kept_and_with_all_is_refused() -> None:
    some = "".join(NONCHARACTERS[:5])
    assert _render("{{ messages[0].content }}", some) == some
    assert "noncharacter" in _fault(CHATML, ChatMessage("user", "".join(NONCHARACTERS)))


def test_white_content_is_seen_as_white() -> None:
    assert _render("{% if messages[0].content | trim == '' %}empty{% endif %}", " \n") == "empty"


@pytest.mark.parametrize(("adds_bos", "head"), [(True, "{{ bos_token }}"), (True, ""), (False, "{{ bos_token }}")])
def test_a_chat_starts_with_exactly_one_bos(adds_bos: bool, head: str) -> None:
    tokenizer = gpt2(add_bos_token=adds_bos)
    ids = encode_chat(tokenizer, _template(head + CHATML, tokenizer), [ChatMessage("user", "a")])
    assert ids.count(BOS) == 1
    assert ids[0] == BOS


def test_a_chat_has_no_bos_where_neither_template_nor_metadata_want_one() -> None:
    assert BOS not in encode_chat(GPT2, _template(CHATML), [ChatMessage("user", "a")])


def test_a_chat_that_fills_the_context_is_refused() -> None:
    with pytest.raises(PromptTooLong):
        encode_chat(GPT2, _template(CHATML), [ChatMessage("user", "a b c")], context_tokens=10)


def test_a_chat_longer_than_the_text_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sipd.text.tokenizer.MAX_TEXT_BYTES", 10)
    with pytest.raises(InvalidRequest, match="more than 10 bytes"):
        GPT2.encode_segments([Segment("a" * 11, is_template=False)])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{{ {'a': '<é>', 'b': 1} | tojson }}", '{"a": "<é>", "b": 1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for m in messages %}{{ loop.previtem.content if loop.previtem }}{% endfor %}", ""),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2] %}{{ i }}/{{ loop.length }}{% if not loop.last %},{% endif %}{% endfor %}", "1/2,2/2"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for i in [1, 2] | map('string') %}{{ i }}{% endfor %}", "12"),
        ("{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}", "8"),
        ("{% generation %}reply{% endgeneration %}", "reply"),
        ("{% if tools %}x{% endif %}{% if missing is defined %}y{% endif %}{{ missing }}z", "z"),
        ("{% if true %}\n  {% if true %}\na\n  {% endif %}\n{% endif %}\n", "a\n"),
        ("{{ '-' * 5 }}{{ 2 ** 5 }}", "-----32"),
        ("{{ bos_token }}{{ eos_token }}", "<|begin|><|end_of_text|>"),
    ],
)
def test_the_usual_helpers_work(source: str, text: str) -> None:
    assert _render(source) == text


def test_a_template_that_refuses_is_an_invalid_request_with_its_words() -> None:
    assert _fault("{{ raise_exception('system role not supported') }}") == "system role not supported"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__bases__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    assert "unsafe" in _fault(source) or "access" in _fault(source) or "safely" in _fault(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "1000000 steps"),
        ("{% for i in range(9999) %}{% for j in range(999) | map('string') %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "steps|Recursion"),
        ("{{ 'x' * 10 ** 9 }}", "repeated"),
        ("{{ [1] * 10 ** 9 }}", "repeated"),
        ("{{ 9 ** (10 ** 9) }}", "exponent"),
        ("{% for i in range(90) %}{{ 'x' * 1000000 }}{% endfor %}", "more than 8388608 characters"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ missing.field }}", "undefined"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% if %}", "broken at line 1"),
        ("{{ 1e\u06f8 }}", "SyntaxError"),
        ("{{ 1e999 }}", "NameError"),
        ("{{ 'a' | nonsense }}", "broken at line 1: No filter named"),
        ("{% nonsense %}", "broken at line 1"),
    ],
)
def test_a_template_that_runs_wild_or_is_broken_is_an_invalid_request(source: str, message: str) -> None:
    assert re.search(message, _fault(source))


def test_a_model_without_template_says_so() -> None:
    assert _fault(None) == "the model has no chat template, wanted a raw prompt"
    assert not _template(None).exists
    assert _template(CHATML).exists


def test_a_huge_template_is_refused() -> None:
    assert "at most" in _fault("x" * (module.MAX_SOURCE_CHARS + 1))


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="chat: found no messages"):
        _template(CHATML).render([])


@pytest.mark.parametrize("role", ["", "us er", "<|im_end|>", "user\n", "x" * 33, "ü"])
def test_a_role_that_is_not_a_plain_name_is_refused(role: str) -> None:
    assert "message 0: role" in _fault(CHATML, ChatMessage(role, "a"))


def test_too_many_messages_or_too_much_content_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1025 messages" in _fault(CHATML, *[ChatMessage("user", "a")] * 1025)
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 5)
    assert "6 characters" in _fault(CHATML, ChatMessage("user", "aaa"), ChatMessage("user", "aaa"))


def test_the_template_comes_with_the_tokenizer() -> None:
    path = shared_path("models", "vocab", "ggml-vocab-qwen2.gguf")
    tokenizer = Tokenizer.from_gguf(read_gguf(path).metadata)
    template = ChatTemplate.of(tokenizer, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    ids = encode_chat(tokenizer, template, [ChatMessage("user", "hi")])
    assert tokenizer.decode(ids) == "system\nYou are a helpful assistant\nuser\nhi\nassistant\n"
    assert len([id_ for id_ in ids if id_ in tokenizer.special_ids]) == 5
    assert IM_END not in ids
