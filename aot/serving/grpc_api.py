"""The protocol over gRPC, tensors raw or in typed fields; and the standard health service.

Specification: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_grpc.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from aot.errors import AotError, InputError
from aot.runtime.interchange import Array
from aot.serving import wire
from aot.serving.front import Front
from aot.serving.model import SERVER, VERSION, Request
from aot.serving.protocol import inference_pb2 as pb
from aot.serving.refusals import sentence, status
from aot.serving.scheduler import Outputs

FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""The field of InferTensorContents by datatype."""

Method = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]
SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class Grpc:
    """The service over one model."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a server of grpc.aio."""
        methods: dict[str, Method] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                method.name: grpc.unary_unary_rpc_method_handler(
                    _answering(methods[method.name], GetMessageClass(method.input_type).FromString),
                    response_serializer=GetMessageClass(method.output_type).SerializeToString,
                )
                for method in SERVICE.methods
            },
        )

    async def _live(self, _: pb.ServerLiveRequest, __: grpc.aio.ServicerContext) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _ready(self, _: pb.ServerReadyRequest, __: grpc.aio.ServicerContext) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._front.ready)

    async def _model_ready(self, request: pb.ModelReadyRequest, _: grpc.aio.ServicerContext) -> pb.ModelReadyResponse:
        self._front.model.called(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._front.ready)

    async def _server(self, _: pb.ServerMetadataRequest, __: grpc.aio.ServicerContext) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(**SERVER)

    async def _model(self, request: pb.ModelMetadataRequest, _: grpc.aio.ServicerContext) -> pb.ModelMetadataResponse:
        self._front.model.called(request.name, request.version)
        found = self._front.model.metadata()
        del found["parameters"]
        return pb.ModelMetadataResponse(**found)

    async def _infer(self, request: pb.ModelInferRequest, _: grpc.aio.ServicerContext) -> pb.ModelInferResponse:
        with self._front.counted("grpc"):
            self._front.model.called(request.model_name, request.model_version)
            self._front.admit()
            asked = self._request(request)
            return self._response(asked, await self._front.infer(asked))

    def _request(self, request: pb.ModelInferRequest) -> Request:
        given, raw = request.inputs, request.raw_input_contents
        if raw and len(raw) != len(given):
            raise InputError(
                f"there are {len(given)} inputs and {len(raw)} raw_input_contents", fix="send one for each input"
            )

        def read(place: int, reader: wire.Reader) -> Array:
            one = given[place]
            shape = reader.shape(list(one.shape), one.datatype)
            if raw:
                return reader.raw(raw[place], shape)
            field = FIELDS.get(one.datatype, "bytes_contents")
            return reader.numbers(getattr(one.contents, field), shape)

        names = [one.name for one in given]
        timeout = request.parameters["timeout"].int64_param if "timeout" in request.parameters else None
        return self._front.model.request(request.id, names, read, [one.name for one in request.outputs], timeout)

    def _response(self, asked: Request, outputs: Outputs) -> pb.ModelInferResponse:
        return pb.ModelInferResponse(
            model_name=self._front.model.name,
            model_version=VERSION,
            id=asked.id,
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=name, datatype=self._front.model.datatypes[name], shape=outputs[name].shape
                )
                for name in asked.outputs
            ],
            raw_output_contents=[bytes(wire.to_raw(outputs[name])) for name in asked.outputs],
        )


def _answering(method: Method, parse: Callable[[bytes], Any]) -> Method:
    """The method over the bytes of its request, with its errors as statuses."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> Any:
        try:
            try:
                parsed = parse(request)
            except DecodeError as error:
                raise InputError(
                    f"the request is no message of the protocol: {error}", fix="make it of inference.proto"
                ) from None
            return await method(parsed, context)
        except AotError as error:
            await context.abort(grpc.StatusCode[status(error).grpc], sentence(error))

    return answer
