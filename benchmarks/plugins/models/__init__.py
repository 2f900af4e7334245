"""Four models at sizes that people run, each a file that `aot build` takes as it is.

SIZES: the Dims to measure at. PROFILE: of the engine, (min, opt, max). SMALL: what it is prepared with, for the
references of those sizes travel. `inputs(sizes)`: a batch, by the names of the declaration.
"""
