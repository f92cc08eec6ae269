"""Writes the seeds of tests/fuzz/corpus: `python -m tests.fuzz.make_corpus` after a format has changed.

Invariant: the same code gives the same files, small ones; inputs that once broke something are kept beside them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from sipd.v1 import generation_pb2 as pb
from sipd.v1 import model_pb2
from sipd.weights.tensor_table import QuantType
from tests.builders import GgufWriter, build_gguf, build_safetensors, encode_value
from tests.fuzz.bounds import SEPARATOR
from tests.fuzz.targets import CORPUS
from tests.unit.engine.snapshot_pages import files_in, open_store, write
from tests.unit.text.samples import gpt2_metadata, spm_metadata
from tests.vocabularies import CHAT_TEMPLATE

_TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "loop": "{% for m in messages if m.role != 'x' %}{{ loop.index }}{% break %}{% else %}{{ bos_token }}{% endfor %}",
    "helpers": "{{ strftime_now('%d %b %Y') }}{{ messages | tojson(indent=2) }}{{ raise_exception('no') }}",
    "macro": "{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(n=0) %}{% generation %}{{ m(1) }}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endgeneration %}",
    "filters": "{{ messages[0]['content'] | trim | upper | replace('a', 'b') | center(9) | indent(3) | default('x') }}",
    "strings": "{{ '%5d' % 7 }}{{ '{:>9}'.format('a') }}{{ 'a'.ljust(9).split('a')[0] }}{{ 'ab' * 3 }}{{ 2 ** 5 }}",
    "sandbox": "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}{{ range(9) | list | sum }}",
}


def seeds(scratch: Path) -> dict[str, dict[str, bytes]]:
    """Returns the seeds of every Python target by name; `scratch` is a folder to write in."""
    return {
        "gguf": _gguf(scratch),
        "safetensors": _safetensors(scratch),
        "template": {
            name: source.encode() + SEPARATOR + b" <|im_end|> \xef\xb7\x90 " + SEPARATOR + b"<think>a"
            for name, source in _TEMPLATES.items()
        },
        "tokenizer": _tokenizer(),
        "snapshot": _snapshot(scratch),
        "request": _request(),
        "unpack": {f"type{index:02}": bytes([index, index, 3 * index, index]) + _ramp(300) for index in range(11)},
    }


def _gguf(scratch: Path) -> dict[str, bytes]:
    tiny = {"n_layers": 1, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "d_ff": 32, "tied": True}
    values = GgufWriter()
    for index, value in enumerate([1, -1, 1 << 40, 0.5, True, "text", [1, 2], ["a", "b"], [[1, 2], [3]], [True]]):
        values.add(f"key.{index}", value)
    values.add_raw("key.raw", encode_value([0.5, 1.0]))
    values.add_tensor("tensor", (2, 32), QuantType.Q4_0.type_id, bytes(36))
    path = scratch / "seed.gguf"
    return {
        "values": values.to_bytes(),
        "llama": build_gguf(path, vocab_size=4, rope_freqs=True, quant=QuantType.Q8_0, **tiny).read_bytes(),  # type: ignore[arg-type]
        "qwen2": build_gguf(path, vocab_size=4, arch="qwen2", quant=QuantType.F16, **tiny).read_bytes(),  # type: ignore[arg-type]
        "gpt2": build_gguf(path, vocab_size=270, quant=QuantType.Q4_0, with_vocab="gpt2", **tiny).read_bytes(),  # type: ignore[arg-type]
        "spm": build_gguf(path, vocab_size=280, quant=QuantType.Q4_0, with_vocab="spm", **tiny).read_bytes(),  # type: ignore[arg-type]
    }


def _safetensors(scratch: Path) -> dict[str, bytes]:
    found = {}
    for name, arch, dtype in (("llama", "llama", QuantType.F16), ("qwen2", "qwen2", QuantType.BF16)):
        folder = build_safetensors(
            scratch / name, arch=arch, n_layers=1, d_model=8, n_heads=2, n_kv_heads=1, d_ff=8, vocab_size=8,
            dtype=dtype, config={"rope_scaling": {"rope_type": "linear", "factor": 2.0}} if arch == "llama" else None,
        )  # fmt: skip
        config, weights = (folder / "config.json").read_bytes(), (folder / "model.safetensors").read_bytes()
        found[name] = config + SEPARATOR + weights
        header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
        header.pop("__metadata__")
        index = {"weight_map": dict.fromkeys(header, "model-00001-of-00001.safetensors")}
        found[f"{name}_index"] = SEPARATOR.join((config, json.dumps(index).encode(), weights))
    return found


def _tokenizer() -> dict[str, bytes]:
    alphabet = gpt2_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(alphabet, list)
    pieces = {text: index for index, text in enumerate(alphabet[6:])}
    byte_level = {
        "added_tokens": [{"id": 300, "content": "<|im_end|>", "special": True}, {"id": 301, "content": "<think>"}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_end|>"}}]},
        "model": {"type": "BPE", "vocab": pieces, "merges": ["t h", ["th", "e"]], "ignore_merges": True},
    }
    words = {"<unk>": 0, "<s>": 1, "\u2581": 2, "a": 3, "\u2581a": 4}
    spaced = {
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        "model": {"vocab": words, "merges": ["\u2581 a"], "unk_token": "<unk>", "byte_fallback": True},
    }
    config = {
        "bos_token": {"content": "<s>"},
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": ""}],
    }
    generation = {"eos_token_id": [1, 3]}
    objects: dict[str, list[object]] = {
        "gguf_gpt2": [gpt2_metadata()],
        "gguf_spm": [spm_metadata()],
        "byte_level": [byte_level, {"eos_token": "<|im_end|>"}],
        "metaspace": [spaced, config, generation],
    }
    return {name: SEPARATOR.join(json.dumps(each).encode() for each in parts) for name, parts in objects.items()}


def _snapshot(scratch: Path) -> dict[str, bytes]:
    found = {}
    for name, n_ids, first_page in (("whole", 40, 0), ("tail", 100, 3)):
        store = open_store(scratch / name)
        write(store, range(n_ids), first_page)
        (path,) = files_in(scratch / name)
        found[name] = b"\1" + path.read_bytes()
    return found


def _request() -> dict[str, bytes]:
    sampling = pb.Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, logit_bias={5: 1.5}, seed=7, logprobs=2)
    stop = pb.Stop(max_tokens=9, strings=["the", "\n"], token_ids=[3], include_stop_in_output=True)
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="hi <|im_end|>")])
    every = pb.GenerateRequest(
        prompt="the e\u0301", sampling=sampling, stop=stop, request_id="a.b:c-1", priority=pb.PRIORITY_BACKGROUND,
        session="s", prefix_cache=False, speculation=True, parse_special_tokens=True, add_special_tokens=False,
        model="m",
    )  # fmt: skip
    messages = {
        "prompt": (0, every),
        "chat": (0, pb.GenerateRequest(chat=chat)),
        "ids": (0, pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 299, 40]))),
        "tokenize": (1, model_pb2.TokenizeRequest(text="the <|im_end|>", parse_special_tokens=True)),
        "detokenize": (2, model_pb2.DetokenizeRequest(ids=[5, 200, 2])),
        "get_model": (3, model_pb2.GetModelRequest(model="x")),
    }
    return {
        name: bytes([kind]) + message.SerializeToString(deterministic=True)
        for name, (kind, message) in messages.items()
    }


def _ramp(n_bytes: int) -> bytes:
    return bytes(index * 37 % 251 for index in range(n_bytes))


def main() -> None:
    """Writes all seeds; leaves files that are no seeds of this script."""
    with tempfile.TemporaryDirectory() as scratch:
        for target, files in seeds(Path(scratch)).items():
            (CORPUS / target).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (CORPUS / target / name).write_bytes(content)


if __name__ == "__main__":
    main()
