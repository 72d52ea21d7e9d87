"""A small local model for trying Tenax out."""
