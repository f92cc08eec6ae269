"""One instruction set's table of operations, and what its entries take.

Invariant: every structure here has the layout of its twin in contract.h.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p


class MatmulArguments(Structure):
    """sipd_matmul."""

    _fields_ = [
        ("type", c_int32),
        ("is_packed", c_int32),
        ("n_in", c_int32),
        ("n_out", c_int32),
        ("row_bytes", c_int64),
        ("w", c_void_p),
        ("xq", c_void_p),
        ("xf", c_void_p),
        ("xf_stride", c_int64),
        ("n_rows", c_int32),
        ("add", c_int32),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("bias", c_void_p),
    ]


class AttentionArguments(Structure):
    """sipd_attention."""

    _fields_ = [
        ("q", c_void_p),
        ("out", c_void_p),
        ("q_stride", c_int64),
        ("positions", c_void_p),
        ("n_rows", c_int32),
        ("head0", c_int32),
        ("n_heads", c_int32),
        ("kv_head", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("scale", c_float),
        ("arena", c_void_p),
        ("page_bytes", c_int64),
        ("layer_offset", c_int64),
        ("pages", c_void_p),
    ]


class Operations(Structure):
    """sipd_ops: one instruction set's table; tests call its entries one by one."""

    _fields_ = [
        ("name", c_char_p),
        ("lanes", c_int32),
        ("quantize", CFUNCTYPE(None, c_void_p, c_int32, c_void_p)),
        ("rms_norm", CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_float, c_void_p)),
        ("silu_mul", CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_void_p)),
        ("rope", CFUNCTYPE(None, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p)),
        ("store_kv", CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_void_p)),
        ("attention", CFUNCTYPE(None, POINTER(AttentionArguments), c_void_p)),
        ("matmul", CFUNCTYPE(None, POINTER(MatmulArguments), c_int32, c_int32, c_void_p)),
        ("repack", CFUNCTYPE(None, c_int32, c_void_p, c_int64, c_int32, c_void_p)),
        ("extract_row", CFUNCTYPE(None, c_int32, c_void_p, c_int64, c_int32, c_int32, c_void_p)),
    ]
