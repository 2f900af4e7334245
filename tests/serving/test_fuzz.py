"""Any JSON, and any bytes, in the place of a request: a request, or an error in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.errors import AotError
from aot.runtime import manifest
from aot.serving.front import Front
from aot.serving.http_api import Http, _parts
from aot.serving.joining import Joining
from aot.serving.metrics import Metrics
from aot.serving.model import Model
from aot.serving.refusals import sentence, status
from tests.serving import models

NAMES = [f"in_{name}" for name in models.DTYPES]
numbers = st.integers() | st.floats() | st.integers(-3, 3) | st.booleans() | st.sampled_from([2**63, 10**400])
anything = st.recursive(
    st.none() | numbers | st.text(max_size=8),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part),
)


def usual(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values) | anything


parameters = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": usual(0, 1, 4, 8),
        "binary_data": usual(True, False),
        "binary_data_output": usual(True, False),
        "timeout": usual(0, 1000),
    },
)
tensor = st.fixed_dictionaries(
    {"name": usual(*NAMES)},
    optional={
        "shape": st.lists(numbers, max_size=3) | usual([1, 2], [2, 2]),
        "datatype": usual("BOOL", "INT8", "UINT64", "FP16", "BF16", "FP32", "FP64", "BYTES"),
        "data": st.lists(numbers, min_size=2, max_size=4) | st.lists(st.lists(numbers)) | anything,
        "parameters": parameters | anything,
    },
)
request = st.fixed_dictionaries(
    {"inputs": st.lists(tensor, max_size=len(NAMES)) | anything},
    optional={
        "id": usual("1"),
        "outputs": st.lists(st.fixed_dictionaries({"name": usual("out_int8"), "parameters": parameters})) | anything,
        "parameters": parameters | anything,
    },
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Http:
    found = manifest.read(str(models.every_dtype(tmp_path_factory.mktemp("fuzz") / "dtypes.aot")))
    return Http(Front(Model(found, "tiny", Joining.of(found, None)), Metrics()), 2**20)


def read(api: Http, stated: str | None, body: bytes) -> None:
    """Read a request; what it raises has to be the client's fault, in one bounded line."""
    found = None
    try:
        api._request(*_parts(stated, body))
    except AotError as error:
        found = error
    assert found is None or (status(found).http == 400 and "\n" not in sentence(found) and len(sentence(found)) < 1000)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(sent=request | anything, tail=st.binary(max_size=32))
def test_any_json(api: Http, sent: Any, tail: bytes) -> None:
    head = json.dumps(sent).encode()
    read(api, str(len(head)), head + tail)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(stated=st.none() | st.text(max_size=12) | st.integers(-2, 80).map(str), body=st.binary(max_size=64))
def test_any_bytes(api: Http, stated: str | None, body: bytes) -> None:
    read(api, stated, body)
