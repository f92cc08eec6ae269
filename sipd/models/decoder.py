"""The pre-norm decoder that the llama and qwen2 families share, as a formula over tensor roles.

x = embedding[token]; then for each block, with n = rms_norm(x) before each line:
x += wo @ attention(rope(wq @ n), rope(wk @ n), wv @ n)
x += w_down @ (silu(w_gate @ n) * (w_up @ n))
logits = head @ rms_norm(x)
"""

from __future__ import annotations

from dataclasses import dataclass

from sipd.errors import UnsupportedModel
from sipd.models.hyperparameters import Hyperparameters
from sipd.models.program import HEAD_LAYER, Attention, Buffer, Norm, Product, Products, Program, Select, Silu, Step
from sipd.models.tensor_roles import TensorRoles


@dataclass(frozen=True, slots=True)
class Names:
    """Tensor names of one file format; `block` takes the layer number, the others are the suffixes below it."""

    embedding: str
    output_norm: str
    head: str
    block: str
    attention_norm: str
    q: str
    k: str
    v: str
    o: str
    ffn_norm: str
    gate: str
    up: str
    down: str


GGUF_NAMES = Names(
    embedding="token_embd",
    output_norm="output_norm",
    head="output",
    block="blk.{}.",
    attention_norm="attn_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    o="attn_output",
    ffn_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
)
HF_NAMES = Names(
    embedding="model.embed_tokens",
    output_norm="model.norm",
    head="lm_head",
    block="model.layers.{}.",
    attention_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    o="self_attn.o_proj",
    ffn_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


def check_dimensions(h: Hyperparameters, where: str) -> None:
    """Raises UnsupportedModel when the numbers do not fit together; nothing was allocated yet."""
    if h.n_heads % h.n_kv_heads:
        raise UnsupportedModel(f"{where}: {h.n_heads} query heads are not a multiple of {h.n_kv_heads} key heads")
    if h.head_dim > 256 or h.head_dim % 2:
        raise UnsupportedModel(f"{where}: head dimension {h.head_dim}, wanted an even number up to 256")
    if h.n_rot > h.head_dim or h.n_rot % 2:
        raise UnsupportedModel(f"{where}: {h.n_rot} rotary dimensions of a head of {h.head_dim}")
    if h.d_model > 1 << 16 or h.d_ff > 1 << 18 or h.n_layers > 1024 or h.q_width > 1 << 16:
        raise UnsupportedModel(
            f"{where}: {h.n_layers} blocks of width {h.d_model}, {h.d_ff} are beyond what sipd accepts"
        )


def build_program(h: Hyperparameters, roles: TensorRoles, names: Names, *, needs_head: bool = False) -> Program:
    """The program of a checkpoint; raises TensorMismatch or UnsupportedModel.

    A head in the file is the head, also where the configuration ties it to the embedding: the two may differ, as
    after training of the head alone. Without one it is the embedding, unless `needs_head`.
    """
    embedding = roles.matrix(f"{names.embedding}.weight", h.vocab_size, h.d_model)
    steps: list[Step] = []
    for layer in range(h.n_layers):
        steps.extend(_block(h, roles, names, layer))
    norm = Norm(roles.vector(f"{names.output_norm}.weight", h.d_model), HEAD_LAYER)
    head_name = f"{names.head}.weight"
    head = embedding
    if needs_head or roles.has(head_name):
        head = roles.matrix(head_name, h.vocab_size, h.d_model)
    bias = roles.optional_vector(f"{names.head}.bias", h.vocab_size)
    steps += [Select(), norm, Products((Product(head, Buffer.LOGITS, bias),), HEAD_LAYER)]
    roles.finish()
    return Program(h, embedding, tuple(steps))


def _block(h: Hyperparameters, roles: TensorRoles, names: Names, layer: int) -> list[Step]:
    prefix = names.block.format(layer)

    def product(name: str, n_out: int, n_in: int, buffer: Buffer, *, adds: bool = False) -> Product:
        weight = roles.matrix(f"{prefix}{name}.weight", n_out, n_in)
        return Product(weight, buffer, roles.optional_vector(f"{prefix}{name}.bias", n_out), adds)

    q = product(names.q, h.q_width, h.d_model, Buffer.Q)
    k = product(names.k, h.kv_width, h.d_model, Buffer.K)
    v = product(names.v, h.kv_width, h.d_model, Buffer.V)
    o = product(names.o, h.d_model, h.q_width, Buffer.X, adds=True)
    gate = product(names.gate, h.d_ff, h.d_model, Buffer.GATE)
    up = product(names.up, h.d_ff, h.d_model, Buffer.UP)
    down = product(names.down, h.d_model, h.d_ff, Buffer.X, adds=True)
    return [
        Norm(roles.vector(f"{prefix}{names.attention_norm}.weight", h.d_model), layer),
        Products((q, k, v), layer),
        Attention(layer),
        Products((o,), layer),
        Norm(roles.vector(f"{prefix}{names.ffn_norm}.weight", h.d_model), layer),
        Products((gate, up), layer),
        Silu(layer),
        Products((down,), layer),
    ]
