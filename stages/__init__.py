"""The two-stage pipeline without HTTP: Talker (text → codes), Code2Wav (codes → samples), and what joins them."""
