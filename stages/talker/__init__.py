"""Stage 0: an autoregressive model that writes 16 codec codes per 80 ms frame."""
