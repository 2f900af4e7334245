"""Range observers, one a file; the file's name is what a recipe's `calibrator` says."""
