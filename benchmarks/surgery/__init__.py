"""What `benchmarks/surgery.py` is made of: the models, the tools, one measurement, and the page."""
