"""`sipd inspect`: what a model file says about itself, without loading it.

Invariant: a malformed file is refused with the error that loading it would raise; a sound one that sipd cannot run
is printed all the same, and then refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sipd.errors import ModelError, SipdError
from sipd.size import format_size
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import Checkpoint

_SHOWN_ELEMENTS = 8
_SHOWN_CHARACTERS = 96


def run_inspect(path: Path, *, as_json: bool) -> int:
    """Prints the model at `path`; returns 0. Raises ModelError, after printing when the file itself is sound."""
    checkpoint = open_checkpoint(path)
    hyperparameters, fault = read_hyperparameters(checkpoint)
    report = inspect_report(checkpoint, hyperparameters, fault)
    print(json.dumps(report, indent=2) if as_json else inspect_text(report))
    if fault is not None:
        raise fault
    return 0


def read_hyperparameters(checkpoint: Checkpoint) -> tuple[dict[str, Any] | None, ModelError | None]:
    """Returns the numbers of the decoder, or the reason why sipd cannot run it."""
    from sipd.engine.planned_model import read_program  # noqa: PLC0415
    from sipd.kernels import binding  # noqa: PLC0415 - the tables above need no kernels

    try:
        library = binding.load_library()
    except OSError as error:
        raise SipdError(f"the kernel library cannot be loaded: {error}") from error
    try:
        numbers = asdict(read_program(checkpoint, library).hyperparameters)
    except ModelError as error:
        return None, error
    numbers["inverse_frequencies"] = summary(numbers["inverse_frequencies"])
    return numbers, None


def inspect_report(
    checkpoint: Checkpoint, hyperparameters: dict[str, Any] | None, fault: ModelError | None
) -> dict[str, Any]:
    """Returns the report as JSON values; long arrays and texts are cut, with their length."""
    tensors = sorted(checkpoint.tensors.values(), key=lambda tensor: (tensor.file_index, tensor.file_offset))
    n_tensors: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for tensor in tensors:
        n_tensors[tensor.quant_type.name] += 1
        n_bytes[tensor.quant_type.name] += tensor.n_bytes
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.file_format,
        "files": [
            {"path": str(path), "bytes": size}
            for path, size in zip(checkpoint.files, checkpoint.file_sizes, strict=True)
        ],
        "metadata": {key: summary(value) for key, value in checkpoint.metadata.items()},
        "hyperparameters": hyperparameters,
        "refusal": None if fault is None else str(fault),
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "type": tensor.quant_type.name,
                "bytes": tensor.n_bytes,
                "file": tensor.file_index,
                "offset": tensor.file_offset,
            }
            for tensor in tensors
        ],
        "totals": [{"type": name, "tensors": n_tensors[name], "bytes": size} for name, size in n_bytes.most_common()],
        "weight_bytes": sum(n_bytes.values()),
    }


def summary(value: object) -> object:
    """Returns a JSON value of bounded size: {"length", "first"} for a long array, {"length", "begins"} for a text."""
    if isinstance(value, str):
        if len(value) <= _SHOWN_CHARACTERS:
            return value
        return {"length": len(value), "begins": value[:_SHOWN_CHARACTERS]}
    if isinstance(value, Mapping):
        return {str(key): summary(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        first = [summary(each) for each in value[:_SHOWN_ELEMENTS]]
        return first if len(value) <= _SHOWN_ELEMENTS else {"length": len(value), "first": first}
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def inspect_text(report: dict[str, Any]) -> str:
    """Returns the report for people."""
    lines = [f"{report['path']}: {report['format']}"]
    lines += [f"  {file['path']}  {format_size(file['bytes'])}" for file in report["files"]]
    lines.append("metadata:")
    lines += [f"  {key} = {_line(value)}" for key, value in report["metadata"].items()]
    lines.append("hyperparameters:")
    if report["hyperparameters"] is None:
        lines.append(f"  none: {report['refusal']}")
    else:
        lines += [f"  {key} = {_line(value)}" for key, value in report["hyperparameters"].items()]
    lines.append("tensors: name, shape, type, bytes, offset")
    width = max((len(tensor["name"]) for tensor in report["tensors"]), default=0)
    for tensor in report["tensors"]:
        shape = "x".join(map(str, tensor["shape"]))
        file = f" of file {tensor['file']}" if len(report["files"]) > 1 else ""
        lines.append(
            f"  {tensor['name']:<{width}}  {shape:>12}  {tensor['type']:<5}{tensor['bytes']:>14,}"
            f"  at {tensor['offset']:,}{file}"
        )
    lines.append("totals:")
    lines += [
        f"  {each['type']:<5}{each['tensors']:>6} tensors  {format_size(each['bytes']):>10}  {each['bytes']:>15,} B"
        for each in report["totals"]
    ]
    return "\n".join(lines)


def _line(value: object) -> str:
    """Returns a summarised value on one line, control characters escaped."""
    if isinstance(value, dict) and "length" in value and len(value) == 2:
        if "begins" in value:
            return f"{json.dumps(value['begins'])}... ({value['length']:,} characters)"
        return f"{json.dumps(value['first'])[:-1]}, ...] ({value['length']:,} elements)"
    return json.dumps(value)
