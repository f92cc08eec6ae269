"""Chat templates from a model file: what they make is bounded before it is made."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime

import pytest

from sipd.errors import InvalidRequest
from sipd.text.chat_template import ChatMessage, ChatTemplate
from sipd.text.special_tokens import SpecialTokens

MAX_PEAK_BYTES = 72 << 20
_DOUBLED = "{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = BODY %}{% endfor %}"
_NESTED = "{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
_BLOCKS = "{% set x = '0123456789' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40


def _render(source: str, content: str = "hi") -> str:
    template = ChatTemplate(
        source,
        bos_token="",
        eos_token="",
        clock=lambda: datetime(2026, 3, 4, tzinfo=UTC),
        special_tokens=SpecialTokens([]),
    )
    return "".join(segment.text for segment in template.render([ChatMessage("user", content)]))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' | center(100000000) }}",
        "{{ 'a' | indent(100000000) }}",
        "{{ 'a\n' * 10000 | int }}{{ ('a\n' * 10000) | indent(10000) }}",
        "{{ ('a\n' * 10000) | indent('x' * 10000) }}",
        "{{ ['a'] | batch(10000000, 'x') | list }}",
        "{{ ['a'] | batch(1000000, 'x') | list }}",
        "{{ ['a'] | slice(10000000) | list }}",
        "{{ ['a'] | batch(linecount=200000) | list }}",
        "{{ 'a' | center(4000000) | length }}" * 100,
        "{{ ['a'] | batch(100000, 'x') | list }}" * 100,
        "{{ messages | tojson(indent=10000000) }}",
        "{{ messages | tojson(indent='x' * 1000000) }}",
        "{{ messages | tojson(separators=('x' * 3000000, 'y' * 3000000)) }}",
        "{{ '%100000000d' | format(1) }}",
        "{{ '%.100000000f' % 1 }}",
        "{{ '%100000000d' % 1 }}",
        "{{ '%*d' % (100000000, 1) }}",
        "{{ ('%s' * 1000) % ((('x' * 10000),) * 1000) }}",
        "{{ ('%(a)s' * 1000) % {'a': 'x' * 10000} }}",
        "{{ 'a b' | wordwrap(1, wrapstring='x' * 1000000) | wordwrap(100000000) }}",
        "{{ ('a' * 10000) | replace('a', 'b' * 10000) }}",
        "{{ ('ab' * 10000) | join('b' * 10000) }}",
        "{{ 1 | round(100000000, 'ceil') }}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        "{{ 'a'.center(100000000) }}",
        "{{ 'a'.ljust(100000000) }}",
        "{{ 'a'.rjust(100000000) }}",
        "{{ 'a'.zfill(100000000) }}",
        "{{ 'a'.encode().ljust(100000000) }}",
        "{{ ('a' | attr('ljust'))(100000000) }}",
        "{{ 'a\tb'.expandtabs(100000000) }}",
        "{{ ('\t' * 10000).expandtabs(tabsize=10000) }}",
        "{{ '{:>100000000}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 100000000) }}",
        "{{ '{a:>100000000}'.format_map({'a': 1}) }}",
        "{{ ('{0}' * 10000).format('x' * 10000) }}",
        "{{ ('<' | escape).format() }}{{ ('{:>100000000}' | safe).format('a') }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
        "{{ ('a' * 10000).replace('', 'b' * 10000) }}",
        "{{ ('b' * 10000).join('a' * 10000) }}",
        "{{ ('a' * 10000).translate({97: 'b' * 10000}) }}",
        "{{ ('a ' * 500000).split() }}",
        "{{ ('a\n' * 500000).splitlines() }}",
        "{{ (1).to_bytes(100000000) }}",
        "{{ lipsum(1000) }}",
        "{{ strftime_now('%1000000000d' * 1000) }}",
        "{{ 2 ** 64 ** 64 ** 64 }}",
        _DOUBLED.replace("BODY", "ns.x + ns.x"),
        _DOUBLED.replace("BODY", "ns.x ~ ns.x"),
        _DOUBLED.replace("BODY", "ns.x * 2"),
        _DOUBLED.replace("BODY", "ns.x.replace('0', ns.x)"),
        _DOUBLED.replace("BODY", "ns.x.join([ns.x, ns.x])"),
        _DOUBLED.replace("BODY", "[ns.x, ns.x] | join"),
        _DOUBLED.replace("BODY", "'%s%s' % (ns.x, ns.x)"),
        _DOUBLED.replace("BODY", "'{}{}'.format(ns.x, ns.x)"),
        _DOUBLED.replace("'0123456789'", "[1]").replace("BODY", "ns.x + ns.x"),
        _DOUBLED.replace("'0123456789'", "9").replace("BODY", "ns.x * ns.x"),
        _NESTED + "{{ ns.x }}",
        _NESTED + "{{ ns }}",
        _NESTED + "{{ ns.x ~ '' }}",
        _NESTED + "{{ ns.x | string }}",
        _NESTED + "{{ ns.x | tojson }}",
        _NESTED + "{{ ns.x | upper }}",
        _NESTED + "{{ '%s' % (ns.x,) }}",
        _NESTED + "{{ '{}'.format(ns.x) }}",
        _NESTED + "{{ '{!r:.5}'.format(ns.x) }}",
        _NESTED + "{{ {'a': ns.x}.items() }}",
        _BLOCKS,
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + _DOUBLED.replace("BODY", "m(ns.x)"),
        "{% set x = 'a' * 1000000 %}{% for i in range(900) %}{% set y = x[1:] %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{{ range(900) | map('center', 1000000) | list | length }}",
    ],
)
def test_a_template_that_would_make_too_much_is_refused_before_it_does(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="chat: "):
            _render(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' | center(5) }}|{{ 'a\nb' | indent(2) }}", "  a  |a\n  b"),
        ("{{ [1, 2, 3] | batch(2, 'x') | list }}", "[[1, 2], [3, 'x']]"),
        ("{{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3]]"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ '%s-%03d' | format('a', 7) }}|{{ '%5.1f%%' % 2.5 }}|{{ '%(a)s' % {'a': 1} }}", "a-007|  2.5%|1"),
        ("{{ 'a b c' | wordwrap(3) }}", "a b\nc"),
        ("{{ 'aXa' | replace('a', 'bb') }}|{{ 'aaa' | replace('a', 'b', 2) }}", "bbXbb|bba"),
        ("{{ [1, 'b'] | join('-') }}|{{ messages | join(', ', attribute='role') }}", "1-b|user"),
        ("{{ 1.25 | round(1) }}|{{ [1, 2] | sum }}|{{ 'a b' | title }}", "1.2|3|A B"),
        ("{{ 'a'.center(3) }}{{ 'a'.ljust(3) }}{{ 'a'.rjust(3) }}{{ '7'.zfill(3) }}", " a a    a007"),
        ("{{ 'a\tb'.expandtabs(4) }}|{{ 'aa'.replace('a', 'b', 1) }}|{{ '-'.join(['a', 'b']) }}", "a   b|ba|a-b"),
        ("{{ '-'.join(messages | map(attribute='role')) }}", "user"),
        ("{{ '{:>3}|{a}|{b[0]!r}'.format('x', a=1, b=['y']) }}|{{ '{a}'.format_map({'a': 2}) }}", "  x|1|'y'|2"),
        ("{{ ('{}' | safe).format('<') }}", "&lt;"),
        ("{{ 'a' ~ 1 ~ [2] ~ none }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|{{ 1 + 2 }}", "a1[2]None|ab|[1, 2]|3"),
        ("{{ 7 % 4 }}|{{ 2 ** 10 }}|{{ 3 * 4 }}|{{ 1.5 * 2 }}", "3|1024|12|3.0"),
        (
            "{{ 'a-b'.split('-') }}|{{ 'a b'.split() }}|{{ 'abc'[1:] }}|{{ messages[0:1] | length }}",
            "['a', 'b']|['a', 'b']|bc|1",
        ),
        (
            "{% set x %}{{ 1 }}{{ 'b' }}{% endset %}{{ x }}{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(2) ~ m(3) }}",
            "1b<2><3>",
        ),
        ("{{ missing }}{{ missing ~ 'a' }}{{ missing | default('d') }}{{ none }}", "adNone"),
    ],
)
def test_what_templates_make_of_usual_sizes_is_what_jinja_makes(source: str, text: str) -> None:
    assert _render(source) == text


def test_the_longest_content_goes_through_what_real_templates_do_to_it() -> None:
    content = "a b\n" * (1 << 18)
    source = "{% set x = messages[0].content.split('</think>')[-1].strip() %}{{ '<' + x ~ '>' }}"
    assert _render(source, content) == f"<{content.strip()}>"


def test_one_rendering_does_not_count_for_the_next() -> None:
    template = ChatTemplate(
        "{% set x = 'a' * 1000000 %}{% for i in range(20) %}{% set y = x[1:] %}{% endfor %}{{ x | length }}",
        bos_token="",
        eos_token="",
        clock=lambda: datetime(2026, 3, 4, tzinfo=UTC),
        special_tokens=SpecialTokens([]),
    )
    for _ in range(8):
        assert template.render([ChatMessage("user", "hi")])[0].text == "1000000"
