"""From one file an op to all that the op needs: see `aot/plugin.py` for what the file holds.

    schema.py       SCHEMA and TYPES, read
    sizes.py        sizes that vary, recorded while a plugin's functions compute with them
    header.py       what a file says of itself, read without running it
    loading.py      the file, run and held against what it says
    ptx.py          what a kernel may do to be launched by TensorRT
    compiling.py    kernels to PTX, in a process of their own (`_compiler.py`)
    checking.py     kernels against their references, in a process of their own (`_interpreter.py`)

What speaks torch (the torch op, the ONNX node and its function) is `aot/frontend/plugins.py`.
"""
