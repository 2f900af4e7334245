"""What only a GPU with TensorRT can show."""
