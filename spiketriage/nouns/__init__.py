"""The nouns that travel between modules, by subject."""
