"""The recorder and the signals that it keeps."""
