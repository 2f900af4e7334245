"""What runs where an engine is deployed: neither torch nor a compiler is needed there."""
