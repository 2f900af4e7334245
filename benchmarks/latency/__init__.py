"""The parts of `latency.py`."""
