"""The tests mirror aot/."""
