#!/usr/bin/env python3
"""Writes the binary files of this folder: model files that no text can express, and the weights that
some of the models name. Run it where it lies; the same bytes come out every time."""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def integer(number, value):
    return tag(number, VARINT) + varint(value)


def text(number, value):
    value = value if isinstance(value, bytes) else value.encode()
    return tag(number, LENGTH) + varint(len(value)) + value


def message(number, *fields):
    return text(number, b"".join(fields))


# Fields by the names of proto/model.proto.
VERSION = integer(1, 1)


def model(*graph_fields):
    return VERSION + message(4, *graph_fields)


def dim(size):
    return message(3, integer(1, size))


INPUT = message(2, text(1, "x"), integer(2, 1), dim(2), dim(3))
NODE = message(4, text(1, "n"), text(2, "x"), text(2, "x"), text(3, "y"), message(14))
OUTPUT = message(5, text(1, "y"))
GOOD = model(INPUT, NODE, OUTPUT)


def weight(*data):
    return message(3, text(1, "w"), integer(2, 1), message(3, varint(1)), *data)


def write(name, content):
    (HERE / name).write_bytes(content)


write("binary_empty.pb", b"")
write("binary_text.pb", b"format_version: 1\ngraph {}\n")
write("binary_truncated.pb", GOOD[:-3])
write("binary_trailing_zero.pb", GOOD + b"\x00")
write("binary_trailing_text.pb", GOOD + b"\n")
write("binary_concatenated.pb", GOOD + GOOD)
write("binary_version_twice.pb", VERSION + GOOD)
write("binary_graph_twice.pb", GOOD + message(4))
write("binary_unknown_field.pb", GOOD + integer(99, 1))
write("binary_unknown_op.pb", model(INPUT, message(4, text(1, "n"), text(2, "x"), message(500))))
write("binary_wrong_wire_type.pb", tag(1, FIXED32) + b"\1\0\0\0" + GOOD[2:])
write("binary_string_as_varint.pb", model(integer(1, 7), INPUT, NODE, OUTPUT))
write("binary_group.pb", model(tag(4, GROUP), tag(4, GROUP_END), INPUT, NODE, OUTPUT))
write("binary_wire_type_7.pb", VERSION + tag(4, 7))
write("binary_field_zero.pb", VERSION + tag(0, LENGTH) + b"\0")
write("binary_field_huge.pb", VERSION + varint(1 << 40 | LENGTH) + b"\0")
write("binary_overlong_varint.pb", tag(1, VARINT) + b"\x81" + b"\x80" * 9 + b"\0")
write("binary_varint_past_64_bits.pb", tag(1, VARINT) + b"\xff" * 9 + b"\x7f")
write("binary_version_33_bits.pb", integer(1, 1 << 32 | 1) + GOOD[2:])
write("binary_length_past_end.pb", VERSION + tag(4, LENGTH) + varint(1 << 62))
write("binary_length_past_parent.pb", model(tag(2, LENGTH) + varint(100)) + b"\0" * 200)
write("binary_not_utf8.pb", model(text(1, b"caf\xe9"), INPUT, NODE, OUTPUT))
write("binary_enum_33_bits.pb",
      model(message(2, text(1, "x"), integer(2, 1 << 32 | 1), dim(2)), NODE, OUTPUT))
write("binary_enum_unknown.pb", model(message(2, text(1, "x"), integer(2, 4), dim(2)), NODE, OUTPUT))
write("binary_enum_negative.pb",
      model(message(2, text(1, "x"), integer(2, 2**64 - 1), dim(2)), NODE, OUTPUT))
write("binary_bool_2.pb",
      model(message(4, text(1, "n"), message(11, integer(2, 2)))))
write("binary_two_ops.pb",
      model(INPUT, message(4, text(1, "n"), text(2, "x"), text(3, "y"), message(12), message(14))))
write("binary_same_op_twice.pb",
      model(INPUT, message(4, text(1, "n"), text(2, "x"), text(3, "y"), message(12), message(12))))
write("binary_two_data.pb", model(weight(text(5, b"1234"), message(4))))
write("binary_dim_both.pb",
      model(message(2, text(1, "x"), integer(2, 1), message(3, integer(1, 2), text(2, "n")))))
write("binary_packed_cut.pb", model(weight(message(4, text(1, b"1234567")))))
write("binary_packed_varint_cut.pb",
      model(message(3, text(1, "w"), integer(2, 1), text(3, b"\x80")), INPUT, NODE, OUTPUT))
write("binary_numbers_wire_type.pb", model(weight(message(4, tag(1, FIXED32) + b"\0\0\0\0"))))
deep = b""
for _ in range(10000):
    deep = text(4, deep)
write("binary_deep.pb", VERSION + deep)

# What the models named external_* refer to.
half = struct.pack("<4e", 1, 2, 3, 4)
tensors = {
    "half": ("F16", [2, 2], half),
    "integers": ("I32", [2, 2], struct.pack("<4i", 1, 2, 3, 4)),
    "vector": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4)),
}
header, data = {}, b""
for name, (dtype, shape, content) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
    data += content
header = json.dumps(header, separators=(",", ":")).encode()
header += b" " * (-len(header) % 8)
write("weights.safetensors", struct.pack("<Q", len(header)) + header + data)
