"""The side that speaks torch: running a module, and exporting it. Imported only inside functions that need torch."""
