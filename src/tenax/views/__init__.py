"""What a person sees, what a model sees, what is open: pure folds over events."""
