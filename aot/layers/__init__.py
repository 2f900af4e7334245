"""Where the error of a graph enters, layer by layer, against another graph of the same model.

`pairing.py` finds the values that both compute and what lies between them; `aot/backends/onnxruntime_pair.py` runs both
in one session and sums errors up inside it; `errors.py` turns the sums into a row a layer; `shares.py` follows the
outputs' error back to where it entered; `opening.py` finds the graph behind a name of the command line.
"""
