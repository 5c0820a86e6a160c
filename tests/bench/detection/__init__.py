"""The detection benchmark: traces, planted events, peers, and what is measured."""
