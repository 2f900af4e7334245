"""The messages of gRPC: inference.proto, and what protoc makes of it."""
