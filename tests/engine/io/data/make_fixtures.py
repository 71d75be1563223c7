#!/usr/bin/env python3
"""Writes the .npy and .safetensors files beside it, with NumPy and the safetensors package.

They are what other programs make of the formats, and the tests compare against them; the versions
used are pinned in models/requirements.txt. Element i, in row-major order, is element(dtype, i) here
and in io_test.h.
"""

import pathlib

import ml_dtypes
import numpy as np
import safetensors

HERE = pathlib.Path(__file__).resolve().parent
SAFETENSORS_NAMES = {
    "f4": "float32", "f2": "float16", "bf16": "bfloat16", "f8": "float64", "i8": "int64",
    "i4": "int32", "i1": "int8", "u1": "uint8", "b1": "bool",
}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(name)


def element(name, i):
    if name == "b1":
        return i % 3 == 0
    if name == "u1":
        return 250 - 3 * i
    if name in ("i1", "i4", "i8"):
        return (3 * i - 7) * {"i1": 1, "i4": 2**20, "i8": 2**40}[name]
    return 0.5 * i - 1.25


def array(name, shape):
    values = [element(name, i) for i in range(int(np.prod(shape)))]
    return np.array(values, dtype=dtype_of(name)).reshape(shape)


def save(file, values, version=None):
    with open(HERE / file, "wb") as f:
        np.lib.format.write_array(f, values, version=version)


def main():
    for name in SAFETENSORS_NAMES:
        save(f"{name}.npy", array(name, (2, 3)))
    for name in ("f2", "f4", "f8", "i4", "i8"):
        swapped = array(name, (2, 3))
        save(f"{name}_big_endian.npy", swapped.astype(swapped.dtype.newbyteorder(">")))
    for name in ("f2", "f4", "f8", "i1", "bf16"):
        save(f"{name}_fortran.npy", np.asfortranarray(array(name, (2, 3, 4))))
    save("i8_big_endian_fortran.npy", np.asfortranarray(array("i8", (2, 3, 4))).astype(">i8"))
    save("f4_version_2.npy", array("f4", (2, 3)), version=(2, 0))
    save("f4_version_3.npy", array("f4", (2, 3)), version=(3, 0))
    save("f4_rank_0.npy", array("f4", ()))
    save("f4_rank_1.npy", array("f4", (3,)))
    save("f4_rank_8.npy", array("f4", (1, 2, 1, 1, 3, 1, 1, 1)))
    save("f4_empty.npy", array("f4", (0, 3)))
    save("f4_empty_fortran.npy", np.asfortranarray(np.zeros((3, 0, 2), "f4")))

    # What is refused.
    save("refused_object.npy", np.array([None, {}], dtype=object))
    save("refused_structured.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
    save("refused_complex.npy", np.zeros(2, dtype="c8"))
    save("refused_unsigned.npy", np.zeros(2, dtype="u4"))
    save("refused_string.npy", np.array(["ab", "c"]))
    save("refused_time.npy", np.zeros(2, dtype="M8[s]"))
    save("refused_long_double.npy", np.zeros(2, dtype="longdouble"))
    save("refused_rank_9.npy", np.zeros((1,) * 9, dtype="f4"))

    def entry(name, shape):
        values = array(name, shape)
        return {"dtype": SAFETENSORS_NAMES[name], "shape": list(shape), "data": values.tobytes()}

    def serialize(file, entries, metadata=None):
        (HERE / file).write_bytes(safetensors.serialize(entries, metadata))

    serialize("all.safetensors", {name: entry(name, (2, 3)) for name in SAFETENSORS_NAMES},
              {"made by": "\u00e9\u4e2d"})  # one key: the package keeps no order
    serialize("shapes.safetensors", {
        "rank 0": entry("f4", ()), "rank 8": entry("f4", (1, 2, 1, 1, 3, 1, 1, 1)),
        "empty": entry("f4", (0, 3)), "also \"empty\"": entry("i8", (2, 0)),
    })
    serialize("nothing.safetensors", {})


if __name__ == "__main__":
    main()
