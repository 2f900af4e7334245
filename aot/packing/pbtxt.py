"""Protocol buffers as text: https://protobuf.dev/reference/protobuf/textformat-spec. Written, never read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias


class Word(str):
    """A value of an enum, which is written without quotes."""


Scalar: TypeAlias = str | int
Message: TypeAlias = "Mapping[str, Scalar | Message | Sequence[Scalar] | Sequence[Message]]"


def text(message: Message, comments: Sequence[str] = ()) -> str:
    """A message, with lines of comments before it. A list is a repeated field, of scalars or of messages."""
    head = [f"# {' '.join(line.split())}" for line in comments]
    return "\n".join([*head, *_lines(message, ""), ""])


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name} {{"
            yield from _lines(value, indent + "  ")
            yield f"{indent}}}"
        elif isinstance(value, str | int):
            yield f"{indent}{name}: {_scalar(value)}"
        elif value and isinstance(value[0], Mapping):
            for one in value:
                assert isinstance(one, Mapping)
                yield from _lines({name: one}, indent)
        else:
            yield f"{indent}{name}: [{', '.join(_scalar(one) for one in value if not isinstance(one, Mapping))}]"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word | int):
        return str(value)
    return f'"{"".join(map(_escaped, value.encode()))}"'


def _escaped(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\{byte:03o}"
