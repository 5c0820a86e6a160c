"""What the evidence means: checks, experiments, causes, and the judgement over them."""
