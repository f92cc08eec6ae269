"""The llama family: Llama 2 and 3, SmolLM2, TinyLlama, Mistral without a window.

GGUF files hold q and k with rotary pairs side by side; Hugging Face checkpoints hold them half a head apart.
"""

from __future__ import annotations

from collections.abc import Callable

from sipd.errors import UnsupportedModel
from sipd.models import rope
from sipd.models.decoder import GGUF_NAMES, HF_NAMES, build_program, check_dimensions
from sipd.models.fields import Fields
from sipd.models.hyperparameters import Hyperparameters
from sipd.models.program import Program
from sipd.models.tensor_roles import TensorRoles
from sipd.weights.tensor_table import Checkpoint, Tensor

FactorReader = Callable[[Tensor], list[float]]


def from_gguf(checkpoint: Checkpoint, read_vector: FactorReader, *, architecture: str = "llama") -> Program:
    """The program of a GGUF file. `read_vector` reads a small tensor as numbers."""
    roles = TensorRoles(checkpoint)
    fields = Fields(checkpoint.metadata, str(checkpoint.path))
    key = f"{architecture}."
    d_model = fields.integer(f"{key}embedding_length")
    n_heads = fields.integer(f"{key}attention.head_count", high=1024)
    head_dim = fields.integer(f"{key}attention.key_length", d_model // n_heads)
    fields.refuse_unless(f"{key}attention.value_length", (head_dim,))
    fields.refuse_unless(f"{key}attention.sliding_window", (0,))
    fields.refuse_unless(f"{key}expert_count", (0,))
    n_rot = fields.integer(f"{key}rope.dimension_count", head_dim)
    frequencies = _gguf_frequencies(fields, key, n_rot)
    if roles.has("rope_freqs.weight"):
        factors = read_vector(roles.vector("rope_freqs.weight", n_rot // 2))
        frequencies = rope.apply_factors(frequencies, factors, f"{fields.where}: tensor rope_freqs.weight")
    for layer in range(fields.integer(f"{key}block_count", high=1024)):
        roles.ignore(f"blk.{layer}.attn_rot_embd")  # rotary tables of very old files: computed, not read
    h = Hyperparameters(
        architecture=architecture,
        n_layers=fields.integer(f"{key}block_count", high=1024),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=fields.integer(f"{key}attention.head_count_kv", n_heads, high=1024),
        head_dim=head_dim,
        d_ff=fields.integer(f"{key}feed_forward_length"),
        vocab_size=roles.shape("token_embd.weight")[0],
        context_length=fields.integer(f"{key}context_length"),
        rms_eps=fields.number(f"{key}attention.layer_norm_rms_epsilon"),
        n_rot=n_rot,
        is_neox=architecture != "llama",
        inverse_frequencies=tuple(frequencies),
    )
    check_dimensions(h, fields.where)
    return build_program(h, roles, GGUF_NAMES, head_is_tied=None)


def _gguf_frequencies(fields: Fields, key: str, n_rot: int) -> list[float]:
    """Rotary frequencies by the metadata, in its present form and in the one before `rope.scaling` came."""
    theta = fields.number(f"{key}rope.freq_base", 10000.0)
    frequencies = rope.inverse_frequencies(theta, n_rot, f"{fields.where}: {key}rope.freq_base {theta}")
    scaling: dict[str, object] | None = None
    if fields.values.get(f"{key}rope.scaling.type") is not None:
        scaling = {"type": fields.values[f"{key}rope.scaling.type"]}
        scaling["factor"] = fields.values.get(f"{key}rope.scaling.factor")
    elif fields.values.get(f"{key}rope.scale_linear") is not None:
        scaling = {"type": "linear", "factor": fields.values[f"{key}rope.scale_linear"]}
    return frequencies if scaling is None else rope.apply_scaling(frequencies, scaling, fields.where)


def from_safetensors(checkpoint: Checkpoint, *, architecture: str = "llama") -> Program:
    """The program of a Hugging Face checkpoint."""
    roles = TensorRoles(checkpoint)
    fields = Fields(checkpoint.metadata, str(checkpoint.path / "config.json"))
    fields.refuse_unless("hidden_act", ("silu", "swish"))
    if checkpoint.metadata.get("use_sliding_window", architecture == "llama"):
        fields.refuse_unless("sliding_window", ())
    fields.refuse_unless("quantization_config", ())
    d_model = fields.integer("hidden_size")
    n_heads = fields.integer("num_attention_heads", high=1024)
    head_dim = fields.integer("head_dim", d_model // n_heads)
    parameters = checkpoint.metadata.get("rope_parameters")  # transformers 5 keeps theta there
    theta = fields.number("rope_theta", 10000.0)
    fields.refuse_unless("partial_rotary_factor", (1.0,))
    scaling = checkpoint.metadata.get("rope_scaling")
    if isinstance(parameters, dict):
        inner = Fields(parameters, f"{fields.where}: rope_parameters")
        theta = inner.number("rope_theta", theta)
        inner.refuse_unless("partial_rotary_factor", (1.0,))
        scaling = scaling or parameters
    frequencies = rope.inverse_frequencies(theta, head_dim, f"{fields.where}: rope_theta {theta}")
    if scaling is not None:
        if not isinstance(scaling, dict):
            raise UnsupportedModel(f"{fields.where}: rope_scaling is {scaling!r}, wanted an object")
        frequencies = rope.apply_scaling(frequencies, scaling, fields.where)
    h = Hyperparameters(
        architecture=architecture,
        n_layers=fields.integer("num_hidden_layers", high=1024),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads, high=1024),
        head_dim=head_dim,
        d_ff=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=fields.integer("max_position_embeddings"),
        rms_eps=fields.number("rms_norm_eps"),
        n_rot=head_dim,
        is_neox=True,
        inverse_frequencies=tuple(frequencies),
    )
    check_dimensions(h, fields.where)
    for layer in range(h.n_layers):
        roles.ignore(f"model.layers.{layer}.self_attn.rotary_emb.inv_freq")
    is_tied = checkpoint.metadata.get("tie_word_embeddings")
    return build_program(h, roles, HF_NAMES, head_is_tied=is_tied if isinstance(is_tied, bool) else None)
