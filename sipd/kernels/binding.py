"""The C ABI of the kernel library, but for single operations (operations.py). Calls release the GIL.

Invariant: every structure here has the layout of its twin in sipd.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

from sipd.kernels.operations import Operations

PAGE_POSITIONS = 32  # SIPD_PAGE
PANEL_ROWS = 16  # SIPD_PANEL
MAX_FILES = 64  # of one checkpoint: room in sipd_stream

PASS_DONE, PASS_CANCELLED, PASS_FAULT = 0, 1, 2
KEEP, DROP, DROPPED = 0, 1, 2  # of a sequence in the pass under way: see sipd_control


class Extent(Structure):
    """sipd_extent."""

    _fields_ = [
        ("file", c_int32),
        ("is_pinned", c_int32),
        ("offset", c_int64),
        ("length", c_int64),
        ("pin_offset", c_int64),
    ]


class ReadFault(Structure):
    """sipd_read_fault."""

    _fields_ = [
        ("error_number", c_int32),
        ("file", c_int32),
        ("offset", c_int64),
        ("wanted", c_int64),
        ("got", c_int64),
    ]


class StreamCounters(Structure):
    """sipd_stream_counters."""

    _fields_ = [("plan_bytes", c_int64), ("device_bytes", c_int64), ("busy_ns", c_int64)]


class StreamConfig(Structure):
    """sipd_stream_config."""

    _fields_ = [
        ("n_extents", c_int32),
        ("n_slots", c_int32),
        ("n_readers", c_int32),
        ("drop_cache", c_int32),
        ("slot_bytes", c_int64),
        ("slack", c_int64),
        ("pin_bytes", c_int64),
        ("alignment", c_int64),
    ]


class Tile(Structure):
    """sipd_tile."""

    _fields_ = [
        ("extent", c_int32),
        ("matrix", c_int32),
        ("offset", c_int64),
        ("row0", c_int32),
        ("n_rows", c_int32),
    ]


class Matrix(Structure):
    """sipd_matrix."""

    _fields_ = [
        ("type", c_int32),
        ("n_in", c_int32),
        ("n_out", c_int32),
        ("buffer", c_int32),
        ("add", c_int32),
        ("reserved", c_int32),
        ("row_bytes", c_int64),
        ("bias", c_void_p),
    ]


class Op(Structure):
    """sipd_op."""

    _fields_ = [
        ("kind", c_int32),
        ("layer", c_int32),
        ("tile0", c_int32),
        ("tile1", c_int32),
        ("quantize", c_int32),
        ("reserved", c_int32),
        ("weight", c_void_p),
    ]


OP_NORM, OP_MATMUL, OP_ATTENTION, OP_SILU, OP_SELECT = range(5)


class ModelConfig(Structure):
    """sipd_model_config."""

    _fields_ = [
        ("d_model", c_int32),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("d_ff", c_int32),
        ("vocab_size", c_int32),
        ("n_layers", c_int32),
        ("n_rot", c_int32),
        ("is_neox", c_int32),
        ("rms_eps", c_float),
        ("attention_scale", c_float),
        ("max_rows", c_int32),
        ("max_logit_rows", c_int32),
        ("n_pages", c_int32),
        ("n_tiles", c_int32),
        ("n_matrices", c_int32),
        ("n_ops", c_int32),
        ("head_tile0", c_int32),
        ("repack", c_int32),
        ("embedding_file", c_int32),
        ("embedding_type", c_int32),
        ("embedding_tile0", c_int32),
        ("embedding_tile1", c_int32),
        ("keeps_float", c_int32),
        ("embedding_waits", c_int32),
        ("embedding_offset", c_int64),
        ("embedding_row_bytes", c_int64),
        ("inverse_frequencies", c_void_p),
    ]


class Row(Structure):
    """sipd_row."""

    _fields_ = [("token", c_int32), ("position", c_int32), ("sequence", c_int32), ("logits", c_int32)]


class Control(Structure):
    """sipd_control: written by one side and read by the other while a pass runs."""

    _fields_ = [("cancel", c_int32), ("layer", c_int32), ("steps", c_int64), ("drops", POINTER(c_int32))]

    @classmethod
    def of(cls, max_sequences: int) -> Control:
        """A control for passes of up to that many sequences; all are kept."""
        return cls(drops=(c_int32 * max_sequences)())

    def dropped(self, n_sequences: int) -> frozenset[int]:
        """Those of the pass's sequences that it left out before its end."""
        return frozenset(i for i in range(n_sequences) if self.drops[i] == DROPPED)


class PassCounters(Structure):
    """sipd_pass_counters."""

    _fields_ = [
        ("streamed_bytes", c_int64),
        ("head_bytes", c_int64),
        ("embedding_bytes", c_int64),
        ("embedding_device_bytes", c_int64),
        ("storage_wait_ns", c_int64),
        ("total_ns", c_int64),
    ]


class Sampling(Structure):
    """sipd_sampling."""

    _fields_ = [
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("n_biases", c_int32),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
        ("n_context", c_int32),
        ("n_top", c_int32),
        ("context_ids", POINTER(c_int32)),
        ("output_counts", POINTER(c_int32)),
        ("seed", c_uint64),
        ("position", c_uint64),
    ]


class SampleOut(Structure):
    """sipd_sample_out."""

    _fields_ = [("id", c_int32), ("logprob", c_float), ("top_ids", c_int32 * 20), ("top_logprobs", c_float * 20)]


_SIGNATURES = {
    "sipd_contract_version": (c_int32, []),
    "sipd_isa_count": (c_int32, []),
    "sipd_isa_name": (c_char_p, [c_int32]),
    "sipd_isa_is_supported": (c_int32, [c_int32]),
    "sipd_isa_ops": (POINTER(Operations), [c_int32]),
    "sipd_stream_create": (c_void_p, [POINTER(StreamConfig), POINTER(Extent)]),
    "sipd_stream_destroy": (None, [c_void_p]),
    "sipd_stream_open": (None, [c_void_p, POINTER(c_int32), c_int32, c_int64]),
    "sipd_stream_acquire": (c_void_p, [c_void_p, c_int32, c_int32]),
    "sipd_stream_release": (None, [c_void_p, c_int32]),
    "sipd_stream_set_depth": (None, [c_void_p, c_int32]),
    "sipd_stream_begin": (None, [c_void_p, c_int32]),
    "sipd_stream_end": (None, [c_void_p]),
    "sipd_stream_rewind": (None, [c_void_p]),
    "sipd_stream_repin": (c_int32, [c_void_p, c_void_p, c_int32, c_int64]),
    "sipd_stream_fault": (c_int32, [c_void_p, POINTER(ReadFault)]),
    "sipd_stream_read_counters": (None, [c_void_p, POINTER(StreamCounters)]),
    "sipd_pool_create": (c_void_p, [c_int32]),
    "sipd_pool_destroy": (None, [c_void_p]),
    "sipd_activation_bytes": (c_int64, [POINTER(ModelConfig), c_int32]),
    "sipd_page_bytes": (c_int64, [POINTER(ModelConfig)]),
    "sipd_model_create": (
        c_void_p,
        [POINTER(ModelConfig), c_int32, c_void_p, c_void_p, POINTER(Tile), POINTER(Matrix), POINTER(Op)],
    ),
    "sipd_model_destroy": (None, [c_void_p]),
    "sipd_model_pass": (
        c_int32,
        [
            c_void_p,
            POINTER(Row),
            c_int32,
            c_int32,
            POINTER(c_int32),
            POINTER(c_int32),
            POINTER(Control),
            POINTER(PassCounters),
        ],
    ),
    "sipd_model_repinned": (None, [c_void_p]),
    "sipd_model_logits": (POINTER(c_float), [c_void_p, c_int32]),
    "sipd_model_page": (c_void_p, [c_void_p, c_int32]),
    "sipd_model_copy_page": (None, [c_void_p, c_int32, c_int32]),
    "sipd_sample": (c_int32, [POINTER(c_float), c_int32, POINTER(Sampling), c_void_p, POINTER(SampleOut)]),
    "sipd_dequantize_row": (None, [c_int32, c_void_p, c_int32, c_void_p]),
    "sipd_rope_angles": (None, [c_int32, c_void_p, c_int32, c_void_p]),
}


def library_path() -> Path:
    """Where the build puts the kernel library."""
    return Path(__file__).with_name("_native.so")


def load_library() -> ctypes.CDLL:
    """The kernel library with its signatures declared; OSError when it was not built for this platform."""
    library = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def isa_names(library: ctypes.CDLL) -> list[str]:
    """Names of the instruction sets that this CPU can run, best first."""
    return [
        library.sipd_isa_name(i).decode() for i in range(library.sipd_isa_count()) if library.sipd_isa_is_supported(i)
    ]


def isa_index(library: ctypes.CDLL, name: str) -> int:
    """Index of a supported instruction set; ValueError otherwise. "auto" is the best one."""
    for i in range(library.sipd_isa_count()):
        if library.sipd_isa_is_supported(i) and name in ("auto", library.sipd_isa_name(i).decode()):
            return i
    raise ValueError(f"found {name!r}, wanted auto or one of {', '.join(isa_names(library))}")
