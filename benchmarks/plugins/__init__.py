"""The parts of `plugins.py`."""
