"""The parts of `precision_engines.py`."""
