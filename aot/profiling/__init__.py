"""Where the time of a run goes, by layer of an engine: `aot profile`.

`attribution.py` says what the nodes of the final graph are and where they come from; `measuring.py` times a session and
its layers; `sums.py` puts both together, by layer, module and precision; `text.py` shows it in 100 columns.

Not to be taken for `aot/profile.py`, which holds optimization profiles: the ranges of shapes that an engine takes.
"""
