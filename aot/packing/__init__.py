"""The forms that an artifact travels in, and back: what `aot pack`, `unpack`, `verify` and `sign` do.

Each form is a module with a function `write(artifact, to, *, overwrite)`, which takes the folder of a whole artifact
and returns the files that it wrote; `aot/cli/pack.py` lists them.
"""
