"""What is done to weights before they are rounded, and how they are rounded (`weights` of a recipe)."""
