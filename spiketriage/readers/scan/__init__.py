"""One read pass over the bytes of many files: digest, CRC and tensor statistics together."""
