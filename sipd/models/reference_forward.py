"""Executes passes with the NumPy twin: the same program, the same plan, the same bits, slowly and on one thread.

Owned by the engine thread. Invariant: after every pass the logits equal those of models/forward.py.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sipd.errors import SipdError
from sipd.kernels import binding, reference
from sipd.kernels.reference_quants import F32, FLOAT_TYPES, QuantizedRows, dequantize, quantize
from sipd.models.forward import KV_LAYOUT, ForwardShape, PassResult
from sipd.models.program import HEAD_LAYER, Attention, Buffer, Norm, Product, Products, Program, Select, Silu, Step
from sipd.weights.plain_source import PlainSource
from sipd.weights.plan import Plan, Tile
from sipd.weights.tensor_table import Tensor

I32 = NDArray[np.int32]


class _ReadError(Exception):
    """A read failed; the source knows why."""


class _Pass:
    """What one pass carries from step to step."""

    def __init__(self, rows: Sequence[tuple[int, int, int, int]], pages: Sequence[Sequence[int]]) -> None:
        table = np.array(rows, np.int32).reshape(-1, 4)
        self.tokens, self.positions, self.sequences, self.logits_rows = (table[:, i] for i in range(4))
        self.pages = [np.array(sequence, np.int32) for sequence in pages]
        self.buffers: dict[Buffer, F32] = {}
        self.input: F32 = np.zeros((0, 0), np.float32)
        self.quantized: QuantizedRows | None = None
        self.streamed_bytes = 0
        self.head_bytes = 0
        self.embedding_bytes = 0
        self.wait_s = 0.0

    def leave_out(self, control: binding.Control) -> bool:
        """Removes the rows of sequences that are to be dropped, between two layers; returns whether a row is left."""
        for sequence in np.unique(self.sequences):
            if control.drops[int(sequence)] == binding.KEEP:
                continue
            control.drops[int(sequence)] = binding.DROPPED
            is_kept = self.sequences != sequence
            self.tokens, self.positions = self.tokens[is_kept], self.positions[is_kept]
            self.sequences, self.logits_rows = self.sequences[is_kept], self.logits_rows[is_kept]
            self.buffers[Buffer.X] = self.buffers[Buffer.X][is_kept]
        return len(self.sequences) > 0

    def set_input(self, values: F32) -> None:
        """What the next products read; quantised once, when one of them asks."""
        self.input = values
        self.quantized = None

    def quantized_input(self) -> QuantizedRows:
        if self.quantized is None:
            self.quantized = quantize(self.input)
        return self.quantized


class ReferenceForward:
    """A loaded model."""

    isa = "numpy"
    kv_layout = KV_LAYOUT

    def __init__(self, program: Program, plan: Plan, source: PlainSource, shape: ForwardShape) -> None:
        """Reads the small tensors. `plan` may begin with the embedding's own tiles. Raises StorageFault or DataLoss."""
        h = program.hyperparameters
        self.shape = shape
        self.hyperparameters = h
        self.control = binding.Control.of(shape.max_rows)
        self._program = program
        self._plan = plan
        self._source = source
        self._small = {tensor.name: self._read_small(tensor) for tensor in program.small_tensors()}
        self._frequencies = np.array(h.inverse_frequencies, np.float32)
        self._scale = np.float32(1.0 / math.sqrt(h.head_dim))
        self._has_embedding_group = len(plan.group_tiles) > sum(1 for _ in program.product_steps())
        # a page's bytes are those of the kernels' pages
        self._kv: NDArray[np.float16] = np.zeros(
            (shape.n_pages, h.n_layers, 2, h.kv_width * reference.PAGE), np.float16
        )
        self._logits = np.zeros((shape.max_logit_rows, h.vocab_size), np.float32)
        self._counted: set[int] = set()  # pinned tiles whose read is on the account of an earlier pass

    def run(
        self, rows: Sequence[tuple[int, int, int, int]], n_logits: int, pages: Sequence[Sequence[int]]
    ) -> PassResult:
        """One pass. A row is (token, position, sequence, logits row or -1); `pages[i]`: KV pages of sequence i."""
        begin = time.monotonic()
        state = _Pass(rows, pages)
        status = binding.PASS_FAULT
        # what is not finite is the sampler's to refuse, as with the kernels
        with np.errstate(all="ignore"):
            try:
                state.buffers[Buffer.X] = self._embed(state)
                status = self._walk(state, n_logits)
            except _ReadError:
                pass
        return PassResult(
            status,
            state.streamed_bytes + state.embedding_bytes,
            state.head_bytes,
            state.embedding_bytes,
            state.embedding_bytes,
            state.wait_s,
            time.monotonic() - begin,
            self.control.dropped(len(pages)),
        )

    def logits(self, row: int) -> ctypes._Pointer[ctypes.c_float]:
        """The logits of one row of the latest pass, (vocab_size,) f32; valid until the next pass."""
        return ctypes.cast(self._logits[row].ctypes.data, ctypes.POINTER(ctypes.c_float))

    def page(self, index: int) -> memoryview:
        """The bytes of a KV page, (page_bytes,), writable, not a copy."""
        if not 0 <= index < self.shape.n_pages:
            raise IndexError(f"KV page {index} of {self.shape.n_pages}")
        return memoryview(self._kv[index].reshape(-1).view(np.uint8))

    def copy_page(self, source: int, target: int) -> None:
        """Makes page `target` equal to page `source`."""
        self.page(target)[:] = self.page(source)

    def close(self) -> None:
        """Frees the KV pages."""
        self._kv = np.zeros((0, 0, 2, 0), np.float16)

    def _walk(self, state: _Pass, n_logits: int) -> int:
        """Runs the steps; returns PASS_DONE or PASS_CANCELLED."""
        group = int(self._has_embedding_group)
        layer = None
        for number, step in enumerate(self._program.steps):
            if isinstance(step, Select) and not n_logits:
                break  # inside a prompt: the head would be read for nothing
            if step.layer != layer and not state.leave_out(self.control):
                return binding.PASS_CANCELLED
            layer = step.layer
            self._run_step(step, state, group, n_logits)
            group += isinstance(step, Products)
            self.control.steps += 1
            self.control.layer = step.layer
            if self.control.cancel and number + 1 < len(self._program.steps):
                return binding.PASS_CANCELLED
        return binding.PASS_DONE

    def _run_step(self, step: Step, state: _Pass, group: int, n_logits: int) -> None:
        match step:
            case Norm():
                x = state.buffers[Buffer.X]
                state.set_input(reference.rms_norm(x, self._small[step.weight.name], self.hyperparameters.rms_eps))
            case Products():
                self._multiply(step, state, self._plan.group_tiles[group])
            case Attention():
                state.set_input(self._attend(step.layer, state))
            case Silu():
                state.set_input(reference.silu_mul(state.buffers[Buffer.GATE], state.buffers[Buffer.UP]))
            case Select():
                selected = np.zeros((n_logits, self.hyperparameters.d_model), np.float32)
                is_wanted = state.logits_rows >= 0
                selected[state.logits_rows[is_wanted]] = state.buffers[Buffer.X][is_wanted]
                state.buffers[Buffer.X] = selected

    def _multiply(self, step: Products, state: _Pass, tiles: tuple[int, int]) -> None:
        """All products of a step, tile by tile in the order of the plan."""
        n_rows = state.input.shape[0]
        products: dict[str, Product] = {product.weight.name: product for product in step.products}
        for product in step.products:
            if not product.adds:
                shape = (n_rows, product.weight.shape[0])
                is_head = product.buffer is Buffer.LOGITS
                state.buffers[product.buffer] = self._logits[:n_rows] if is_head else np.empty(shape, np.float32)
        for index in range(*tiles):
            tile = self._plan.tiles[index]
            product = products[self._plan.matrices[tile.matrix].name]
            out = self._product(product, tile, state)
            columns = slice(tile.row0, tile.row0 + tile.n_rows)
            if product.bias is not None:
                out = out + self._small[product.bias.name][columns]
            buffer = state.buffers[product.buffer]
            buffer[:, columns] = buffer[:, columns] + out if product.adds else out
            self._count(index, tile, product.weight, state, is_head=step.layer == HEAD_LAYER)

    def _product(self, product: Product, tile: Tile, state: _Pass) -> F32:
        tensor = product.weight
        begin = time.monotonic()
        data = self._source.extent(tile.extent)
        state.wait_s += time.monotonic() - begin
        if data is None:
            raise _ReadError
        weights = np.frombuffer(data, np.uint8, tile.n_rows * tensor.row_bytes, tile.offset)
        weights = weights.reshape(tile.n_rows, tensor.row_bytes)
        if tensor.quant_type in FLOAT_TYPES:
            return reference.matmul_floats(tensor.quant_type, weights, state.input)
        return reference.matmul_blocks(tensor.quant_type, weights, state.quantized_input())

    def _count(self, index: int, tile: Tile, tensor: Tensor, state: _Pass, *, is_head: bool) -> None:
        """Puts a tile's bytes on the account of this pass, a pinned one's only once."""
        if index in self._counted:
            return
        if self._source.is_pinned(tile.extent):
            self._counted.add(index)
        n_bytes = tile.n_rows * tensor.row_bytes
        state.streamed_bytes += n_bytes
        if is_head:
            state.head_bytes += n_bytes

    def _attend(self, layer: int, state: _Pass) -> F32:
        h = self.hyperparameters
        n_rows = len(state.positions)
        cos_sin = reference.rope_angles(state.positions, self._frequencies)
        q = state.buffers[Buffer.Q].reshape(n_rows, h.n_heads, h.head_dim)
        k = state.buffers[Buffer.K].reshape(n_rows, h.n_kv_heads, h.head_dim)
        v = state.buffers[Buffer.V].reshape(n_rows, h.n_kv_heads, h.head_dim)
        q = reference.rope(q, cos_sin, is_neox=h.is_neox)
        k = reference.rope(k, cos_sin, is_neox=h.is_neox)
        cache = reference.LayerCache(
            self._kv[:, layer, 0].reshape(-1, h.n_kv_heads, h.head_dim, reference.PAGE),
            self._kv[:, layer, 1].reshape(-1, h.n_kv_heads, reference.PAGE, h.head_dim),
        )
        for row in range(n_rows):
            chunk, slot = divmod(int(state.positions[row]), reference.PAGE)
            cache.store(int(state.pages[state.sequences[row]][chunk]), slot, k[row], v[row])
        out = np.empty_like(q)
        for sequence, pages in enumerate(state.pages):
            mine = np.nonzero(state.sequences == sequence)[0]
            if len(mine):
                out[mine] = reference.attention(q[mine], state.positions[mine], cache, pages, self._scale)
        flat: F32 = out.reshape(n_rows, h.q_width)
        return flat

    def _embed(self, state: _Pass) -> F32:
        tensor = self._program.embedding
        x = np.empty((len(state.tokens), tensor.shape[1]), np.float32)
        if self._has_embedding_group and not self._program.is_tied:
            for number in range(*self._plan.group_tiles[0]):
                if number not in self._counted:  # read for this pass, and kept
                    self._counted.add(number)
                    state.embedding_bytes += self._plan.tiles[number].n_rows * tensor.row_bytes
        for row, token in enumerate(state.tokens):
            raw = self._kept_row(int(token))
            if raw is None:
                raw = self._source.read(
                    tensor.file_index, tensor.file_offset + int(token) * tensor.row_bytes, tensor.row_bytes
                )
                state.embedding_bytes += tensor.row_bytes
            if raw is None:
                raise _ReadError
            x[row] = dequantize(tensor.quant_type, np.frombuffer(raw, np.uint8).reshape(1, -1))[0]
        return x

    def _kept_row(self, token: int) -> bytes | None:
        """A row of the embedding from a pinned tile; None when it is not in memory."""
        if self._program.is_tied:
            begin, end = self._plan.group_tiles[-1]
        elif self._has_embedding_group:
            begin, end = self._plan.group_tiles[0]
        else:
            return None
        row_bytes = self._program.embedding.row_bytes
        for tile in self._plan.tiles[begin:end]:
            if tile.row0 <= token < tile.row0 + tile.n_rows:
                # a group of its own is there for this alone: load it, as the kernels wait for it
                data = self._source.kept(tile.extent) if self._program.is_tied else self._source.extent(tile.extent)
                at = tile.offset + (token - tile.row0) * row_bytes
                return None if data is None else data[at : at + row_bytes]
        return None

    def _read_small(self, tensor: Tensor) -> F32:
        raw = self._source.read(tensor.file_index, tensor.file_offset, tensor.n_bytes)
        if raw is None:
            found = self._source.fault()
            raise found[0] if found else SipdError(f"tensor {tensor.name} cannot be read")
        values: F32 = dequantize(tensor.quant_type, np.frombuffer(raw, np.uint8).reshape(1, -1))[0].copy()
        return values
