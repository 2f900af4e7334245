"""The protocol over HTTP: JSON, and the extension that carries tensors as bytes behind the JSON.

Specification: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md; the
extension: https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from aot.errors import AotError, InputError
from aot.runtime.interchange import Array
from aot.serving import wire
from aot.serving.front import Front
from aot.serving.metrics import CONTENT_TYPE
from aot.serving.model import SERVER, VERSION, Request
from aot.serving.refusals import Late, TooLarge, sentence, status

HEADER_LENGTH = "Inference-Header-Content-Length"
BODY_SECONDS = 30.0
"""In which the body of a request has to come."""
logging.getLogger("aiohttp.server").addFilter(
    # What is no HTTP, or not in its stated encoding, is answered with 400; aiohttp's traceback would let any client
    # fill the log.
    lambda record: (
        not (record.exc_info and isinstance(record.exc_info[1], (HttpProcessingError, web.RequestPayloadError)))
    )
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Http:
    """The routes over one model."""

    def __init__(self, front: Front, max_request_bytes: int) -> None:
        self._front, self._max = front, max_request_bytes

    def application(self) -> web.Application:
        """The application, for a runner of aiohttp's."""
        app = web.Application(client_max_size=self._max, middlewares=[_answer_errors])
        app.router.add_get("/v2", self._server)
        app.router.add_get("/v2/health/live", self._live)
        app.router.add_get("/v2/health/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_get(path, self._model)
            app.router.add_get(f"{path}/ready", self._model_ready)
            app.router.add_post(f"{path}/infer", self._infer)
        return app

    async def _server(self, _: web.Request) -> web.Response:
        return web.json_response(SERVER)

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": self._front.ready}, status=200 if self._front.ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._front.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _model(self, request: web.Request) -> web.Response:
        self._called(request)
        return web.json_response(self._front.model.metadata())

    async def _model_ready(self, request: web.Request) -> web.Response:
        self._called(request)
        found = {"name": self._front.model.name, "ready": self._front.ready}
        return web.json_response(found, status=200 if self._front.ready else 503)

    async def _infer(self, request: web.Request) -> web.Response:
        with self._front.counted("http"):
            self._called(request)
            self._front.admit()
            header, binary = _parts(request.headers.get(HEADER_LENGTH), await self._body(request))
            asked, raw = self._request(header, binary)
            return self._response(asked, raw, await self._front.infer(asked))

    def _request(self, header: Mapping[str, Any], binary: memoryview) -> tuple[Request, Mapping[str, bool]]:
        """The request, and of each of its outputs whether it is wanted as bytes."""
        parameters = _parameters(header)
        given = _objects(header.get("outputs") or [], "outputs")
        outputs = {_text(one.get("name"), "name"): _flag(_parameters(one).get("binary_data")) for one in given}
        asked = self._front.model.request(
            _text(header.get("id", ""), "id"),
            *_inputs(_objects(header.get("inputs"), "inputs"), binary),
            [_text(one.get("name"), "name") for one in given],
            parameters.get("timeout"),
        )
        default = _flag(parameters.get("binary_data_output")) or False
        raw = {name: default if outputs.get(name) is None else bool(outputs[name]) for name in asked.outputs}
        for name, binary_data in raw.items():
            if not binary_data and self._front.model.datatypes[name] in wire.RAW_ONLY:
                raise InputError(
                    f"output '{name}' is {self._front.model.datatypes[name]}, which JSON has no numbers for",
                    fix='ask for it as bytes: "parameters": {"binary_data": true}',
                )
        return asked, raw

    def _called(self, request: web.Request) -> None:
        self._front.model.called(request.match_info["model"], request.match_info.get("version", ""))

    async def _body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._max:
            raise self._too_large()
        try:
            if request.content.is_eof():  # it came with the headers
                return await request.read()
            async with asyncio.timeout(BODY_SECONDS):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except web.RequestPayloadError:
            raise InputError(
                "the body is not what its Content-Encoding or Transfer-Encoding says",
                where=f"Content-Encoding: {request.headers.get('Content-Encoding', 'none')[:40]}",
                fix="send it as it is, without that header, or compressed as the header says",
            ) from None
        except TimeoutError:
            raise Late(f"the body did not come in {BODY_SECONDS:g} s", fix="send it at once") from None

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the request is longer than {self._max} bytes",
            fix="send fewer rows at once, or start the server with a larger --max-request-bytes",
        )

    def _response(self, asked: Request, raw: Mapping[str, bool], outputs: Mapping[str, Array]) -> web.Response:
        described, tail = [], []
        for name in asked.outputs:
            array = outputs[name]
            one = {"name": name, "datatype": self._front.model.datatypes[name], "shape": array.shape}
            if raw[name]:
                tail.append(wire.to_raw(array))
                one["parameters"] = {"binary_data_size": array.nbytes}
            else:
                one["data"] = array.reshape(-1).tolist()
            described.append(one)
        named = {"id": asked.id} if asked.id else {}
        head = {"model_name": self._front.model.name, "model_version": VERSION, **named, "outputs": described}
        text = json.dumps(head).encode()
        if not tail:
            return web.Response(body=text, content_type="application/json")
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
        return web.Response(body=b"".join([text, *tail]), headers=headers)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as the protocol has them: a status, and {"error": "..."}."""
    try:
        return await handler(request)
    except AotError as error:
        response = web.json_response({"error": sentence(error)}, status=status(error).http)
        if isinstance(error, (TooLarge, Late)):
            response.force_close()  # the rest of the body is not read
        return response
    except web.HTTPException as error:
        return web.json_response(
            {"error": f"{request.method} {request.path[:200]}: {error.reason}"}, status=error.status
        )


def _parts(stated: str | None, body: bytes) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request, and the bytes behind it. stated: the length of the JSON, None: all of it."""
    if stated is None:
        length = len(body)
    elif not (stated.isascii() and stated.isdigit() and len(stated) < 20 and int(stated) <= len(body)):
        raise InputError(
            f"{HEADER_LENGTH} is {stated[:40]!r}, and the body has {len(body)} bytes",
            fix="state the bytes of the JSON in front of the binary data",
        )
    else:
        length = int(stated)
    try:
        header = json.loads(body[:length])
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the request is not JSON: {error or 'nested too deep'}", fix="send what the protocol says"
        ) from None
    if not isinstance(header, dict):
        raise InputError("the request is no JSON object", fix='send {"inputs": [...]}')
    return header, memoryview(body)[length:]


def _inputs(
    given: Sequence[Mapping[str, Any]], binary: memoryview
) -> tuple[list[str], Callable[[int, wire.Reader], Array]]:
    """The names of the inputs, and what reads one of them. The binary data lies in their order."""
    parts: list[memoryview | None] = []
    start = 0
    for one in given:
        size = _parameters(one).get("binary_data_size")
        if size is not None and (type(size) is not int or not 0 <= size <= len(binary) - start):
            raise InputError(
                f"binary_data_size is {repr(size)[:40]}, and {len(binary) - start} bytes are left behind the JSON",
                where=f"input '{_text(one.get('name'), 'name')[:80]}'",
                fix=f"send all of it, and the length of the JSON as {HEADER_LENGTH}",
            )
        parts.append(None if size is None else binary[start : start + size])
        start += size or 0
    if start < len(binary):
        raise InputError(
            f"{len(binary) - start} bytes are left that no input takes", fix="state them as binary_data_size"
        )

    def read(place: int, reader: wire.Reader) -> Array:
        one, part = given[place], parts[place]
        shape = reader.shape(one.get("shape"), one.get("datatype"))
        return reader.numbers(one.get("data"), shape) if part is None else reader.raw(part, shape)

    return [_text(one.get("name"), "name") for one in given], read


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f"'{name}' is no list of objects", fix=f'send "{name}": [{{"name": ...}}, ...]')
    return value


def _parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("parameters") or {}
    if not isinstance(found, dict):
        raise InputError("'parameters' is no object", fix='send "parameters": {...}, or leave it out')
    return found


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"'{name}' is no string", fix=f'send "{name}": "..."')
    return value


def _flag(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InputError("binary_data is neither true nor false", fix="send one of them, or leave it out")
    return value
