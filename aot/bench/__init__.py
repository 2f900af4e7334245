"""`aot bench`: ways to run one model, timed side by side on the same inputs.

tools.py        the contenders by name, and why one cannot run here
opening.py      what was given: artifacts, a model, an ONNX file; sizes; what they have to agree on
bench.py        the whole of it, read top to bottom: the object that `--json` prints
measuring.py    all contenders at one size, phase by phase
lane.py         one contender at one size: its process, what was measured, its row
schedule.py     who runs when: blocks in random order
timing.py       single calls by the clock; warm-up until steady; calls back to back
figures.py      percentiles, the spread of blocks, which differences are noise
accuracy.py     how far a contender's answers are from the reference
worker.py       a process and its pipe, from the outside
serving.py      the same from the inside
contender.py    the contract of a way to run a model; calls/ holds them, one file each
memory.py, meters.py, cpus.py, launches.py    what is read beside the clock
table.py        the answer for people, in 100 columns
"""
