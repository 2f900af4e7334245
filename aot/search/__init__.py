"""Which nodes to keep wide so that the accuracy budget holds.

`units.py` says what can be kept wide, what it costs and what it should gain; `minimal.py` finds a set that is enough
and from which nothing can be left out; `trials.py` tries a set: it makes the graph and compares it with the references.
`aot/stages/repair.py` is the stage that puts them together.
"""
