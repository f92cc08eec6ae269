"""Executes passes with the native kernels: the program of a model as prebuilt descriptors, one call a pass.

Owned by the engine thread. Invariant: rows of a pass are sorted by sequence, positions ascending within one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sipd.errors import SipdError
from sipd.kernels import binding
from sipd.models.program import HEAD_LAYER, Attention, Norm, Products, Program, Select, Silu
from sipd.models.small_tensors import read_f32
from sipd.weights.plan import Plan
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream
from sipd.weights.tensor_table import QuantType, Tensor

_FLOAT_TYPES = frozenset({QuantType.F32, QuantType.F16, QuantType.BF16})


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one pass did. `status` is one of binding.PASS_*; bytes and seconds of this pass alone."""

    status: int
    streamed_bytes: int
    head_bytes: int
    embedding_bytes: int
    embedding_device_bytes: int
    storage_wait_s: float
    total_s: float
    dropped: frozenset[int] = frozenset()  # sequences that left it before its end: their KV is incomplete

    @property
    def is_done(self) -> bool:
        """Whether the pass ran to its end."""
        return self.status == binding.PASS_DONE

    def after(self, earlier: PassResult | None) -> PassResult:
        """This attempt with the costs of an earlier one that had to be begun anew."""
        if earlier is None:
            return self
        return PassResult(
            self.status,
            self.streamed_bytes + earlier.streamed_bytes,
            self.head_bytes + earlier.head_bytes,
            self.embedding_bytes + earlier.embedding_bytes,
            self.embedding_device_bytes + earlier.embedding_device_bytes,
            self.storage_wait_s + earlier.storage_wait_s,
            self.total_s + earlier.total_s,
            self.dropped,
        )


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """Sizes that the ledger granted: rows of a pass, rows of logits, KV pages, compute threads."""

    max_rows: int
    max_logit_rows: int
    n_pages: int
    n_threads: int


def native_config(program: Program, plan: Plan, shape: ForwardShape) -> binding.ModelConfig:
    """The model's numbers for the kernels, without what only a running model has."""
    h = program.hyperparameters
    embedding = program.embedding
    return binding.ModelConfig(
        d_model=h.d_model,
        n_heads=h.n_heads,
        n_kv_heads=h.n_kv_heads,
        head_dim=h.head_dim,
        d_ff=h.d_ff,
        vocab_size=h.vocab_size,
        n_layers=h.n_layers,
        n_rot=h.n_rot,
        is_neox=int(h.is_neox),
        rms_eps=h.rms_eps,
        attention_scale=1.0 / math.sqrt(h.head_dim),
        max_rows=shape.max_rows,
        max_logit_rows=shape.max_logit_rows,
        n_pages=shape.n_pages,
        n_tiles=len(plan.tiles),
        n_matrices=len(plan.matrices),
        head_tile0=plan.group_tiles[-1][0],
        keeps_float=int(any(tensor.quant_type in _FLOAT_TYPES for tensor in plan.matrices)),
        embedding_file=embedding.file_index,
        embedding_type=embedding.quant_type.type_id,
        embedding_offset=embedding.file_offset,
        embedding_row_bytes=embedding.row_bytes,
    )


def activation_bytes(library: ctypes.CDLL, program: Program, plan: Plan, shape: ForwardShape) -> int:
    """Bytes of all buffers of a pass: activations, logits, scratch."""
    return int(library.sipd_activation_bytes(ctypes.byref(native_config(program, plan, shape)), shape.n_threads))


def page_bytes(program: Program) -> int:
    """Bytes of one KV page: keys and values of PAGE_POSITIONS positions in every block, binary16."""
    h = program.hyperparameters
    return h.n_layers * 4 * h.kv_width * binding.PAGE_POSITIONS


# Per block: keys [kv_head][head_dim][position], then values [kv_head][position][head_dim]
KV_LAYOUT = f"f16-keys_dim_position-values_position_dim-{binding.PAGE_POSITIONS}"


class Forward:
    """A loaded model."""

    kv_layout = KV_LAYOUT  # the same on every instruction set: bytes of a page may go from one to another

    def __init__(  # noqa: PLR0917 - the parts in the order in which they are built
        self,
        library: ctypes.CDLL,
        program: Program,
        plan: Plan,
        stream: Stream,
        files: WeightFiles,
        shape: ForwardShape,
        *,
        isa: str = "auto",
    ) -> None:
        """Reads the small tensors and allocates all buffers. `plan` may begin with the embedding's own tiles."""
        self.shape = shape
        self.hyperparameters = program.hyperparameters
        self.isa: str = library.sipd_isa_name(binding.isa_index(library, isa)).decode()
        self.control = binding.Control.of(shape.max_rows)
        self._library = library
        self._page_bytes = page_bytes(program)
        self._keep: list[object] = []
        frequencies = (ctypes.c_float * (program.hyperparameters.n_rot // 2))(
            *program.hyperparameters.inverse_frequencies
        )
        config = native_config(program, plan, shape)
        config.repack = 1
        config.inverse_frequencies = ctypes.cast(frequencies, ctypes.c_void_p)
        has_embedding_tiles = len(plan.group_tiles) > sum(1 for _ in program.product_steps())
        if program.is_tied or has_embedding_tiles:
            tiles = plan.group_tiles[-1] if program.is_tied else plan.group_tiles[0]
            config.embedding_tile0, config.embedding_tile1 = tiles
            config.embedding_waits = int(not program.is_tied)
        ops = self._ops(program, plan, files, int(has_embedding_tiles and not program.is_tied))
        matrices = self._matrices(program, plan, files, has_embedding_tiles=has_embedding_tiles and not program.is_tied)
        config.n_ops = len(ops)
        tiles_array = (binding.Tile * len(plan.tiles))(
            *(binding.Tile(tile.extent, tile.matrix, tile.offset, tile.row0, tile.n_rows) for tile in plan.tiles)
        )
        self._pool = library.sipd_pool_create(shape.n_threads)
        self._model = self._pool and library.sipd_model_create(
            ctypes.byref(config), binding.isa_index(library, isa), self._pool, stream.handle, tiles_array, matrices, ops
        )
        if not self._model:
            library.sipd_pool_destroy(self._pool)
            raise SipdError("no memory for the buffers of a pass, although the ledger granted them")

    def _vector(self, files: WeightFiles, tensor: Tensor) -> ctypes.c_void_p:
        array = read_f32(self._library, files, tensor)
        self._keep.append(array)
        return ctypes.cast(array, ctypes.c_void_p)

    def _ops(self, program: Program, plan: Plan, files: WeightFiles, group: int) -> ctypes.Array[binding.Op]:
        ops: list[binding.Op] = []
        makers: list[binding.Op] = []  # ops that left the input which the next products read
        for step in program.steps:
            match step:
                case Norm():
                    weight = self._vector(files, step.weight)
                    makers = [binding.Op(kind=binding.OP_NORM, layer=step.layer, weight=weight)]
                    ops += makers
                case Products():
                    begin, end = plan.group_tiles[group]
                    group += 1
                    wants_blocks = any(p.weight.quant_type not in _FLOAT_TYPES for p in step.products)
                    for maker in makers:
                        maker.quantize = int(wants_blocks)
                    ops.append(binding.Op(kind=binding.OP_MATMUL, layer=step.layer, tile0=begin, tile1=end))
                case Attention():
                    makers = [binding.Op(kind=binding.OP_ATTENTION, layer=step.layer)]
                    ops += makers
                case Silu():
                    makers = [binding.Op(kind=binding.OP_SILU, layer=step.layer)]
                    ops += makers
                case Select():
                    ops.append(binding.Op(kind=binding.OP_SELECT, layer=HEAD_LAYER))
        return (binding.Op * len(ops))(*ops)

    def _matrices(
        self, program: Program, plan: Plan, files: WeightFiles, *, has_embedding_tiles: bool
    ) -> ctypes.Array[binding.Matrix]:
        matrices: list[binding.Matrix] = []
        if has_embedding_tiles:
            matrices.append(binding.Matrix(type=-1, n_in=program.hyperparameters.d_model))
        for step in program.product_steps():
            for product in step.products:
                weight = product.weight
                matrices.append(
                    binding.Matrix(
                        type=weight.quant_type.type_id,
                        n_in=weight.shape[1],
                        n_out=weight.shape[0],
                        buffer=int(product.buffer),
                        add=int(product.adds),
                        row_bytes=weight.row_bytes,
                        bias=self._vector(files, product.bias) if product.bias is not None else None,
                    )
                )
        assert len(matrices) == len(plan.matrices), "the plan and the program disagree"
        return (binding.Matrix * len(matrices))(*matrices)

    def run(
        self, rows: Sequence[tuple[int, int, int, int]], n_logits: int, pages: Sequence[Sequence[int]]
    ) -> PassResult:
        """One pass. A row is (token, position, sequence, logits row or -1); `pages[i]` are the KV pages of sequence i.

        Blocks without the GIL. Another thread ends it within one block by `control.cancel`, and the part of sequence i
        by `control.drops[i] = binding.DROP`; the caller resets both. The pass is cancelled when all are dropped.
        """
        flat: list[int] = []
        starts: list[int] = []
        for sequence in pages:
            starts.append(len(flat))
            flat.extend(sequence)
        row_array = (binding.Row * len(rows))(*(binding.Row(*row) for row in rows))
        counters = binding.PassCounters()
        status = self._library.sipd_model_pass(
            self._model,
            row_array,
            len(rows),
            n_logits,
            (ctypes.c_int32 * len(flat))(*flat),
            (ctypes.c_int32 * len(starts))(*starts),
            ctypes.byref(self.control),
            ctypes.byref(counters),
        )
        return PassResult(
            status,
            counters.streamed_bytes,
            counters.head_bytes,
            counters.embedding_bytes,
            counters.embedding_device_bytes,
            counters.storage_wait_ns / 1e9,
            counters.total_ns / 1e9,
            self.control.dropped(len(pages)),
        )

    def logits(self, row: int) -> ctypes._Pointer[ctypes.c_float]:
        """The logits of one row of the latest pass, (vocab_size,) f32; valid until the next pass."""
        pointer: ctypes._Pointer[ctypes.c_float] = self._library.sipd_model_logits(self._model, row)
        return pointer

    def repinned(self) -> None:
        """Forgets what it knows of tiles that the stream has given up; after `Stream.repin`, between passes."""
        self._library.sipd_model_repinned(self._model)

    def page(self, index: int) -> memoryview:
        """The bytes of a KV page, (page_bytes,), writable, not a copy; for the engine thread, until `close`."""
        if not 0 <= index < self.shape.n_pages:
            raise IndexError(f"KV page {index} of {self.shape.n_pages}")
        address = self._library.sipd_model_page(self._model, index)
        return memoryview((ctypes.c_uint8 * self._page_bytes).from_address(address)).cast("B")

    def copy_page(self, source: int, target: int) -> None:
        """Makes page `target` equal to page `source`."""
        if not (0 <= source < self.shape.n_pages and 0 <= target < self.shape.n_pages):
            raise IndexError(f"KV pages {source} and {target} of {self.shape.n_pages}")
        self._library.sipd_model_copy_page(self._model, source, target)

    def close(self) -> None:
        """Frees the buffers and ends the threads."""
        if self._model:
            self._library.sipd_model_destroy(self._model)
            self._library.sipd_pool_destroy(self._pool)
            self._model = None
