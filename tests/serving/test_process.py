"""What a process holds that does nothing but serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.runtime import artifacts
from tests.runtime.test_process import FOREIGN

SCRIPT = """
import json, os, signal, sys, urllib.request
from aot.serving import __main__ as entry, server
announce = server._announce
def once(*given):
    announce(*given)
    os.kill(os.getpid(), signal.SIGTERM)
server._announce = once
code = entry.main([sys.argv[1], "--http-port", "0", "--grpc-port", "0"])
print(json.dumps({"code": code, "held": sorted(name for name in sys.modules if "." not in name)}))
"""


def test_neither_torch_nor_the_compiler_nor_the_command_line_is_in_a_process_that_serves(tmp_path: Path) -> None:
    where = artifacts.linear(tmp_path / "tiny.aot")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(where)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ports, said = done.stdout.splitlines()
    assert ports.startswith("tiny is served at http://127.0.0.1:")
    found = json.loads(said)
    assert found["code"] == 0
    assert {"aiohttp", "grpc", "onnxruntime"} <= set(found["held"])
    assert not FOREIGN & set(found["held"])


def test_without_the_servers_packages_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None; from aot.serving.__main__ import main; sys.exit(main(['x.aot']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the server needs aiohttp\n  fix: pip install 'aot-engine[serve]'\n"
