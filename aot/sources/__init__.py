"""What a build can start from: one file a form of source. The contract is `aot/source.py`."""
