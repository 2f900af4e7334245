"""The Open Inference Protocol (KServe v2) over HTTP and gRPC, on top of `aot.load`: docs/serve.md says how it is used.

__main__.py         `python -m aot.serving ARTIFACT`, without click; options.py: what `aot serve` takes, too
server.py           from start to graceful stop: load, warm up, ready, drain
model.py            what is served, as the protocol describes it; joining.py: which requests may be computed together

http_api.py, grpc_api.py
                    from bytes to a request, and from outputs to bytes; front.py: what both stand on
wire.py             tensors as they travel; refusals.py: what is answered to what cannot be, by status
protocol/           the gRPC messages, generated

scheduler.py        the bounded queue, batches across clients, and the lanes that compute them
metrics.py, log.py  what Prometheus reads, and what people read
"""

from __future__ import annotations

from aot.errors import UsageError
from aot.serving.options import Options

__all__ = ["Options", "serve"]


def serve(options: Options) -> int:
    """Serve an artifact until SIGTERM or SIGINT. The exit code: 0, or 1 where requests were cut off.

    Raises UsageError for an address that cannot be taken and where the server's packages are not installed, and what
    `aot.load` raises.
    """
    try:
        from aot.serving.server import run
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs {error.name}", fix="pip install 'aot-engine[serve]'") from error
    return run(options)
