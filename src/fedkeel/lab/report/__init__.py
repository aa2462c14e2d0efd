"""What a run looks like: in the terminal, as a page made of the runs read from their folders, and as a live page."""
