"""What `benchmarks/sweep.py` runs over: which models, at which sizes, and how one of them is tried."""
