"""Voice cloning: from a recording to what a prompt holds of it, a speaker vector and codec frames."""
