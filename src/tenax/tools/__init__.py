"""What a model may do in the world, and the one gate before it."""
