"""Complete generations: saved, verified, loaded, retired."""
