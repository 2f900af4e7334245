"""The messages of gRPC: generated from our .proto, which has the names and numbers of everybody's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from tritonclient.grpc import service_pb2

PROTO = "aot/serving/protocol/inference.proto"
Fields = dict[str, tuple[int, int, int, str]]


def protoc(root: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *options, PROTO], cwd=root, check=True)


def test_the_generated_files_are_what_protoc_makes_of_the_proto(root: Path, tmp_path: Path) -> None:
    protoc(root, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    for name in ("inference_pb2.py", "inference_pb2.pyi"):
        kept = root / Path(PROTO).with_name(name)
        assert (tmp_path / Path(PROTO).with_name(name)).read_text() == kept.read_text(), f"make {kept} again"


def test_every_message_has_the_fields_of_the_protocol(root: Path, tmp_path: Path) -> None:
    """Held against the messages of Triton's client, which has the protocol's and more."""
    protoc(root, f"--descriptor_set_out={tmp_path / 'ours'}")
    (ours,) = FileDescriptorSet.FromString((tmp_path / "ours").read_bytes()).file
    theirs = FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(theirs)
    assert ours.package == theirs.package == "inference"
    found, wanted = messages(list(ours.message_type)), messages(list(theirs.message_type))
    assert len(found) == 23
    for name, fields in found.items():
        assert fields.items() <= wanted[name].items(), name
    methods = {one.name: (one.input_type, one.output_type) for one in ours.service[0].method}
    assert methods.items() <= {one.name: (one.input_type, one.output_type) for one in theirs.service[0].method}.items()
    assert ours.service[0].name == theirs.service[0].name


def messages(given: list[DescriptorProto], within: str = "") -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    for one in given:
        name = f"{within}{one.name}"
        found[name] = {field.name: (field.number, field.type, field.label, field.type_name) for field in one.field}
        found.update(messages(list(one.nested_type), f"{name}."))
    return found
