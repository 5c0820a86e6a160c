"""The contract on disk between the training side and the desk, versioned; it never imports either side."""
