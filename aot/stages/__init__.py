"""The stages of a build, one file each; `aot/pipeline.py` puts them in order."""
