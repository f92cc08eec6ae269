"""The llama family: Llama 2 and 3, SmolLM2, TinyLlama, and the block that mistral and qwen2 build on.

GGUF files hold q and k with rotary pairs side by side; Hugging Face checkpoints hold them half a head apart.
"""

from __future__ import annotations

from collections.abc import Callable

from sipd.errors import TensorMismatch
from sipd.models import rope
from sipd.models.decoder import GGUF_NAMES, HF_NAMES, build_program, check_dimensions
from sipd.models.fields import MAX_DIMENSION, Fields
from sipd.models.hf_class import LLAMA, MISSING_RMS_EPS, HfClass
from sipd.models.hyperparameters import Hyperparameters
from sipd.models.program import Program
from sipd.models.rope_settings import gguf_rope, hf_rope
from sipd.models.tensor_roles import TensorRoles
from sipd.models.window import gguf_window
from sipd.weights.tensor_table import Checkpoint, Tensor

FactorReader = Callable[[Tensor], list[float]]

# The key of config.json that denies the biases of a part of a block
_BIAS_KEYS = {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}


def from_gguf(checkpoint: Checkpoint, read_vector: FactorReader, *, architecture: str = "llama") -> Program:
    """The program of a GGUF file. `read_vector` reads a small tensor as numbers."""
    roles = TensorRoles(checkpoint)
    fields = Fields(checkpoint.metadata, str(checkpoint.path))
    key = f"{architecture}."
    n_layers = fields.integer(f"{key}block_count", high=1024)
    d_model = fields.integer(f"{key}embedding_length")
    n_heads = fields.integer(f"{key}attention.head_count", high=1024)
    head_dim = fields.integer(f"{key}attention.key_length", d_model // n_heads)
    fields.refuse_unless(f"{key}attention.value_length", (head_dim,))
    fields.refuse_unless(f"{key}attention.causal", (True,))
    fields.refuse_unless(f"{key}expert_count", (0,))
    n_rot = fields.integer(f"{key}rope.dimension_count", head_dim)
    settings = gguf_rope(fields, key)
    frequencies = settings.frequencies(n_rot)
    if roles.has("rope_freqs.weight"):
        factors = read_vector(roles.vector("rope_freqs.weight", n_rot // 2))
        frequencies = rope.apply_factors(frequencies, factors, f"{fields.where}: tensor rope_freqs.weight")
    for layer in range(n_layers):
        roles.ignore(f"blk.{layer}.attn_rot_embd")  # rotary tables of very old files: computed, not read
    trained, window = fields.integer(f"{key}context_length"), gguf_window(fields, key)
    h = Hyperparameters(
        architecture=architecture,
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=fields.uniform_integer(f"{key}attention.head_count_kv", n_layers, n_heads, high=1024),
        head_dim=head_dim,
        d_ff=fields.integer(f"{key}feed_forward_length"),
        vocab_size=roles.shape("token_embd.weight")[0],
        context_length=_bounded(trained, window),
        longest_context=_bounded(trained, window, settings.stretch),
        window=window,
        rms_eps=fields.number(f"{key}attention.layer_norm_rms_epsilon"),
        n_rot=n_rot,
        is_neox=architecture != "llama",
        inverse_frequencies=tuple(frequencies),
    )
    check_dimensions(h, fields.where)
    return build_program(h, roles, GGUF_NAMES)


def from_safetensors(checkpoint: Checkpoint, hf_class: HfClass = LLAMA) -> Program:
    """The program of a Hugging Face checkpoint."""
    roles = TensorRoles(checkpoint)
    fields = Fields(checkpoint.metadata, str(checkpoint.path / "config.json"))
    fields.refuse_unless("hidden_act", ("silu", "swish"))
    fields.refuse_unless("is_causal", (True,))
    fields.refuse_unless("quantization_config", ())
    d_model = fields.integer("hidden_size")
    n_heads = fields.integer("num_attention_heads", high=1024)
    head_dim = fields.integer("head_dim", d_model // n_heads)
    settings = hf_rope(fields)
    trained, window = fields.integer("max_position_embeddings", hf_class.context_length), hf_class.window(fields)
    h = Hyperparameters(
        architecture=hf_class.architecture,
        n_layers=fields.integer("num_hidden_layers", high=1024),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", _missing_kv_heads(fields, hf_class, n_heads), high=1024),
        head_dim=head_dim,
        d_ff=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=_bounded(trained, window),
        longest_context=_bounded(trained, window, settings.stretch),
        window=window,
        rms_eps=fields.number("rms_norm_eps", MISSING_RMS_EPS),
        n_rot=head_dim,
        is_neox=True,
        inverse_frequencies=tuple(settings.frequencies(head_dim)),
    )
    check_dimensions(h, fields.where)
    if hf_class.heeds_bias_keys:
        _refuse_denied_biases(checkpoint, fields)
    for layer in range(h.n_layers):
        roles.ignore(f"model.layers.{layer}.self_attn.rotary_emb.inv_freq")
    return build_program(h, roles, HF_NAMES, needs_head=checkpoint.metadata.get("tie_word_embeddings") is False)


def _bounded(trained: int, window: int | None, stretch: float = 1.0) -> int:
    """Positions that a context may have, where the trained ones are stretched and a window bounds them."""
    stretched = int(min(trained * stretch, MAX_DIMENSION))
    return stretched if window is None else min(stretched, window)


def _missing_kv_heads(fields: Fields, hf_class: HfClass, n_heads: int) -> int:
    """Key heads where config.json names none: null is one for each query head, a missing key the class's number."""
    is_missing = "num_key_value_heads" not in fields.values
    return hf_class.n_kv_heads if is_missing and hf_class.n_kv_heads is not None else n_heads


def _refuse_denied_biases(checkpoint: Checkpoint, fields: Fields) -> None:
    """Raises TensorMismatch for biases that the configuration denies: transformers would leave them out."""
    for key, part in _BIAS_KEYS.items():
        biases = [name for name in checkpoint.tensors if part in name and name.endswith(".bias")]
        if biases and fields.values.get(key) is False:
            raise TensorMismatch(f"{fields.where}: {key} is false, but the weights hold {min(biases)}")
