"""From one file an op to all that the op needs: see `aot/plugin.py` for what the file holds.

    schema.py       SCHEMA and TYPES, read
    sizes.py        sizes that vary, recorded while a plugin's functions compute with them
    header.py       what a file says of itself, read without running it
    loading.py      the file, run and held against what it says
    ptx.py          what a kernel may do to be launched by TensorRT
    compiling.py    kernels to PTX, in a process of their own (`_compiler.py`)
    checking.py     kernels against their references (`_trying.py`), on the interpreter or a GPU (`_interpreter.py`,
                    `_gpu.py`), at the sizes of cases.py and growing.py
    tuning.py       the fastest config on a GPU (`_tuner.py`): descent.py says which are tried, tuned.py what is kept

What speaks torch (the torch op, the ONNX node and its function) is `aot/frontend/plugins.py`.
"""
