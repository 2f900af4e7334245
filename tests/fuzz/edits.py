"""Damage: a document that is right, and a few edits that nobody who writes one by a program would make."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", " ", "x", "batch", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a\0b",
    "\ud800", "é" * 40, "x" * 5000, "9" * 5000, "2**9999999", "${HOME}", "{0.__class__}", "\x1b[2J", "fp32", "int8",
    "sm89", "cpu", "float32", "bfloat16", "object", "model.onnx", [], {}, [[]], [None], [1, 2, 3], [3, 2, 1], ["x"],
    {"": {}}, {"x": 1}, {"file": "x"}, [{}], [[1, 2], [3]],
)  # fmt: skip
"""Values of every type, for the place of a value of another type, sign, size or meaning."""


def deep(depth: int) -> Any:
    """Lists in lists."""
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@st.composite
def data(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """A copy of plain data, with up to four edits at any depth."""
    made = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        made = _edited(draw, made)
    return made


def _edited(draw: st.DrawFn, made: Any) -> Any:
    places = list(_places(made))
    if not places:
        return _hostile(draw)
    holder, key = places[draw(st.integers(0, len(places) - 1))]
    what = draw(st.sampled_from(("replace", "replace", "number", "drop", "rename", "repeat", "move", "deep")))
    if what == "replace":
        holder[key] = _hostile(draw)
    elif what == "number":
        holder[key] = draw(st.one_of(st.integers(), st.floats(), st.text(max_size=20)))
    elif what == "drop":
        del holder[key]
    elif what == "deep":
        holder[key] = deep(draw(st.sampled_from((10, 65, 200))))
    elif what == "move":
        other, name = places[draw(st.integers(0, len(places) - 1))]
        holder[key] = copy.deepcopy(other[name])
    elif isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif what == "rename":
        holder[str(draw(st.sampled_from(("", "x", "../x", f"{key}_", f" {key}", "\ud800"))))] = holder.pop(key)
    else:
        holder[f"{key}2"] = copy.deepcopy(holder[key])
    return made


def _hostile(draw: st.DrawFn) -> Any:
    return copy.deepcopy(draw(st.sampled_from(HOSTILE)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


_TOKENS = (
    b"", b"\0", b"\xff", b"\xff\xfe", b"\n", b"\t", b"'", b'"', b"[", b"{" * 400, b"[" * 2000, b"- " * 300, b"\xc3",
    b"&a ", b"*a", b"<<: *a\n", b"!!python/object/apply:os.system [x]", b"!!timestamp 2001-99-99", b"!!binary x",
    b"!!set {a}", b"? [a]", b": ", b"#", b"%YAML 9.9\n", b"---\n", b"...", b"|", b">", b"1e999", b".nan", b"0x",
    b"1:2:3", b"null", b"~", b"\\", b"(" * 150, b"lambda: 0", b"\n def x(): pass", b"f'{x}'", b"import os", b"**",
    b"-", b"None", b"99999999999999999999", b"\x7f", "\u2028".encode(),
)  # fmt: skip
"""What YAML, JSON or Python read as something else than text."""


@st.composite
def text(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A copy of a text or of bytes, with up to six edits: flipped, removed, repeated, cut, or a token put in."""
    made = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(made)))
        end = min(len(made), at + draw(st.sampled_from((1, 2, 4, 16, 200))))
        what = draw(st.sampled_from(("flip", "flip", "drop", "token", "token", "repeat", "cut", "bytes")))
        if what == "flip" and at < len(made):
            made[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "drop":
            del made[at:end]
        elif what == "token":
            made[at:at] = draw(st.sampled_from(_TOKENS))
        elif what == "repeat":
            made[at:at] = made[at:end] * draw(st.sampled_from((1, 3, 50)))
        elif what == "bytes":
            made[at:end] = draw(st.binary(max_size=8))
        elif what == "cut":
            del made[at:]
    return bytes(made)


_NUMBERS = (0, 1, -1, 2, 7, 13, 64, 127, 128, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_NAMES = (b"", b"x", b"y", b"w", b"../../etc/passwd", b"/etc/passwd", b"ai.onnx", b"com.microsoft", b"If", b"Loop",
          b"\xff", b"x" * 3000, b"Relu", b"Constant", b"Reshape", b"then_branch", b"value",
          b"axes", b"perm")  # fmt: skip


@st.composite
def proto(draw: st.DrawFn, seeds: Sequence[Message]) -> bytes:
    """A copy of a protobuf message, with up to four fields of it, at any depth, changed, removed, repeated or moved."""
    made = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        messages = list(_messages(made))
        message = messages[draw(st.integers(0, len(messages) - 1))]
        fields = message.DESCRIPTOR.fields
        _change(draw, message, fields[draw(st.integers(0, len(fields) - 1))], messages)
    return made.SerializePartialToString()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _change(draw: st.DrawFn, message: Message, field: FieldDescriptor, all_: Sequence[Message]) -> None:
    what = draw(st.sampled_from(("set", "set", "clear", "repeat", "take")))
    held = getattr(message, field.name)
    if what == "clear":
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        like = [one for one in all_ if field.message_type == one.DESCRIPTOR and one.ByteSize() < 10_000]
        other = copy.deepcopy(like[draw(st.integers(0, len(like) - 1))]) if like and what != "set" else None
        if field.is_repeated:
            held.add().CopyFrom(other) if other is not None else held.add()
        elif other is not None:
            held.CopyFrom(other)
        else:
            held.SetInParent()
    else:
        value = _scalar(draw, field)
        if field.is_repeated and len(held) and what == "set":
            held[draw(st.integers(0, len(held) - 1))] = value
        elif field.is_repeated:
            held.extend([value] * draw(st.sampled_from((1, 1, 2, 100))))
        else:
            setattr(message, field.name, value)


def _scalar(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return draw(st.sampled_from((0.0, -1.0, 1e38, float("nan"), float("inf"))))
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        value = draw(st.sampled_from(_NAMES))
        return value if field.type == FieldDescriptor.TYPE_BYTES else value.decode(errors="replace")
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw(st.sampled_from([one.number for one in field.enum_type.values]))
    bits = 31 if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32) else 63
    number = draw(st.sampled_from(_NUMBERS))
    if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32):
        return abs(number) & (2**32 - 1)
    return max(-(2**bits), min(2**bits - 1, number))
