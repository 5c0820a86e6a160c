"""Files that tensors lie in, read without unpickling a class."""
