"""Parts of the benchmark of calibration and precision; see calibration.py and fidelity.py beside."""
