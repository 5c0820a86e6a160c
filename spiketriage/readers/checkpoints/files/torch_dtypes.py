"""The element types of torch in the spelling of safetensors, with their sizes.

This module never imports torch: it knows the names that a pickle uses.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.readers.inert import Stub

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "QU8", "QI8", "F4"), 1),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32", "QI32", "C32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    "C128": 16,
}

_BY_DTYPE = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex32": "C32",
    "complex64": "C64",
    "complex128": "C128",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4",
    "qint8": "QI8",
    "quint8": "QU8",
    "qint32": "QI32",
}

_BY_STORAGE = {
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
    "QInt8Storage": "QI8",
    "QUInt8Storage": "QU8",
    "QInt32Storage": "QI32",
    "UntypedStorage": "U8",
}


def dtype_of(named: object) -> str | None:
    """The spelling for what a pickle names `torch.float32`, `torch.FloatStorage` …, else None."""
    if not isinstance(named, type) or not issubclass(named, Stub):
        return None
    module, _, name = named.qualified.rpartition(".")
    if module not in ("torch", "torch.cuda", "torch.storage"):
        return None
    return _BY_DTYPE.get(name) or _BY_STORAGE.get(name)
