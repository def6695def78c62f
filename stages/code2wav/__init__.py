"""Stage 1: the codec's streaming decoder, codes → 24 kHz samples."""
